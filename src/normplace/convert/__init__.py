"""Existing networks with their norms, and what stands beside them, changed."""

from normplace.convert.changes import Change, Changes, changes
from normplace.convert.files import load, save
from normplace.convert.insert import InsertedScale, Insertions, insert, insertions
from normplace.convert.move import move

__all__ = [
    "Change",
    "Changes",
    "InsertedScale",
    "Insertions",
    "changes",
    "insert",
    "insertions",
    "load",
    "move",
    "save",
]
