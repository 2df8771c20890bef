"""Recover the latent features of a hierarchical model from samples, matrix-free.

`HierarchicalModel` draws samples, `MomentOperator` applies their moment matrix without forming it,
`top_eigenpairs` finds its extreme eigenpairs, `HierarchicalSpectralRegressor` puts the layers together.
"""

from matfree_hier import density as density
from matfree_hier import labels as labels
from matfree_hier import links as links
from matfree_hier import packing as packing
from matfree_hier import recovery as recovery
from matfree_hier import theory as theory
from matfree_hier.density import SpectralDensity as SpectralDensity
from matfree_hier.density import spectral_density as spectral_density
from matfree_hier.eigen import top_eigenpairs as top_eigenpairs
from matfree_hier.estimator import HierarchicalSpectralRegressor as HierarchicalSpectralRegressor
from matfree_hier.model import HierarchicalModel as HierarchicalModel
from matfree_hier.operator import MomentOperator as MomentOperator
from matfree_hier.result import EigenResult as EigenResult
from matfree_hier.result import History as History
from matfree_hier.sources import SampleSource as SampleSource
from matfree_hier.sources import open_source as open_source
from matfree_hier.status import InputError as InputError
from matfree_hier.status import NotConverged as NotConverged
from matfree_hier.status import RunFileError as RunFileError
from matfree_hier.status import Status as Status
from matfree_hier.store import RunFile as RunFile

__version__ = "0.1.0"
