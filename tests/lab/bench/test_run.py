"""A run: wrong results are not measured, correct ones are, with their peers."""

from __future__ import annotations

import pytest
import torch
from tests.lab.bench import sample

from normplace.errors import UsageError
from normplace.lab.bench import OPS, load_ops
from normplace.lab.bench.case import FORWARD, TRAINING
from normplace.lab.bench.run import measure, plan, run


class Watcher:
    def __init__(self):
        self.seen = []

    def started(self, index):
        self.seen.append(index)

    def finished(self, index, ok):
        self.seen.append((index, ok))


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        (
            "wrong",
            "wave, wrong kernel: the result is wrong by 1.2e-02 of its largest entry, where rounding explains 1e-06",
        ),
        ("wrong gradient", "wave, wrong gradient kernel: the gradient of x is wrong by 5.0e-01"),
        ("wrong inference", "wave, wrong inference kernel: the result without gradients is wrong by 1.2e-02"),
        ("nan", "wave, nan kernel: the result is wrong by inf"),
    ],
)
def test_a_wrong_kernel_is_not_measured(kernel, sentence):
    outcome = measure(sample.case(kernel), "cpu", quick=True)
    assert outcome.rows == []
    (refused,) = outcome.refused
    assert sentence in refused


def test_every_pass_of_every_method_that_runs_is_measured():
    outcome = measure(sample.case(), "cpu", quick=True)
    assert outcome.refused == []
    assert outcome.notes == ["a peer is not installed", "wave, right kernel: broken fails: no such kernel"]
    rows = {(row.method, row.step): row for row in outcome.rows}
    assert rows.keys() == {
        *((name, step) for name in ("normplace", "eight times", "off") for step in (FORWARD, TRAINING)),
        ("cosine", FORWARD),
    }
    own, slow, off = (rows[name, FORWARD] for name in ("normplace", "eight times", "off"))
    assert own.error is not None and own.error < 1e-6
    assert off.error == pytest.approx(0.5, rel=1e-3)
    assert rows["cosine", FORWARD].error is None
    assert rows["cosine", FORWARD].rate is None
    assert own.slower is None
    assert slow.slower is not None and slow.slower.median > 2
    assert slow.seconds.low <= slow.seconds.median <= slow.seconds.high
    assert own.rate == pytest.approx(8000 / own.seconds.median)


def test_a_cpu_run_continues_after_a_wrong_kernel_and_a_dead_process():
    watcher = Watcher()
    kernels = ("right", "wrong", "killed")
    first, second, record = run([sample.case(kernel) for kernel in kernels], "cpu", True, watcher, "normplace bench")
    assert (len(first.refused), len(second.refused)) == (0, 1)  # each is of what was measured so far
    assert {row.case for row in record.rows} == {"right kernel"}
    assert len(record.refused) == 1
    assert "wave, killed kernel: its process ended with code -9; is there enough memory?" in record.notes
    assert [seen for seen in watcher.seen if isinstance(seen, tuple)] == [(0, True), (1, False), (2, True)]
    assert [seen for seen in watcher.seen if isinstance(seen, int)] == [0, 1, 2]
    assert record.versions["torch"] == torch.__version__
    assert record.hardware["threads"] >= 1
    assert not record.ceilings


def test_a_mistake_in_a_case_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        next(run([sample.case("broken")], "cpu", True, Watcher(), ""))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_op_has_cases_of_its_own_name(device):
    for op in load_ops():
        quick, full = op.cases(device, True), op.cases(device, False)
        assert 1 <= len(quick) < len(full)
        assert {case.op for case in full} == {op.name}
        assert len({case.label for case in full}) == len(full)
    assert len(plan(load_ops(OPS[:1]), device, True)) == len(load_ops(OPS[:1])[0].cases(device, True))


def test_an_unknown_op_is_named():
    with pytest.raises(UsageError, match="unknown op 'agregate': did you mean 'aggregate'"):
        load_ops(["agregate"])
