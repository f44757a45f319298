"""Sentences that the notes of several studies' claims share."""

OURS = "our question"
"""The source of a claim that no paper makes."""
GATE = "The gates were added after the results were known; a gate can only withdraw a verdict."
SIGN = (
    "The claim is about a direction. The check of the sign was added after the results were known; until then only the "
    "margin that we chose was tested, which is now the size check."
)
