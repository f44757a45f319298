"""Training sequence models: the step against plain AdamW, schedules, evaluations and skipped steps."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normplace import UsageError
from normplace.lab.tasks.sequences import Batch, FixedCopy
from normplace.lab.train.sequence import STEPS_PER_DRAW, SequenceTraining, bits_per_token, fit_sequence, predict_tokens
from normplace.models import CausalRN

pytestmark = pytest.mark.usefixtures("one_thread")


class Bigrams(nn.Module):
    """Logits that depend on the last token alone; it counts how often it is called."""

    def __init__(self, vocab=29):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(0)))
        self.modes = []

    def forward(self, tokens):
        self.modes.append(self.training)
        return self.table[tokens]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_steps_are_those_of_plain_adamw():
    task, training = FixedCopy(3), SequenceTraining(5, 4, 0.1, warm_up=2, weight_decay=0.1, clip=0.05, every=2)
    model, plain = Bigrams(), Bigrams()
    result = fit_sequence(model, task, training, generator())
    drawn = task.draw(4 * STEPS_PER_DRAW, generator())
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=0.1)
    losses = []
    for step, rate in enumerate((0.05, 0.1, 0.1, 0.1, 0.1)):
        rows = slice(4 * step, 4 * step + 4)
        loss = F.cross_entropy(plain(drawn.inputs[rows]).flatten(0, 1), drawn.targets[rows].flatten(), ignore_index=-1)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(model.table, plain.table)
    assert result.steps == [2, 4, 5]
    assert result.loss == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:4]) / 2, losses[4]])


def test_cosine_decays_to_a_tenth():
    training = SequenceTraining(110, 1, 2.0, warm_up=10, schedule="cosine")
    assert [training.learning_rate_at(step) for step in (0, 9, 10)] == pytest.approx([0.2, 2.0, 2.0])
    assert training.learning_rate_at(60) == pytest.approx(1.1)
    assert training.learning_rate_at(110) == pytest.approx(0.2)


def test_the_watcher_gets_the_model_in_evaluation_mode_and_can_stop_training():
    model, looks = Bigrams(), []

    def watch(step):
        model(torch.zeros(1, 1, dtype=torch.long))
        looks.append(step)
        return step >= 6

    result = fit_sequence(model, FixedCopy(3), SequenceTraining(50, 2, 0.1, every=3), generator(), watch)
    assert looks == result.steps == [3, 6]
    assert result.steps_taken == 6
    assert model.modes == [True] * 3 + [False] + [True] * 3 + [False]
    assert not model.training


def test_times_exclude_evaluations_and_count_the_first_steps_like_the_others(monkeypatch):
    now = 0.0

    def slow(*_):
        nonlocal now
        now += 100.0

    class Timed(Bigrams):
        def forward(self, tokens):
            nonlocal now
            now += 10.0 if len(self.modes) < STEPS_PER_DRAW else 2.0
            return super().forward(tokens)

    monkeypatch.setattr("normplace.lab.train.sequence.time.perf_counter", lambda: now)
    training = SequenceTraining(2 * STEPS_PER_DRAW, 2, 0.1, every=8)
    result = fit_sequence(Timed(), FixedCopy(3), training, generator(), slow)
    assert result.steps == [8, 16, 24, 32]
    assert result.seconds == pytest.approx([80.0, 160.0, 48.0, 64.0])


def test_a_step_without_a_finite_gradient_is_skipped():
    class Broken(Bigrams):
        def forward(self, tokens):
            logits = super().forward(tokens)
            return logits * (math.nan if len(self.modes) == 2 else 1.0)

    def trained(kind, steps):
        model = kind()
        fit_sequence(model, FixedCopy(3), SequenceTraining(steps, 2, 0.1, warm_up=0), generator())
        return model.table

    assert torch.equal(trained(Broken, 2), trained(Bigrams, 1))
    assert trained(Broken, 4).isfinite().all()


def test_bfloat16_keeps_float32_weights():
    torch.manual_seed(0)
    model = CausalRN(29, 16, 1, context=8)
    fit_sequence(model, FixedCopy(3), SequenceTraining(2, 2, 0.1, precision="bfloat16"), generator())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_small_causalrn_learns_to_copy():
    torch.manual_seed(0)
    task = FixedCopy(4, letters=8)
    model = CausalRN(task.vocab_size, 32, 1, context=task.context)
    fit_sequence(model, task, SequenceTraining(150, 32, 1e-2, warm_up=10), generator())
    batch = task.draw(64, generator(1))
    assert task.score(predict_tokens(model, batch.inputs, batch_size=10), batch).string.mean() > 0.95
    decoded = model.generate(task.prompts(batch), 5)[:, -5:]
    assert task.score(decoded, batch).string.mean() > 0.95


def test_bits_are_the_mean_over_the_targets():
    model = Bigrams(vocab=5)
    inputs, targets = torch.tensor([[1, 2, 3]] * 70), torch.tensor([[-1, 4, 0]] * 70)
    chances = model.table.softmax(-1)
    wanted = -(chances[2, 4].log2() + chances[3, 0].log2()) / 2
    assert bits_per_token(model, inputs, targets) == pytest.approx(wanted.item(), rel=1e-5)


def test_sequences_are_drawn_for_many_steps_at_once():
    class Counted(FixedCopy):
        drawn: ClassVar[list[int]] = []

        def draw(self, rows, generator) -> Batch:
            self.drawn.append(rows)
            return super().draw(rows, generator)

    fit_sequence(Bigrams(), Counted(3), SequenceTraining(STEPS_PER_DRAW + 1, 2, 0.1), generator())
    assert Counted.drawn == [2 * STEPS_PER_DRAW] * 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"steps": "x"}, "steps takes a whole number"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate takes a number"),
        ({"clip": -1.0}, "clip must be above 0"),
        ({"warm_up": -1}, "warm_up must be at least 0"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"precision": "bfloat"}, "did you mean 'bfloat16'"),
    ],
)
def test_bad_arguments_are_errors(options, reason):
    with pytest.raises(UsageError, match=reason):
        SequenceTraining(**{"steps": 1, "batch_size": 1, "learning_rate": 0.1, **options})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize(
    "mixer", ["relation", "attention", "linear-attention", "gated-linear", "mamba-2", "hard-alibi"]
)
def test_a_graphed_step_equals_the_eager_step(mixer):
    from normplace.models.sequence import SelfAttention, SequenceModel

    task, tables = FixedCopy(6), []
    for recorded in (True, False):
        torch.manual_seed(0)
        if mixer == "hard-alibi":
            model = SequenceModel(29, 32, 2, mixer=SelfAttention(heads=4), positions=mixer).cuda()
        else:
            model = SequenceModel(29, 32, 2, mixer=mixer, context=task.context).cuda()
        training = SequenceTraining(8, 4, 1e-3, cuda_graph=recorded, every=3)
        fit_sequence(model, task, training, torch.Generator("cuda").manual_seed(0))
        tables.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*tables, atol=1e-4, rtol=1e-4)
