"""Published numbers, and where they come from."""

PAPER = "arXiv 2502.02732"
SECOND_HAND = f"{PAPER}, as reported by summaries"
"""The source of claims that we know from summaries of the paper."""
BENCHMARKS = {"400M": {"pre": 49.69, "peri": 51.57}}
"""Average score in percent over ARC-Easy, HellaSwag, PIQA, SIQA and WinoGrande, as summaries of the paper report it."""
