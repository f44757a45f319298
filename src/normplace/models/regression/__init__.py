"""Regression on tabular data with a network that stays bounded outside its data."""
