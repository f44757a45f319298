"""Existing networks with their norms, and what stands beside them, changed."""

from normplace.convert.changes import Change, Changes, changes
from normplace.convert.compare import BlockSignals, Comparison, Signals, compare
from normplace.convert.files import load, save
from normplace.convert.insert import InsertedScale, Insertions, insert, insertions
from normplace.convert.move import move
from normplace.convert.pretrained import from_pretrained, save_pretrained

__all__ = [
    "BlockSignals",
    "Change",
    "Changes",
    "Comparison",
    "InsertedScale",
    "Insertions",
    "Signals",
    "changes",
    "compare",
    "from_pretrained",
    "insert",
    "insertions",
    "load",
    "move",
    "save",
    "save_pretrained",
]
