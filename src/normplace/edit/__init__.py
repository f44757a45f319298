"""Existing networks with their norms, and what stands beside them, changed."""

from normplace.analysis.signal_probe.probe import compare
from normplace.analysis.signal_probe.results import Comparison
from normplace.edit.changes import Change, Changes, changes
from normplace.edit.files import load, save
from normplace.edit.insert import InsertedScale, Insertions, insert, insertions
from normplace.edit.move import move
from normplace.edit.pretrained import from_pretrained, save_pretrained

__all__ = [
    "Change",
    "Changes",
    "Comparison",
    "InsertedScale",
    "Insertions",
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
