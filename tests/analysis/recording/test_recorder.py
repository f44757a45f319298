"""The tape: one number per value, whatever was written in place."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import normplace as npl
from normplace import UsageError
from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.recording.passes import record_pass
from normplace.analysis.recording.tape import Tape


class Runs(nn.Module):
    """A module around a function of its input and weight."""

    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.function(x, self.weight)


def tape_of(function) -> Tape:
    return record_pass(Runs(function), (torch.randn(3, 4),), {})


def upstream(tape: Tape) -> list[str]:
    """The operators the result depends on, in the order of the pass."""
    graph = Graph(tape)
    return [node.name for node in graph.nodes if set(node.outputs) & graph.used]


def in_place(x, weight):
    y = x.clone()
    y *= weight
    return y


def through_a_view(x, weight):
    y = x.clone()
    y.view(-1).neg_()
    return y + 1


def through_the_base(x, weight):
    y = x.clone()
    row = y[0]
    y.exp_()
    return row.tanh()


def into_a_part(x, weight):
    y = torch.zeros(3, 4)
    y[1] = x.sin()[1]
    return y


def overwritten(x, weight):
    y = x.cos()
    y.copy_(x.sin())
    return y


def out_argument(x, weight):
    y = torch.empty(3, 4)
    torch.mul(x, weight, out=y)
    return y


@pytest.mark.parametrize(
    ("function", "needed", "unneeded"),
    [
        (in_place, ["clone", "mul"], []),
        (through_a_view, ["clone", "view", "neg", "shared_write", "add"], []),
        (through_the_base, ["clone", "exp", "tanh"], []),
        (into_a_part, ["sin", "select", "copy"], []),
        (overwritten, ["sin", "copy"], ["cos"]),
        (out_argument, ["mul"], []),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_writes_are_followed(function, needed, unneeded):
    found = upstream(tape_of(function))
    assert [name for name in needed if name not in found] == []
    assert [name for name in unneeded if name in found] == []


def test_values_know_where_they_come_from():
    tape = tape_of(lambda x, weight: x * weight + torch.tensor([1.0, 2.0, 3.0, 4.0]))
    (product,) = [op for op in tape.ops if op.name == "mul"]
    assert [tape.values[number].origin for number in product.inputs] == ["input", "parameter"]
    (total,) = [op for op in tape.ops if op.name == "add"]
    graph = Graph(tape)
    assert [graph.is_data(number) for number in total.inputs] == [True, False]


def test_module_calls_are_nested():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU()))
    tape = record_pass(model, (torch.randn(2, 4),), {})
    assert [(call.path, call.parent) for call in tape.calls] == [("", -1), ("0", 0), ("1", 0), ("1.0", 2)]
    assert tape.calls[0].outputs == tape.calls[3].outputs == tape.outputs
    assert [tape.calls[op.call].path for op in tape.ops if op.name == "relu"] == ["1.0"]


def test_a_failed_pass_leaves_no_hooks():
    model = Runs(lambda x, weight: x @ x).train()
    with pytest.raises(UsageError, match="forward pass failed"):
        record_pass(model, (torch.randn(3, 4),), {})
    assert model.training
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


class PartlyCompiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(self.norm(x))


def test_a_small_audit_does_not_load_the_compiler():
    code = (
        "import sys, torch, normplace; normplace.audit(torch.nn.LayerNorm(8), torch.randn(2, 8)); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def compiler_log(caplog):
    """What the compiler logs, with every event of a compilation."""
    trace_log = logging.getLogger("torch.__trace")
    trace_log.addHandler(caplog.handler)
    yield caplog
    trace_log.removeHandler(caplog.handler)


def test_the_compiler_does_not_trace_the_recorder(compiler_log):
    model, x = PartlyCompiled(), torch.randn(2, 8)
    before = npl.audit(model, x)
    model.linear.compile(backend="eager")
    assert npl.audit(model, x) == before
    assert compiler_log.records == []


class FlexAttention(nn.Module):
    """Attention by an operator that calls a Python function for each score."""

    def __init__(self):
        super().__init__()
        self.norm, self.query_norm, self.qkv = nn.LayerNorm(8), nn.RMSNorm(8), nn.Linear(8, 24)

    def forward(self, x):
        query, key, value = self.qkv(self.norm(x))[:, None].chunk(3, -1)
        return x + flex_attention(self.query_norm(query), key, value, score_mod=lambda score, *_: 2 * score)[:, 0]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_attention():
    audit = npl.audit(FlexAttention(), torch.randn(1, 4, 8))
    assert [site.slot for site in audit.sites] == ["input", "inner.q"]
    assert [block.kind for block in audit.blocks] == ["attention"]
    assert not audit.unknown
