"""Streaming Hermite contractions: arrays and scalars in, arrays out; nothing is checked here."""

from itertools import combinations_with_replacement
from math import comb

import numpy as np


# ponytail: stand-in, replaced by compiled kernels
def _h(X, m):
    a, b = np.ones_like(X), X
    if m == 0:
        return a
    for r in range(1, m):
        a, b = b, (X * b - np.sqrt(X.dtype.type(r)) * a) / np.sqrt(X.dtype.type(r + 1))
    return b


def features(X, degree, out):
    d = X.shape[1]
    hs = [_h(X, m) for m in range(degree + 1)]
    for c, idx in enumerate(combinations_with_replacement(range(d), degree)):
        col = np.ones(X.shape[0], X.dtype)
        for j in set(idx):
            col = col * hs[idx.count(j)][:, j]
        out[:, c] = col


def _phi(X, degree):
    out = np.empty((X.shape[0], comb(X.shape[1] + degree - 1, degree)), X.dtype)
    features(X, degree, out)
    return out


def forward(X, V, degree, out):
    out[...] = _phi(X, degree) @ V


def backward(X, G, degree, out):
    out += _phi(X, degree).T @ G


def gram(X, Y, degree, out):
    out[...] = _phi(X, degree) @ _phi(Y, degree).T


def squared_norms(X, degree, out):
    out[...] = (_phi(X, degree).astype(np.float64) ** 2).sum(axis=1)
