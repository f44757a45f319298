"""Regression inside and outside the training data: toy functions, proteins by size, faces by group."""

from normplace.lab.tasks.regression.shifted import Regression, ShiftedRegression, Standardizer, hold_out, r_squared

__all__ = ["Regression", "ShiftedRegression", "Standardizer", "hold_out", "r_squared"]
