"""Cost by sequence length: elements read, memory of a training step, and size of the decoding state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from normplace._shared.seeding import seeded
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.causalrn.networks import TITLES, mixer_of
from normplace.lab.trials.cost import elements_read, peak_bytes
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import SequenceModel
from normplace.models.sequence.relation import RelationBranch

FORMS = ("scan", "pairwise")
LENGTHS = {"smoke": (16, 32), "laptop": (128, 256, 512), "full": (128, 256, 512, 1024)}
VOCAB = 32


@dataclass(frozen=True, kw_only=True)
class ScalingTrial:
    """One form of CausalRN on sequences of one length, by PyTorch's operations on a CPU, which can be counted.

    Args:
        form: ``scan`` or ``pairwise``.
        length: Sequence length in tokens.
        seed: Random seed of weights and tokens.
        dim: Width, and number of pair channels.
        depth: Number of blocks.
    """

    form: str
    length: int
    seed: int
    dim: int = 64
    depth: int = 2

    def __post_init__(self) -> None:
        expect_choice("form", self.form, FORMS)
        expect_ranges(self, "length", "dim", "depth", least=1)


def plan(scale: str) -> Iterator[ScalingTrial]:
    """Both forms at every length; only rounding depends on the seed, so two seeds are enough."""
    for length in LENGTHS[scale][::-1]:
        for seed in range(2):
            for form in FORMS:
                yield ScalingTrial(form=form, length=length, seed=seed)


def run(trial: ScalingTrial) -> Outcome:
    """Count elements read by a forward pass, peak memory of a training step, and size of the decoding state."""
    with seeded(trial.seed, gpus=True):
        model = SequenceModel(VOCAB, trial.dim, trial.depth, mixer=mixer_of(trial.form), positions="sinusoidal")
    generator = torch.Generator().manual_seed(trial.seed)
    tokens = torch.randint(VOCAB, (1, trial.length), generator=generator)
    _, state = model.prefill(tokens)
    for branch in model.modules():
        if isinstance(branch, RelationBranch):
            branch.options["backend"] = "reference"  # PyTorch's profiler sees nothing within compiled loops

    def forward() -> None:
        with torch.no_grad():
            model(tokens)

    def step() -> None:
        model(tokens).sum().backward()

    step()  # excludes one-time setup from the measurement
    model.zero_grad(set_to_none=True)
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    peak = peak_bytes(step, torch.device("cpu")) - gradients
    state_bytes = sum(memory.nbytes for memory in state.layers if memory is not None)
    row = trial.depth * trial.dim * 4
    return Outcome({"elements": elements_read(forward), "peak_bytes": peak, "state_rows": state_bytes / row})


PART = Part(
    name="scaling",
    config=ScalingTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"cost of {trial.length} tokens, {TITLES[trial.form]}, seed {trial.seed}",
    machine_metrics=("elements", "peak_bytes"),
)
