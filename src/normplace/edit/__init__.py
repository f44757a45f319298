"""Existing networks with their norms, and what stands beside them, changed."""

from normplace.analysis.signal_probe.compare import BlockSignals, Comparison, Signals, compare
from normplace.edit.changes import Change, Changes, changes
from normplace.edit.files import load, save
from normplace.edit.insert import InsertedScale, Insertions, insert, insertions
from normplace.edit.move import move
from normplace.edit.pretrained import from_pretrained, save_pretrained

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
