"""Vectors too large for one machine: ranks in a grid, shares of the samples by ranges of the features.

`DividedOperator` and `divided_eigenpairs` are calls that every rank makes, each with its own samples and its
own part of the vectors; no rank ever holds a vector of all D entries. `costs` says what a grid takes.
"""

from matfree_hier.divided.costs import Costs as Costs
from matfree_hier.divided.costs import cost_table as cost_table
from matfree_hier.divided.costs import costs as costs
from matfree_hier.divided.operator import DividedOperator as DividedOperator
from matfree_hier.divided.solve import DividedPairs as DividedPairs
from matfree_hier.divided.solve import divided_eigenpairs as divided_eigenpairs
