"""Published numbers, and where they come from."""

PAPER = "arXiv 2502.02732"
SECOND_HAND = f"{PAPER}, as reported by summaries"
"""The source of claims that we know from summaries of the paper."""
BENCHMARKS = {"400M": {"post": 42.45, "pre": 49.69, "peri": 51.57}}
"""Average score in percent over ARC-Easy, HellaSwag, PIQA, SIQA and WinoGrande, as summaries of the paper report it."""
BENCHMARK_SPREAD = {"400M": {"post": (1.09, 2.35), "pre": (1.63, 2.35), "peri": (0.67, 0.81)}}
"""Smallest and largest standard deviation over seeds of a benchmark's score, as summaries of the paper report it."""
LOSS = {"400M": {"peri": 3.34}}
"""Loss on C4 in nats per token, as summaries of the paper report it; that of Pre-LN has no source that we trust."""
DIVERGED = {"400M": {"pre": "1 to 2 of 5 seeds", "peri": "0 of 5 seeds"}}
"""Runs that diverged, as one summary of the paper reports it."""
HALF_PRECISION = {"400M": {"pre": "exceeded within 0.5 billion tokens", "peri": "kept"}}
"""Range of fp16, as one summary of the paper reports it."""
