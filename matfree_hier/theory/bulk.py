"""The density of the moment operator's bulk, from the resolvent of its labels."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matfree_hier.checks import finite, positive

Array: TypeAlias = NDArray[np.float64]

_LABELS = 1024  # labels whose mean stands for the expectation: a density is smooth
_STEPS = 40  # of the way down to the real axis
_NEWTON = 3  # corrections a step


def bulk_density(
    x: ArrayLike,
    t: ArrayLike,
    n: float,
    n_packed: int,
    norms: ArrayLike | None = None,
    width: float | None = None,
) -> Array:
    """Predict the density of eigenvalues of the trace-centred operator without features, at any n/D.

    With tau = t/sqrt 2, rho = |F|^2/D and delta = D/n, the trace m of the resolvent at z solves
    z = 1/m + E[tau rho/(1 - delta m tau rho)]; the density at x is -Im m/pi at z = x + i 0. The solution is
    followed from far above the real axis, where m is near 1/z, by Newton steps, down to x + i ``width``.

    Parameters
    ----------
    x : array_like of float, shape (m,)
        Where the density is wanted.
    t : array_like of float, shape (N,)
        Transformed labels; of many, some 1000 at even distances in their order are used.
    n : float
        Number of samples of the operator; need not be N.
    n_packed : int
        D.
    norms : array_like of float, shape (N,), optional
        |F(x)|^2/D of the same samples, 1 for Gaussian features.
    width : float, optional
        Half-width of the Lorentzian that the density is smoothed by, above 0. By default 1/500 of the range
        of ``x``.

    Returns
    -------
    ndarray of float64, shape (m,)
        Share of all eigenvalues per unit.

    Raises
    ------
    ValueError
        If an argument is out of its bounds, or ``x`` has no range and ``width`` is not given.

    References
    ----------
    Marchenko and Pastur, Distribution of eigenvalues for some sets of random matrices, Math. USSR Sb. 1
    (1967) 457, doi 10.1070/SM1967v001n04ABEH001994: equation (1.14), in these units.
    """
    x = finite("x", x)
    r = finite("t", t) / np.sqrt(2.0)
    if norms is not None:
        r = r * finite("norms", norms)
    delta = positive("n_packed", n_packed) / positive("n", n)
    bottom = positive("width", float(np.ptp(x)) / 500 if width is None else width)
    shift = float(np.mean(r))
    # Evenly spaced in order, as far from one end as the other: no tail's last is to count for many.
    count = min(len(r), _LABELS)
    r = np.sort(r)[((np.arange(count) + 0.5) * len(r) / count).astype(np.int64)]
    # Far up every label counts little: 100 times the largest of what z is made of.
    top = 100.0 * max(float(np.abs(r).max()) * (1.0 + delta), float(np.abs(x + shift).max()), bottom)
    m = 1.0 / (x + shift + 1j * top)
    for height in np.geomspace(top, bottom, _STEPS):
        z = x + shift + 1j * height
        for _ in range(_NEWTON):
            weighted = r / (1.0 - delta * np.multiply.outer(m, r))
            excess = 1.0 / m + weighted.mean(axis=1) - z
            slope = -1.0 / m**2 + delta * (weighted**2).mean(axis=1)
            step = excess / slope
            m = m - step * np.minimum(1.0, 0.5 * np.abs(m) / np.maximum(np.abs(step), 1e-300))
            m = np.where(m.imag < 0.0, m, m.conj())  # the trace of a resolvent above the axis lies below it
    return np.asarray(-m.imag / np.pi)
