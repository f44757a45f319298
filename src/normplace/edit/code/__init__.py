"""Read and rewrite the source of a model's methods."""
