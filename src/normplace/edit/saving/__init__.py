"""Save and load edited models."""
