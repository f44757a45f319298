"""Sentences that the notes of several studies' claims share: what was changed after the results were known."""

GATE = (
    "The gates were added after the results were known; they can only take a verdict away, for a claim or against it."
)
SIGN = (
    "The claim is one of direction: the sign was made a check of its own after the results were known, when only our "
    "margin, now called size, had been asked for."
)
