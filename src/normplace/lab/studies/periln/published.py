"""The paper."""

PAPER = "arXiv 2502.02732"
SECOND_HAND = f"{PAPER}, as reported by summaries"
"""The source of claims that we know from summaries of the paper."""
