"""Replace the norms of a model by another type."""
