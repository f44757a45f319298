"""Edit existing models. An edit works on a copy, verifies it, and reports what it did.

The edits are ``move``, ``swap``, ``fold``, ``fuse``, ``insert`` and ``accelerate``. They share:

- ``model``: copy a model, find where it can be edited, attach and build modules.
- ``code``: read and rewrite the source of its methods.
- ``verify``: check the result by numbers and gradients.
- ``record``: what an edit did.
- ``saving``: files of edited models.
"""

from normplace.analysis.signal_probe.probe import compare
from normplace.analysis.signal_probe.results import Comparison
from normplace.edit.accelerate import accelerate, unaccelerate
from normplace.edit.fold.api import fold
from normplace.edit.fold.undo import unfold
from normplace.edit.fuse.api import fuse, plan_fusion
from normplace.edit.fuse.apply import unfuse
from normplace.edit.fuse.callback import FusedCallback
from normplace.edit.insert.api import InsertedScale, Insertions, insert, insertions
from normplace.edit.move.api import move
from normplace.edit.record.changes import Change, Changes, Fusion, changes
from normplace.edit.saving.files import load, save
from normplace.edit.saving.pretrained import from_pretrained, save_pretrained
from normplace.edit.swap.api import swap
from normplace.edit.swap.modules import set_strength
from normplace.edit.swap.undo import finish_swap, unswap

__all__ = [
    "Change",
    "Changes",
    "Comparison",
    "FusedCallback",
    "Fusion",
    "InsertedScale",
    "Insertions",
    "accelerate",
    "changes",
    "compare",
    "finish_swap",
    "fold",
    "from_pretrained",
    "fuse",
    "insert",
    "insertions",
    "load",
    "move",
    "plan_fusion",
    "save",
    "save_pretrained",
    "set_strength",
    "swap",
    "unaccelerate",
    "unfold",
    "unfuse",
    "unswap",
]
