"""Recover the latent features of a hierarchical model from samples, matrix-free."""

__version__ = "0.1.0"
