"""The paper."""

PAPER = "arXiv 2406.16168"
