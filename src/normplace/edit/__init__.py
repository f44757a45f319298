"""Edit existing models. An edit works on a copy, verifies it, and reports what it did.

Each edit is one file (``insert``, ``accelerate``) or a few with a common prefix (``move``, ``swap``, ``fold``,
``fuse``). They share:

- ``copying``: copy a model.
- ``model_map``, ``projections``, ``layer_numbers``: where an analysed model can be edited.
- ``editor``, ``attachments``, ``rewrite``, ``recompile``, ``modules``, ``new_norms``: change the model.
- ``verify_numbers``, ``verify_gradients``, ``capture``: check the result.
- ``changes``, ``input_spec``: the record of an edit.
- ``files``, ``replay``, ``pretrained``, ``save_guard``: save and load edited models.
"""

from normplace.analysis.signal_probe.probe import compare
from normplace.analysis.signal_probe.results import Comparison
from normplace.edit.accelerate import accelerate, unaccelerate
from normplace.edit.changes import Change, Changes, Fusion, changes
from normplace.edit.files import load, save
from normplace.edit.fold import fold
from normplace.edit.fold_undo import unfold
from normplace.edit.fuse import fuse, plan_fusion
from normplace.edit.fuse_edit import unfuse
from normplace.edit.fused_callback import FusedCallback
from normplace.edit.insert import InsertedScale, Insertions, insert, insertions
from normplace.edit.move import move
from normplace.edit.pretrained import from_pretrained, save_pretrained
from normplace.edit.swap import swap
from normplace.edit.swap_modules import set_strength
from normplace.edit.swap_undo import finish_swap, unswap

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
