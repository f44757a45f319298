"""The paper's benchmark scores, and the losses measured here, which are no substitute for them."""

from __future__ import annotations

from normplace.lab.studies.estimates import estimate_text, seeds_text
from normplace.lab.studies.periln import initialization, training
from normplace.lab.studies.periln.measures import at_best_rate
from normplace.lab.studies.periln.published import BENCHMARKS
from normplace.lab.trials.per_seed import PerSeed, Records
from normplace.lab.trials.study import Headline


def _lead(records: Records, part: str, **variant: object) -> PerSeed:
    """Bits per byte by which Peri-LN is below Pre-LN, each at its best learning rate."""
    pre, peri = (at_best_rate(part, "bits_per_byte", placement=placement, **variant) for placement in ("pre", "peri"))
    return (pre - peri)(records)


def measured(records: Records) -> str | None:
    """Held-out loss of 24-layer networks by initial weights; of the smallest networks if there are no others."""
    starts = {
        "Xavier weights": _lead(records, initialization.PART.name, start="xavier"),
        "depth-scaled weights": _lead(records, initialization.PART.name, start="depth"),
    }
    if all(starts.values()):
        texts = [f"{estimate_text(lead, '+.2f')} from {name}" for name, lead in starts.items()]
        network, result, seeds = "24 layers", ", ".join(texts), seeds_text(starts["Xavier weights"])
    else:
        lead = _lead(records, training.PART.name, size="tiny")
        if not lead:
            return None
        network, result, seeds = "6 layers of width 32", estimate_text(lead, "+.3f"), seeds_text(lead)
    return f"no benchmark score; bits per byte, Pre-LN minus Peri-LN, {network}: {result} ({seeds})"


HEADLINE = Headline(
    figure="Variance of the stream over depth and training, tiny",
    sentence="Norms before and after each sublayer (Peri-LN) let the variance of the stream grow linearly with depth, "
    "keep gradients even, and train more stably than Pre-LN and Post-LN.",
    published="Average score {peri} with Peri-LN, {pre} with Pre-LN on five benchmarks at 400 million parameters and "
    "30 billion tokens (from summaries of the paper)".format(**BENCHMARKS["400M"]),
    measured=measured,
    conditions="Not comparable: our networks read at most 4.2 million bytes, too few for the paper's benchmarks. Which "
    "placement has the lower loss depends on the initial weights, which the summaries do not give. We reproduced the "
    "gradient bound and, before training, linear growth of the variance; we did not find that Peri-LN has the most "
    "even gradients or that Pre-LN leaves the range of fp16.",
)
