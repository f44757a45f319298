"""Sequence tasks: copying, look-up, recall, images, text and straight lines."""

from normplace.lab.tasks.sequences.batch import IGNORE, AnswerAccuracy, Batch, SequenceTask, answer_accuracy
from normplace.lab.tasks.sequences.copying import FixedCopy
from normplace.lab.tasks.sequences.images import ImageData, PixelSequences, load_images
from normplace.lab.tasks.sequences.recall import Recall, RecallCurriculum
from normplace.lab.tasks.sequences.strings import StringTask, decode, encode
from normplace.lab.tasks.sequences.text import Text, load_text

__all__ = [
    # Interface
    "SequenceTask",
    "Batch",
    "IGNORE",
    "AnswerAccuracy",
    "answer_accuracy",
    # Copying and look-up
    "FixedCopy",
    "StringTask",
    "decode",
    "encode",
    # Recall
    "Recall",
    "RecallCurriculum",
    # Images
    "ImageData",
    "PixelSequences",
    "load_images",
    # Text
    "Text",
    "load_text",
]
