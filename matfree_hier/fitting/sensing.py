"""Low-rank sensing: steps down the loss of a factor on samples, at one pass each.

The loss of the model y = g(c + h), h = sum_k s_k u_k^2, u = F(x)^T W, is

    (1/2n) sum_i (g(c + h_i) - y_i)^2 + (mu/2) |W|^2.

A step minimises it over W + B A, where B (D x 3K) holds the factor, the last step and the gradient side by
side and A (3K x K) solves the Gauss-Newton equations, by conjugate gradients on the latents F B that are kept
from the products: no pass over the features. A line search along B A follows, exact for g = id, where the
loss is a quartic. Since A mixes columns no scaling of the gradient matters, and a step gets as far as two or
three of nonlinear conjugate gradients scaled by the factor's Gram matrix, for the same two products. The
smallest |W|^2 over all factors of one M = W diag(s) W^T is the sum of the |eigenvalues| of M: the ridge is
the penalty that holds directions of noise at zero. In a metric |W|^2 is tr W^T B W, and directions are sought
along B^-1 times the gradient, which is the gradient of the problem in B^1/2 W.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from matfree_hier.fitting.factor import by_part
from matfree_hier.fitting.latents import LatentShare
from matfree_hier.packing import check_memory
from matfree_hier.solvers.space import PLAIN, Space

if TYPE_CHECKING:
    from collections.abc import Callable

    from matfree_hier.fitting.factor import Factor, Samples

Array: TypeAlias = NDArray[np.float64]

_INNER = 10  # conjugate gradient iterations for the Gauss-Newton equations
_FORCING = 1e-3  # of the right side's norm, where they stop earlier
_DEPENDENT = 1e-10  # of the largest eigenvalue of B^T B, columns scaled: directions below are dropped
_LINK_STEPS = 4  # Gauss-Newton steps for the shift inside a link


class Sensing:
    """A factor on its way down the loss on some samples.

    Parameters
    ----------
    samples : Samples
    factor : Factor
        The start, with at least one column.
    previous : ndarray of float64, shape (D, p)
        The last step, p = 0 if there is none.
    latent_bytes : float
        For latents. Where those of all samples do not fit, those of every second, third, ... sample are kept
        for the Gauss-Newton equations, and the others computed when needed: two passes a step.
    space : Space
        The inner product of the ridge.

    Attributes
    ----------
    factor : Factor
    previous : ndarray of float64, shape (D, K)
    n_steps : int
        Steps taken.
    error : float
        Mean squared residual.
    mean_square_slope : float
        Mean of g'^2.
    """

    def __init__(
        self,
        samples: Samples,
        factor: Factor,
        previous: Array,
        latent_bytes: float,
        space: Space = PLAIN,
    ) -> None:
        self.space = space
        self.samples, self.factor, self.previous = samples, factor, previous
        self.n_steps = 0
        width = 2 * len(factor.signs) + previous.shape[1]
        row_bytes = width * samples.dtype.itemsize
        self._stride = max(1, int(np.ceil(samples.n * row_bytes / latent_bytes)))
        self._n_kept = -(-samples.n // self._stride)
        check_memory(24 * samples.n_packed * width, f"{width} vectors of {samples.n_packed} entries")
        self.shares = samples.shares.derive(LatentShare, factor.signs, width, self._stride)
        self.shares.each(LatentShare.fill, samples.columns(np.hstack([factor.W, previous])))
        self._settle()

    @property
    def h(self) -> Array:
        """The combination of latents of every sample, (n,)."""
        return by_part(self.shares.each(LatentShare.combined))

    def step(self, ridge: float) -> None:
        """Move the factor: one backward and one forward product.

        Parameters
        ----------
        ridge : float
            mu of the loss, above 0.
        """
        G = self._gradient(ridge)
        direction = self.space.directions(G)
        B = np.hstack([self.factor.W, self.previous, direction])
        self._append(direction)
        A = self._gauss_newton(B, B.T @ G, ridge)
        self._move(B @ A, A, ridge)
        self._settle()
        self.n_steps += 1

    def relink(self, factor: Factor, scale: float) -> None:
        """Take over the factor with another link, for which h was multiplied by `scale`."""
        if scale != 1.0:
            self.shares.each(LatentShare.rescale, scale)
        self.factor = factor
        self._settle()

    # --- the parts of a step -------------------------------------------------------------------------------

    def _append(self, G: Array) -> None:
        """Compute the latents of the gradient."""
        self.samples.work.products += self._n_kept
        self.shares.each(LatentShare.append, np.ascontiguousarray(G, dtype=self.samples.dtype))

    def _gradient(self, ridge: float) -> Array:
        """Return (2/n) Phi^T (g' r u s) + mu W, shape (D, K)."""
        W, samples = self.factor.W, self.samples
        samples.work.products += samples.n * (1 if self._stride == 1 else 2)
        G = self.shares.sum(LatentShare.gradient, np.ascontiguousarray(W, dtype=samples.dtype))
        return np.asarray(G * (2.0 / samples.n) + ridge * self.space.apply(W))

    def _gauss_newton(self, B: Array, gradient: Array, ridge: float) -> Array:
        """Return A (w, K) that about minimises the loss, linearised in B A; `gradient` is B^T G.

        The unknowns are coordinates in an orthonormal basis B C of the span, where latents are nearly
        uncorrelated: the Gram matrix of T alone is a preconditioner. The shift is eliminated, by projecting
        J, the derivatives of the predictions, off the slopes.
        """
        C = _orthonormalising(B, self.space)
        gram, means = self._first_sweep()
        inverse = np.linalg.inv(gram + (ridge + 1e-7 * np.trace(gram)) * np.eye(len(gram)))

        def normal(Y: Array) -> Array:
            A = C @ Y
            product = self._second_derivative(A) - means * np.sum(means * A)
            return np.asarray(C.T @ product + ridge * Y)

        return np.asarray(C @ _conjugate_gradients(normal, -(C.T @ gradient), inverse))

    def _first_sweep(self) -> tuple[Array, Array]:
        """Return T^T T / n, (K, K), and J^T of the unit vector along the slopes over sqrt n, (w, K)."""
        gram, means, total = self.shares.sum(LatentShare.first_sweep)
        return gram / self._n_kept, means / np.sqrt((float(total[0]) or 1.0) * self._n_kept)

    def _second_derivative(self, A: Array) -> Array:
        """Return J^T J A / n, shape (w, K)."""
        product: Array = self.shares.sum(LatentShare.second_derivative, A.astype(self.samples.dtype))
        return product / self._n_kept

    def _move(self, P: Array, A: Array, ridge: float) -> None:
        """Go to the best point along P = B A."""
        W, n = self.factor.W, self.samples.n
        cast = A.astype(self.samples.dtype)
        columns = cast[:0] if self._stride == 1 else self.samples.columns(np.hstack([W, P]))
        pull, squares, sum_b = self.shares.sum(LatentShare.turn, cast, columns).tolist()
        rough = self.space.apply(P)
        penalty = ridge * float(np.sum(W * rough)), ridge * float(np.sum(P * rough))
        shift = -pull / (squares or 1.0)  # what the linearised loss wants
        if self.factor.link.name == "identity":
            t = _quartic_minimum(self.shares.sum(LatentShare.quartic, shift, sum_b / n), n, penalty)
        else:
            t = self._searched(shift, penalty)
        self.shares.each(LatentShare.move, cast, t)
        self.factor = replace(self.factor, W=W + t * P, shift=self.factor.shift + t * shift)
        self.previous = P

    def _searched(self, shift: float, penalty: tuple[float, float]) -> float:
        """Return the step length for a link: about the best in (0, 2), shortened until the loss is lower."""
        factor, n = self.factor, self.samples.n

        def loss(t: float) -> float:
            squares = self.shares.sum(LatentShare.loss, factor.link, factor.shift, shift, t)
            return float(squares[0]) / (2.0 * n) + t * penalty[0] + 0.5 * t * t * penalty[1]

        now = loss(0.0)
        t = float(minimize_scalar(loss, bounds=(0.0, 2.0), method="bounded", options={"xatol": 0.02}).x)
        while not loss(t) < now:
            t /= 4.0
            if t < 1e-6:
                return 0.0
        return t

    def _settle(self) -> None:
        """Set the shift to its best value, and residuals, slopes and error with it."""
        link, n = self.factor.link, self.samples.n
        if link.name == "identity":
            shift = float(self.shares.sum(LatentShare.misfit)[0]) / n
        else:
            shift = self._best_shift()
        self.factor = replace(self.factor, shift=shift)
        errors, slopes = self.shares.sum(LatentShare.settle, link, shift).tolist()
        self.error, self.mean_square_slope = errors / n, slopes / n

    def _best_shift(self) -> float:
        """Return the shift inside a link after some Gauss-Newton steps, if they lower the error."""
        best = shift = self.factor.shift
        smallest = np.inf
        for _ in range(_LINK_STEPS):
            error, pull, slopes = self.shares.sum(LatentShare.shift_sums, self.factor.link, shift).tolist()
            if not error < smallest:
                break
            best, smallest = shift, error
            shift -= pull / (slopes or 1.0)
        return best


def _orthonormalising(B: Array, space: Space = PLAIN) -> Array:
    """Return C (w, m) with B C orthonormal, of the span of B but for directions of rounding."""
    gram = B.T @ space.apply(B)
    norms = np.sqrt(np.diag(gram))
    scale = np.where(norms > 0.0, norms, 1.0)
    values, V = np.linalg.eigh(gram / np.outer(scale, scale))
    kept = values > _DEPENDENT * values[-1]
    return np.asarray(V[:, kept] / np.sqrt(values[kept]) / scale[:, np.newaxis])


def _conjugate_gradients(apply: Callable[[Array], Array], right: Array, inverse: Array) -> Array:
    """Solve apply(Y) = right to a few digits; the preconditioner multiplies by `inverse` from the right."""
    Y, residual = np.zeros(right.shape), right
    direction = preconditioned = residual @ inverse
    size = first = float(np.sum(residual * preconditioned))
    for _ in range(_INNER):
        if size <= _FORCING**2 * first:
            break
        product = apply(direction)
        length = size / float(np.sum(direction * product))
        Y = Y + length * direction
        residual = residual - length * product
        preconditioned = residual @ inverse
        last, size = size, float(np.sum(residual * preconditioned))
        direction = preconditioned + (size / last) * direction
    return Y


def _quartic_minimum(sums: Array, n: int, penalty: tuple[float, float]) -> float:
    """Return the t that minimises (1/2n) |r + t a + t^2 b|^2 + penalty_0 t + penalty_1 t^2 / 2.

    `sums` are those of b b, a b, a a, r b and a r.
    """
    bb, ab, aa, rb, ar = sums.tolist()
    coefficients = [
        bb / (2.0 * n),
        ab / n,
        (aa / 2.0 + rb) / n + penalty[1] / 2.0,
        ar / n + penalty[0],
        0.0,
    ]
    roots = np.roots(np.polyder(coefficients))
    real = roots.real[np.abs(roots.imag) <= 1e-8 * np.abs(roots)]
    return float(real[np.argmin(np.polyval(coefficients, real))]) if len(real) else 0.0
