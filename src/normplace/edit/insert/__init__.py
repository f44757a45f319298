"""Insert topology scales at the norms of a model."""
