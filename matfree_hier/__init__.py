"""Recover the latent features of a hierarchical model from samples, matrix-free.

`HierarchicalModel` draws samples, `MomentOperator` applies their moment matrix without forming it,
`top_eigenpairs` finds its extreme eigenpairs, `HierarchicalSpectralRegressor` puts the layers together.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matfree_hier import density as density
    from matfree_hier import divided as divided
    from matfree_hier import labels as labels
    from matfree_hier import links as links
    from matfree_hier import metric as metric
    from matfree_hier import packing as packing
    from matfree_hier import recovery as recovery
    from matfree_hier import smooth as smooth
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

# Names are loaded when they are first used: scikit-learn and scipy.stats take seconds to import, and half of
# what people do here needs neither.
_HOMES = {
    "density": ("SpectralDensity", "spectral_density"),
    "divided": (),
    "eigen": ("top_eigenpairs",),
    "estimator": ("HierarchicalSpectralRegressor",),
    "labels": (),
    "links": (),
    "metric": (),
    "model": ("HierarchicalModel",),
    "operator": ("MomentOperator",),
    "packing": (),
    "recovery": (),
    "result": ("EigenResult", "History"),
    "smooth": (),
    "sources": ("SampleSource", "open_source"),
    "status": ("InputError", "NotConverged", "RunFileError", "Status"),
    "store": ("RunFile",),
    "theory": (),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "EigenResult",
    "HierarchicalModel",
    "HierarchicalSpectralRegressor",
    "History",
    "InputError",
    "MomentOperator",
    "NotConverged",
    "RunFile",
    "RunFileError",
    "SampleSource",
    "SpectralDensity",
    "Status",
    "density",
    "divided",
    "labels",
    "links",
    "metric",
    "open_source",
    "packing",
    "recovery",
    "smooth",
    "spectral_density",
    "theory",
    "top_eigenpairs",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"matfree_hier.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in _HOMES:
        return import_module(f"matfree_hier.{name}")
    msg = f"module 'matfree_hier' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
