"""What a sequence costs by its length: numbers read, memory of a training step, and memory of decoding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from normplace.errors import UsageError, unknown
from normplace.lab.studies.causalrn.networks import TITLES, mixer_of
from normplace.lab.trials.cost import elements_read, peak_bytes
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import SequenceModel

FORMS = ("scan", "pairwise")
LENGTHS = {"smoke": (16, 32), "laptop": (128, 256, 512), "full": (128, 256, 512, 1024)}
VOCAB = 32


@dataclass(frozen=True, kw_only=True)
class ScalingTrial:
    """One form of CausalRN and sequences of one length, on a CPU, so that operations can be counted.

    Args:
        form: ``scan`` or ``pairwise``.
        length: Tokens.
        seed: Of weights and tokens.
        dim: Width, and channels of a pair.
        depth: Blocks.
    """

    form: str
    length: int
    seed: int
    dim: int = 64
    depth: int = 2

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise unknown("form", self.form, FORMS)
        if min(self.length, self.dim, self.depth) < 1:
            raise UsageError("length, dim and depth must be at least 1.")


def plan(scale: str) -> Iterator[ScalingTrial]:
    """Both forms at every length; nothing here depends on the seed but rounding, so two show it."""
    for length in LENGTHS[scale][::-1]:
        for seed in range(2):
            for form in FORMS:
                yield ScalingTrial(form=form, length=length, seed=seed)


def run(trial: ScalingTrial) -> Outcome:
    """Count what one forward pass reads, what one training step holds, and what decoding keeps."""
    with torch.random.fork_rng():
        torch.manual_seed(trial.seed)
        model = SequenceModel(VOCAB, trial.dim, trial.depth, mixer=mixer_of(trial.form), positions="sinusoidal")
    generator = torch.Generator().manual_seed(trial.seed)
    tokens = torch.randint(VOCAB, (1, trial.length), generator=generator)

    def forward() -> None:
        with torch.no_grad():
            model(tokens)

    def step() -> None:
        model(tokens).sum().backward()

    step()  # so that what is set up once is not counted
    model.zero_grad(set_to_none=True)
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    peak = peak_bytes(step, torch.device("cpu")) - gradients
    _, state = model.prefill(tokens)
    held = sum(memory.nbytes for memory in state.layers if memory is not None)
    row = trial.depth * trial.dim * 4
    return Outcome({"elements": elements_read(forward), "peak_bytes": peak, "state_rows": held / row})


PART = Part(
    name="scaling",
    config=ScalingTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"cost of {trial.length} tokens, {TITLES[trial.form]}, seed {trial.seed}",
)
