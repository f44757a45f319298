"""Edit existing models. An edit works on a copy, verifies it, and reports what it did.

Each edit is one file (``insert``) or a few with a common prefix (``move``, ``fuse``), built from shared parts:

- ``copying``: copy a model.
- ``model_map``, ``projections``, ``layer_numbers``: where an analysed model can be edited.
- ``editor``, ``attachments``, ``rewrite``, ``recompile``, ``modules``, ``new_norms``: change the model.
- ``verify_numbers``, ``verify_gradients``, ``capture``: check the result.
- ``changes``, ``input_spec``: the record of an edit.
- ``files``, ``pretrained``, ``save_guard``: save and load edited models.
"""

from normplace.analysis.signal_probe.probe import compare
from normplace.analysis.signal_probe.results import Comparison
from normplace.edit.changes import Change, Changes, Fusion, changes
from normplace.edit.files import load, save
from normplace.edit.fuse import fuse, plan_fusion
from normplace.edit.fuse_edit import unfuse
from normplace.edit.insert import InsertedScale, Insertions, insert, insertions
from normplace.edit.move import move
from normplace.edit.pretrained import from_pretrained, save_pretrained

__all__ = [
    "Change",
    "Changes",
    "Comparison",
    "Fusion",
    "InsertedScale",
    "Insertions",
    "changes",
    "compare",
    "from_pretrained",
    "fuse",
    "insert",
    "insertions",
    "load",
    "move",
    "plan_fusion",
    "save",
    "save_pretrained",
    "unfuse",
]
