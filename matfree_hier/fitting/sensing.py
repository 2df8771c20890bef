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
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from matfree_hier.fitting.factor import weighted_products
from matfree_hier.packing import check_memory
from matfree_hier.solvers.space import PLAIN, Space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matfree_hier.fitting.factor import Factor, Samples

Array: TypeAlias = NDArray[np.float64]

_BLOCK = 4096  # rows of latents taken at once: they stay in the cache
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
        n_kept = -(-samples.n // self._stride)
        check_memory(n_kept * row_bytes + 40 * samples.n, f"Latents of {n_kept} samples")
        check_memory(24 * samples.n_packed * width, f"{width} vectors of {samples.n_packed} entries")
        self._L = np.empty((n_kept, width), samples.dtype)  # of the factor, the last step, the gradient
        self.h = np.empty(samples.n)
        self._fill()
        self._settle()

    @property
    def mean_square_slope(self) -> float:
        """Mean of g'^2."""
        return float(self._slopes @ self._slopes) / self.samples.n

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
            self.h *= scale
            self._L[:, : len(factor.signs)] *= self._L.dtype.type(np.sqrt(scale))
        self.factor = factor
        self._settle()

    # --- latents -------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Compute h, and the latents of the factor and of the last step."""
        B = np.ascontiguousarray(np.hstack([self.factor.W, self.previous]), dtype=self.samples.dtype)
        for rows, X in self.samples.inputs():
            U = self.samples.forward(X, B)
            kept, inside = self._kept(rows)
            self._L[kept, : B.shape[1]] = U[inside]
            self.h[rows] = self.factor.combine(U[:, : len(self.factor.signs)])

    def _append(self, G: Array) -> None:
        """Compute the latents of the gradient, the last columns."""
        G = np.ascontiguousarray(G, dtype=self.samples.dtype)
        for rows, X in self.samples.inputs():
            kept, inside = self._kept(rows)
            self._L[kept, -G.shape[1] :] = self.samples.forward(np.ascontiguousarray(X[inside]), G)

    def _kept(self, rows: slice) -> tuple[slice, slice]:
        """Return where the kept ones of these rows are, and which of the rows they are."""
        first = -(-rows.start // self._stride)
        inside = slice(first * self._stride - rows.start, None, self._stride)
        return slice(first, -(-rows.stop // self._stride)), inside

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[Any], Array]]:
        """Yield blocks of kept latents, (m, w), of T = 2 g' s u, (m, K), and of slopes g', (m,).

        The prediction changes by T . du when the factor's latents change by du.
        """
        slopes = self._slopes[:: self._stride]
        signs = (2.0 * self.factor.signs).astype(self._L.dtype)
        for start in range(0, len(self._L), _BLOCK):
            L, slope = self._L[start : start + _BLOCK], slopes[start : start + _BLOCK]
            yield L, L[:, : len(signs)] * signs * slope[:, np.newaxis].astype(L.dtype), slope

    # --- the parts of a step -------------------------------------------------------------------------------

    def _gradient(self, ridge: float) -> Array:
        """Return (2/n) Phi^T (g' r u s) + mu W, shape (D, K)."""
        W, signs = self.factor.W, self.factor.signs.astype(self.samples.dtype)
        weights = (self._slopes * self._residuals).astype(self.samples.dtype)[:, np.newaxis]
        columns = np.ascontiguousarray(W, dtype=self.samples.dtype)
        G = np.zeros(W.shape)
        for rows, X in self.samples.inputs():
            U = self._L[rows, : len(signs)] if self._stride == 1 else self.samples.forward(X, columns)
            self.samples.backward(X, weights[rows] * U * signs, G)
        return np.asarray(G * (2.0 / self.samples.n) + ridge * self.space.apply(W))

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
        k = len(self.factor.signs)
        gram, means, total = np.zeros((k, k)), np.zeros((self._L.shape[1], k)), 0.0
        for L, T, slopes in self._blocks():
            gram += T.T @ T
            means += L.T @ (T * slopes[:, np.newaxis].astype(T.dtype))
            total += float(slopes @ slopes)
        return gram / len(self._L), means / np.sqrt((total or 1.0) * len(self._L))

    def _second_derivative(self, A: Array) -> Array:
        """Return J^T J A / n, shape (w, K)."""
        A = A.astype(self._L.dtype)
        product = np.zeros(A.shape)
        for L, T, _ in self._blocks():
            change = np.einsum("ik,ik->i", T, L @ A)
            product += L.T @ (T * change[:, np.newaxis])
        return product / len(self._L)

    def _move(self, P: Array, A: Array, ridge: float) -> None:
        """Go to the best point along P = B A."""
        a, b = self._changes(P, A)
        W = self.factor.W
        rough = self.space.apply(P)
        penalty = ridge * float(np.sum(W * rough)), ridge * float(np.sum(P * rough))
        squares = self._slopes**2
        shift = -float(squares @ a) / (float(squares.sum()) or 1.0)  # what the linearised loss wants
        if self.factor.link.name == "identity":
            t = _quartic_minimum(self._residuals, a + shift, b - b.mean(), penalty)
        else:
            t = self._searched(a + shift, b, penalty)
        self.h += t * a + t * t * b
        self.factor = replace(self.factor, W=W + t * P, shift=self.factor.shift + t * shift)
        self._update(A.astype(self._L.dtype), t)
        self.previous = P

    def _changes(self, P: Array, A: Array) -> tuple[Array, Array]:
        """Return a and b of h(t) = h + t a + t^2 b along P = B A."""
        signs = self.factor.signs
        a, b = np.empty(self.samples.n), np.empty(self.samples.n)
        for rows, U, V in self._along(P, A.astype(self._L.dtype)):
            a[rows] = 2.0 * weighted_products(U, V, signs)
            b[rows] = weighted_products(V, V, signs)
        return a, b

    def _along(self, P: Array, A: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
        """Yield rows, the factor's latents and those of P = B A."""
        k = P.shape[1]
        if self._stride == 1:
            for start in range(0, len(self._L), _BLOCK):
                L = self._L[start : start + _BLOCK]
                yield slice(start, start + len(L)), L[:, :k], L @ A
        else:
            for rows, U in self.samples.latents(np.hstack([self.factor.W, P])):
                yield rows, U[:, :k], U[:, k:]

    def _update(self, A: NDArray[Any], t: float) -> None:
        """Bring the kept latents of the factor and of the last step up to date."""
        k = A.shape[1]
        new = self._L
        if new.shape[1] != 3 * k:  # the last step had another number of columns
            new = np.empty((len(self._L), 3 * k), self._L.dtype)
        for start in range(0, len(self._L), _BLOCK):
            rows = slice(start, start + _BLOCK)
            V = self._L[rows] @ A
            new[rows, :k] = self._L[rows, :k] + self._L.dtype.type(t) * V
            new[rows, k : 2 * k] = V
        self._L = new

    def _searched(self, a: Array, b: Array, penalty: tuple[float, float]) -> float:
        """Return the step length for a link: about the best in (0, 2), shortened until the loss is lower."""
        link, y, h = self.factor.link, self.samples.y, self.h + self.factor.shift

        def loss(t: float) -> float:
            r = link(h + t * a + t * t * b) - y
            return float(r @ r) / (2.0 * len(y)) + t * penalty[0] + 0.5 * t * t * penalty[1]

        now = loss(0.0)
        t = float(minimize_scalar(loss, bounds=(0.0, 2.0), method="bounded", options={"xatol": 0.02}).x)
        while not loss(t) < now:
            t /= 4.0
            if t < 1e-6:
                return 0.0
        return t

    def _settle(self) -> None:
        """Set the shift to its best value, and residuals, slopes and error with it."""
        link, y = self.factor.link, self.samples.y
        shift = float(np.mean(y - self.h)) if link.name == "identity" else self._best_shift()
        self.factor = replace(self.factor, shift=shift)
        self._residuals = link(self.h + shift) - y
        self._slopes = link.derivative(self.h + shift)
        self.error = float(self._residuals @ self._residuals) / len(y)

    def _best_shift(self) -> float:
        """Return the shift inside a link after some Gauss-Newton steps, if they lower the error."""
        link, y = self.factor.link, self.samples.y
        best = shift = self.factor.shift
        smallest = np.inf
        for _ in range(_LINK_STEPS):
            r = link(self.h + shift) - y
            if not float(r @ r) < smallest:
                break
            best, smallest = shift, float(r @ r)
            slopes = link.derivative(self.h + shift)
            shift -= float(slopes @ r) / (float(slopes @ slopes) or 1.0)
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


def _quartic_minimum(r: Array, a: Array, b: Array, penalty: tuple[float, float]) -> float:
    """Return the t that minimises (1/2n) |r + t a + t^2 b|^2 + penalty_0 t + penalty_1 t^2 / 2."""
    n = len(r)
    coefficients = [
        float(b @ b) / (2.0 * n),
        float(a @ b) / n,
        (float(a @ a) / 2.0 + float(r @ b)) / n + penalty[1] / 2.0,
        float(a @ r) / n + penalty[0],
        0.0,
    ]
    roots = np.roots(np.polyder(coefficients))
    real = roots.real[np.abs(roots.imag) <= 1e-8 * np.abs(roots)]
    return float(real[np.argmin(np.polyval(coefficients, real))]) if len(real) else 0.0
