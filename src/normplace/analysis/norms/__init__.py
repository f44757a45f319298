"""Find norms by their arithmetic."""
