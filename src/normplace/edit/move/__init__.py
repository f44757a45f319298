"""Move the norms of a model to another placement."""
