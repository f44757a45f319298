"""Existing networks with their norms, and what stands beside them, changed."""

from normplace.convert.insert import InsertedScale, Insertions, insert, insertions

__all__ = ["InsertedScale", "Insertions", "insert", "insertions"]
