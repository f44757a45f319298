"""Thousands of models to audit: where they come from, and how each is made small enough to run."""


def failure(error: Exception) -> str:
    """The type and the first line of an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
