"""Data and metrics, no models."""
