"""Claims on language modeling with 100 million tokens, declared before any of its trials ran."""

from __future__ import annotations

from collections.abc import Iterable

from normplace.lab.studies.causalrn.claims.conventions import SEEDS
from normplace.lab.studies.causalrn.networks import TITLES
from normplace.lab.studies.causalrn.pretraining import FULL, GRID_SEED, PART, VOCABULARIES, grid_fields
from normplace.lab.studies.notes import OURS
from normplace.lab.studies.rate_grid import best_rate
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import Counted
from normplace.lab.trials.per_seed import PerSeed, Records, config_values, measure, pick

SIMILAR = 0.02
"""Bits per byte within which two networks count as equally good."""
MARGIN = 0.05
"""Bits per byte from which one network counts as better."""
LEARNED = 2.5
"""Bits per byte up to which a network counts as having learned; guesses by the byte before need more than 3."""
NAMES: dict[int, str] = {256: "bytes", 4096: "4,096 tokens"}
_SETTING = (
    "Text of the installed packages, 100 million training tokens in steps of 128 × 256, 6 layers of width 256, equal "
    "parameter counts, learned positions, bfloat16 autocast, weight decay 0.1 and a cosine schedule to a tenth. Each "
    "network has the best learning rate of its grid at 20 million tokens, chosen with a seed that is not reported on "
    "one half of the held-out sequences; scores are on the other half. Void if that rate is the lowest or highest "
    "tried, if a network needs more than 2.5 bits per byte, or if the lines were trained on different texts. Margins "
    "are our choices. Known beforehand: the language part, 300 to 2,000 steps on the bytes of the standard library, "
    "where the pairwise form was ahead of the Transformer and the scan ahead of linear attention."
)


@measure
def text_bits(records: Records, network: str, vocab: int) -> PerSeed:
    """Bits per byte of the long runs at the best learning rate of the network's grid."""
    rate = best_rate(records, PART.name, **grid_fields(network, vocab))
    fields = {"network": network, "vocab": vocab, "tokens": FULL.long, "learning_rate": rate}
    return PerSeed.of(pick(records, PART.name, **fields), "bits_per_byte")


@measure
def tuned(records: Records, networks: Iterable[str], vocab: int) -> PerSeed:
    """1 if the best learning rates of all networks are inside the range tried, else 0."""
    inside = []
    for network in networks:
        fields = grid_fields(network, vocab)
        rates = config_values(records, PART.name, "learning_rate", **fields)
        inside.append(best_rate(records, PART.name, **fields) not in (rates[0], rates[-1]) if rates else False)
    return PerSeed({GRID_SEED: float(all(inside))} if pick(records, PART.name, vocab=vocab) else {})


@measure
def texts(records: Records, vocab: int) -> PerSeed:
    """Number of different texts that networks of a vocabulary were trained on."""
    selected = pick(records, PART.name, vocab=vocab)
    return PerSeed({GRID_SEED: float(len({record.metrics.get("digest") for record in selected}))} if selected else {})


def _gap(network: str, baseline: str, vocab: int, at_most: float) -> Check:
    """Check of the bits per byte of one network minus those of another."""
    label = f"{NAMES[vocab]}, {TITLES[network]} and {TITLES[baseline]}"
    return Check(
        f"bits per byte, {NAMES[vocab]}, {TITLES[network]} minus {TITLES[baseline]}",
        text_bits(network, vocab) - text_bits(baseline, vocab),
        gates=(
            Check(f"number of texts, {NAMES[vocab]}", texts(vocab), at_most=1, interval=Counted()),
            Check(
                f"best learning rates inside the range tried, {label}",
                tuned((network, baseline), vocab),
                at_least=1,
                interval=Counted(),
            ),
            Check(f"bits per byte, {NAMES[vocab]}, {TITLES[baseline]}", text_bits(baseline, vocab), at_most=LEARNED),
        ),
        at_most=at_most,
    )


CLAIMS = (
    Claim(
        id="pretraining-like-linear-attention",
        paper="ICLR 2025 submission 13780, abstract",
        statement="With 100 million tokens, the scan is comparable to a Transformer with linear attention.",
        checks=tuple(_gap("scan", "linear-attention", vocab, at_most=MARGIN) for vocab in VOCABULARIES),
        seeds=SEEDS,
        note=_SETTING,
    ),
    Claim(
        id="pretraining-like-a-transformer",
        paper=OURS,
        statement="With 100 million tokens, the pairwise form is not worse than a Transformer.",
        checks=tuple(_gap("pairwise", "transformer", vocab, at_most=SIMILAR) for vocab in VOCABULARIES),
        seeds=SEEDS,
        note=_SETTING,
    ),
    Claim(
        id="pretraining-pair-norm",
        paper=OURS,
        statement="With 100 million tokens, the pairwise form is better than the scan.",
        checks=tuple(_gap("pairwise", "scan", vocab, at_most=-MARGIN) for vocab in VOCABULARIES),
        seeds=SEEDS,
        note=_SETTING,
    ),
    Claim(
        id="pretraining-gate",
        paper=OURS,
        statement="With 100 million tokens, the scan is not worse than gated linear attention.",
        checks=tuple(_gap("scan", "gated-linear", vocab, at_most=SIMILAR) for vocab in VOCABULARIES),
        seeds=SEEDS,
        note=_SETTING,
    ),
)
