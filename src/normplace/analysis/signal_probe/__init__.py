"""Activation and gradient statistics at every depth of a network."""
