"""The eigensolvers behind `top_eigenpairs`, and what they share."""
