"""Energy-model features of natural-image patches, recovered with and without smoothness over the pixel grid.

    python -m matfree_hier.bench.image_patches [FIGURE.png]

Patches of scikit-learn's two photographs (china.jpg and flower.jpg) are whitened and brought to one contrast.
A cell of the energy model answers with the squares of two Gabor filters in quadrature, less those of two
others, and noise: y = sum_k w_k h_k^2 + noise, h_k = <a_k, x>. The estimator of degree 1 looks for the a_k;
with `smoothness` it takes neighbouring pixels to act alike, in the spectral start and in the refinement. That
refinement matters: whitened patches are far from Gaussian, and the spectral start alone stays near half.
"""

from __future__ import annotations

import sys

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_images

import matfree_hier as mh

SIDE, N_PATCHES, TAU = 12, 1500, 1.0
WEIGHTS = np.array([0.5, 0.5, -0.5, -0.5])


def patches(n: int, rng: np.random.Generator) -> np.ndarray:
    """Return n whitened patches of standard contrast, shape (n, SIDE^2)."""
    images = [image.mean(axis=2) for image in load_sample_images().images]
    rows = np.empty((n, SIDE * SIDE))
    for i in range(n):
        image = images[i % len(images)]
        top, left = (rng.integers(size - SIDE + 1) for size in image.shape)
        rows[i] = image[top : top + SIDE, left : left + SIDE].ravel()
    rows -= rows.mean(axis=0)
    values, vectors = np.linalg.eigh(rows.T @ rows / n)
    rows = rows @ (vectors / np.sqrt(values + 1e-4 * values.max())) @ vectors.T
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True) * SIDE)


def gabor_pairs() -> np.ndarray:
    """Return the rows a_k, two pairs of Gabor filters in quadrature, shape (4, SIDE^2), orthonormal."""
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    rows = []
    for angle in (np.pi / 6, 2 * np.pi / 3):
        along = x * np.cos(angle) + y * np.sin(angle)
        envelope = np.exp(-(x**2 + y**2) / (2 * 2.5**2))
        rows += [envelope * wave(2 * np.pi * along / 8.0) for wave in (np.cos, np.sin)]
    return np.linalg.qr(np.array([row.ravel() for row in rows]).T)[0].T


def recovered(X: np.ndarray, y: np.ndarray, tau: float) -> np.ndarray:
    """Return four features, shape (4, SIDE^2)."""
    model = mh.HierarchicalSpectralRegressor(
        degree=1,
        n_features=4,
        smoothness=tau,
        graph=(SIDE, SIDE),
        prepare="none",
        linear=False,
        link="identity",
    )
    return model.fit(X, y).features_


def main(path: str) -> None:
    """Recover, print the overlaps, draw the features."""
    rng = np.random.default_rng(2026)
    X, A = patches(N_PATCHES, rng), gabor_pairs()
    signal = (X @ A.T) ** 2 @ WEIGHTS
    y = signal + signal.std() * rng.standard_normal(N_PATCHES)
    found = {"true": A} | {f"tau = {tau:g}": recovered(X, y, tau) for tau in (0.0, TAU)}
    figure = Figure(figsize=(6, 4.8), layout="constrained")
    axes = figure.subplots(len(found), len(A), squeeze=False)
    for row, (name, features) in zip(axes, found.items(), strict=True):
        overlaps = mh.recovery.overlaps(features, A)
        print(f"{name:>8}: overlaps {' '.join(f'{o:.3f}' for o in overlaps)}, mean {overlaps.mean():.3f}")
        # Eigenvectors of a pair may be turned: show what of the span found is nearest to each true feature.
        shown = (A @ features.T) @ features
        for axis, feature in zip(row, shown, strict=True):
            limit = np.abs(feature).max()
            axis.imshow(feature.reshape(SIDE, SIDE), cmap="RdBu_r", vmin=-limit, vmax=limit)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name if name == "true" else f"{name}\noverlap {overlaps.mean():.2f}")
    figure.savefig(path, dpi=120)
    print(f"written: {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "image_patches.png")
