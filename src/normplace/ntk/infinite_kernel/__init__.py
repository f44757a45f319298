"""Tangent and Gaussian-process kernels of infinitely wide fully connected networks."""
