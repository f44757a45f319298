"""Tasks on token sequences: copying, look-up, recall and text; data and metrics, no models."""

from normplace.lab.tasks.sequences.batch import IGNORE, Batch, SequenceTask, Strings, answer_accuracy
from normplace.lab.tasks.sequences.copying import FixedCopy
from normplace.lab.tasks.sequences.recall import Recall
from normplace.lab.tasks.sequences.strings import StringTask, letters, tokens
from normplace.lab.tasks.sequences.text import Text, load_text

__all__ = [
    # What every task gives
    "SequenceTask",
    "Batch",
    "IGNORE",
    "Strings",
    "answer_accuracy",
    # Copying and look-up
    "FixedCopy",
    "StringTask",
    "letters",
    "tokens",
    # Recall
    "Recall",
    # Text
    "Text",
    "load_text",
]
