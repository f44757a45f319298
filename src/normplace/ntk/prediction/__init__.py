"""Kernel regression: the prediction of a trained network, and bounds on it."""
