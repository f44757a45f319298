"""Compute norms and residual sums in one pass each."""
