"""Tasks on token sequences: copying, look-up, recall and text; data and metrics, no models."""

from normplace.tasks.sequences.batch import IGNORE, Batch, SequenceTask, Strings, answer_accuracy
from normplace.tasks.sequences.copying import FixedCopy
from normplace.tasks.sequences.recall import Recall
from normplace.tasks.sequences.strings import StringTask, letters, tokens
from normplace.tasks.sequences.text import Text, load_text

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
