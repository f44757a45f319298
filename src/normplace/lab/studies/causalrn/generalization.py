"""Copying strings longer than those in training, by kind of position, at the published size.

The task is that of Jelassi et al. 2024 (arXiv 2402.01032). Networks learn packed strings of up to 64 or 128 characters
and are tested on strings up to four times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from normplace.errors import UsageError, expect_choice, expect_ranges
from normplace.lab.studies.causalrn.copying_variable import COPIED
from normplace.lab.studies.causalrn.networks import TITLES, build
from normplace.lab.studies.causalrn.published_size import HEADS, MAMBA_HEADS, SEEDS, alignment_of
from normplace.lab.studies.causalrn.training import TrainedTrial, train_on_strings
from normplace.lab.studies.causalrn.windows import WindowedRelation
from normplace.lab.tasks.sequences import StringTask
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import Relation, SequenceModel, count_parameters

RELATION_POSITIONS = ("none", "sinusoidal", "windows")
POSITIONS = {
    "pairwise": RELATION_POSITIONS,
    "transformer": ("none", "sinusoidal", "rotary", "alibi", "hard-alibi"),
    "mamba-2": ("none",),
}
"""Kinds of position by network; all extend beyond the trained lengths."""
FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Tested lengths over the longest trained length."""
TWICE = "at_twice"
LONGEST = (64, 128)
LONG_SEEDS = 3


class Variant(NamedTuple):
    """A network with a kind of position."""

    network: str
    positions: str
    heads: int

    @property
    def title(self) -> str:
        """Its name in figures and checks."""
        positions = {"none": "no positions", "windows": "windows"}.get(self.positions, f"{self.positions} positions")
        heads = f", {self.heads} heads" if self.network == "pairwise" and self.positions == "none" else ""
        return f"{TITLES[self.network]}, {positions}{heads}".replace("1 heads", "1 head")


WINDOWS = Variant("pairwise", "windows", HEADS)
HARD_ALIBI = Variant("transformer", "hard-alibi", HEADS)
VARIANTS = (
    WINDOWS,
    Variant("pairwise", "none", 1),
    Variant("pairwise", "none", HEADS),
    Variant("pairwise", "sinusoidal", 1),
    HARD_ALIBI,
    *(Variant("transformer", positions, HEADS) for positions in ("rotary", "alibi", "none", "sinusoidal")),
    Variant("mamba-2", "none", MAMBA_HEADS),
)
LONG_VARIANTS = (WINDOWS, VARIANTS[1], HARD_ALIBI, VARIANTS[5])
"""Networks that also learn strings of up to 128 characters."""


@dataclass(frozen=True, kw_only=True)
class GeneralizationTrial(TrainedTrial):
    """One network on packed strings of varying length.

    Args:
        network: ``pairwise``, ``transformer`` or ``mamba-2``, at CausalRN's parameter count.
        positions: Kind of position; ``windows`` is Hard-ALiBi for CausalRN.
        heads: Number of heads; half of them have windows with ``windows`` and ``hard-alibi``.
        longest: Longest trained length; the shortest is an eighth of it.
        context: Context length in training, in tokens.
        learning_rate: AdamW's peak learning rate; a cosine schedule decays it to a tenth.
        exam: Strings per tested length.
    """

    network: str
    positions: str
    heads: int = HEADS
    longest: int = LONGEST[0]
    context: int = 3 * LONGEST[0]
    dim: int = 192
    depth: int = 12
    steps: int = 3000
    batch_size: int = 320
    learning_rate: float = 1e-3
    precision: str = "bfloat16"
    exam: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("network", self.network, POSITIONS)
        expect_ranges(self, "longest", least=2)
        if self.positions not in POSITIONS[self.network]:
            choices = ", ".join(POSITIONS[self.network])
            raise UsageError(f"{TITLES[self.network]} does not extend {self.positions!r} positions: choose {choices}.")

    @property
    def variant(self) -> Variant:
        """The network of the trial."""
        return Variant(self.network, self.positions, self.heads)


def variant_trial(variant: Variant, longest: int, seed: int) -> GeneralizationTrial:
    """The trial of a variant at the published size."""
    return GeneralizationTrial(**variant._asdict(), longest=longest, context=3 * longest, seed=seed)


def plan(scale: str) -> Iterator[GeneralizationTrial]:
    """All variants on shorter strings, some on longer ones; none at ``laptop``."""
    if scale == "smoke":
        size: dict[str, Any] = {
            "dim": 12,
            "depth": 1,
            "steps": 2,
            "batch_size": 2,
            "longest": 4,
            "context": 12,
            "exam": 2,
        }
        for variant in (WINDOWS, HARD_ALIBI):
            yield GeneralizationTrial(**variant._replace(heads=2)._asdict(), seed=0, **size)
    elif scale == "full":
        for seed in range(SEEDS):
            for variant in VARIANTS:
                yield variant_trial(variant, LONGEST[0], seed)
        for seed in range(LONG_SEEDS):
            for variant in LONG_VARIANTS:
                yield variant_trial(variant, LONGEST[1], seed)


def network_for(trial: GeneralizationTrial, vocab_size: int) -> SequenceModel:
    """The trial's network."""
    if trial.network == "pairwise":
        windowed = trial.positions == "windows"
        mixer = (
            WindowedRelation(heads=trial.heads, windows=trial.heads // 2) if windowed else Relation(heads=trial.heads)
        )
        positions = "none" if windowed else trial.positions
        return SequenceModel(vocab_size, trial.dim, trial.depth, mixer=mixer, positions=positions)
    shape: dict[str, Any] = {"heads": trial.heads, "positions": trial.positions}
    return build(trial.network, vocab_size, trial.dim, trial.depth, alignment=alignment_of(trial.dim), **shape)


def run(trial: GeneralizationTrial) -> Outcome:
    """Train on packed strings, then test on single strings of each length."""
    task = StringTask("copy", max(1, trial.longest // 8), trial.longest, trial.context)
    model = trial.initialize(lambda: network_for(trial, task.vocab_size))
    lengths = [round(factor * trial.longest) for factor in FACTORS]
    losses, accuracy = train_on_strings(trial, model, task, lengths, trial.exam, batch_size=32)
    copied = [factor for factor, right in zip(FACTORS, accuracy["character"], strict=True) if right >= COPIED]
    twice = FACTORS.index(2.0)
    return Outcome(
        metrics={
            **{name: values[0] for name, values in accuracy.items()},
            **{f"{name}_{TWICE}": values[twice] for name, values in accuracy.items()},
            "reach": max(copied, default=0.0),
            "parameters": count_parameters(model),
            "loss": losses.loss[-1],
        },
        series={"factor": FACTORS, "length": lengths, **accuracy, "step": losses.steps, "loss": losses.loss},
    )


PART = Part(
    name="generalization",
    config=GeneralizationTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"trained up to {trial.longest}, {trial.variant.title}, seed {trial.seed}",
)
