"""Streaming Hermite contractions: arrays and scalars in, arrays out.

Nothing is checked here and nothing raised: the operator validates, casts and calls. Features come in packed
coordinates, in the order of ``itertools.combinations_with_replacement(range(d), q)``.
"""

from matfree_hier.kernels.halves import widened as widened
from matfree_hier.kernels.launch import backward as backward
from matfree_hier.kernels.launch import features as features
from matfree_hier.kernels.launch import forward as forward
from matfree_hier.kernels.launch import gram as gram
from matfree_hier.kernels.launch import moment as moment
from matfree_hier.kernels.launch import squared_norms as squared_norms
from matfree_hier.kernels.threads import follow_affinity

follow_affinity()
