"""Where the norms of hand-written variants are, by the way they were built."""

from __future__ import annotations

import sys

import pytest
import torch
from tests.analysis import variants
from tests.analysis.random_attention import network
from tests.analysis.variants import (
    CORES,
    TOKENS,
    Block,
    Coupled,
    Gated,
    LowRank,
    Modulated,
    Net,
    Positional,
    Routed,
    Shortcut,
)
from torch import nn

import normplace as npl

BLOCK = ["input", "inner.q", "inner.k", "input"]


def audited(model):
    return npl.audit(model.eval(), TOKENS)


def slots(model):
    return [site.slot for site in audited(model).sites]


@pytest.mark.parametrize("core", CORES)
def test_queries_and_keys(core):
    assert slots(Net(Block(core), Block(core))) == [*BLOCK * 2, "final"]


@pytest.mark.parametrize("core", [core for core in CORES if core not in ("retention", "causal_linear")])
def test_queries_and_keys_of_a_memory(core):
    assert slots(Net(Block(core), Block(core), memory=True)) == [*BLOCK * 2, "final"]


@pytest.mark.parametrize("bias", ["zeros", "mask", "scores"])
def test_attention_scores_are_not_a_stream(bias):
    found = audited(variants.SharedBias(bias))
    assert [(block.module, block.branches[0].module) for block in found.blocks] == [
        ("", f"parts.{layer}") for layer in range(3)
    ]
    assert [site.slot for site in found.sites] == ["input"] * 3 + ["final"]


@pytest.mark.parametrize("functional", [True, False])
def test_a_router_that_divides_by_a_sum_has_no_norm(functional):
    assert slots(Net(Routed(functional), Routed(functional))) == ["input", "input", "final"]


def test_coupled_halves():
    found = audited(Net(Coupled(), Coupled(), Coupled()))
    assert [site.slot for site in found.sites] == ["input"] * 6 + ["final"]
    assert len(found.blocks) == 6


@pytest.mark.parametrize("gate", [variants.Gate, variants.Cell])
def test_gated_residuals(gate):
    found = audited(Net(Gated(gate), Gated(gate)))
    assert [site.slot for site in found.sites] == ["input"] * 4 + ["final"]
    assert found.placement == "pre"
    assert len(found.blocks) == 4


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_dynamic_hyper_connections(depth):
    found = audited(variants.HyperConnected(depth))
    assert [site.slot for site in found.sites] == ["input", "input"] * depth + ["final"]
    assert found.placement == "pre"


def test_a_low_rank_update_of_the_head():
    model = Net(Block("softmax"), Block("softmax"))
    model.head = LowRank(model.head)
    assert slots(model) == [*BLOCK * 2, "final"]


def test_a_norm_by_einsum():
    block = Block("softmax")
    block.norm1 = variants.EinsumRMS()
    found = audited(Net(block))
    assert [(site.name, site.kind, site.slot) for site in found.sites][:2] == [
        ("blocks.0.norm1", "rms", "input"),
        ("blocks.0.attention.q_norm", "layer", "inner.q"),
    ]


def test_a_recurrent_network_has_no_residuals():
    found = audited(variants.Recurrent())
    assert {site.slot for site in found.sites} == {"plain"}
    assert len(found.sites) == 3 * TOKENS.shape[1]
    assert found.placement == "plain"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_branches_of_recurrent_modules(kind):
    (block,) = audited(variants.Unrolled(kind)).blocks
    assert (block.kind, block.equation) == ("recurrence", "N(x + F(x))")


def lines_run(model, steps):
    """How many lines of the package an audit of ``steps`` time steps runs, whatever the load on the machine."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line"
        return trace if "normplace" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        npl.audit(model.eval(), torch.zeros(1, steps, 5))
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("model", [variants.Recurrent, variants.ResidualRecurrent])
def test_recurrent_networks_take_time_linear_in_their_steps(model):
    assert lines_run(model(), 64) < 2.1 * lines_run(model(), 32)


def test_gated_branches_are_named():
    found = audited(Net(Modulated(), Modulated(), memory=True))
    names = [arm.module for block in found.blocks for arm in block.branches]
    assert names == ["blocks.0.attn", "blocks.0.mlp", "blocks.1.attn", "blocks.1.mlp"]


def test_two_streams_of_the_same_branches_are_named():
    found = audited(variants.Dual())
    assert [site.slot for site in found.sites] == ["stream"] * 3 + ["final"]
    assert found.placement == "residual-dual"
    assert "mixed placements" not in {finding.rule for finding in found.findings}


def test_parallel_branches_with_a_norm_on_the_sum_are_named():
    found = audited(variants.ParallelPost())
    assert [site.slot for site in found.sites] == ["stream"] * 3
    assert found.placement == "post"
    assert found.equations == ("N(x + F1(x) + F2(x))",)


def test_positional_convolutions_do_not_change_the_name():
    assert audited(Net(Positional(), Positional())).placement == "pre"


def test_a_branch_that_is_added_later():
    found = audited(Net(Shortcut(), Shortcut()))
    assert [site.slot for site in found.sites] == ["input"] * 4 + ["final"]
    assert found.equations == ("x + F(N(x))",)
    assert len(found.blocks) == 6


@pytest.mark.parametrize("all_rows", [True, False])
def test_identity_experts_that_are_added_later(all_rows):
    blocks = [Shortcut(), Shortcut()]
    for block in blocks:
        block.parts[2] = variants.IdentityExperts(all_rows)
    found = audited(Net(*blocks))
    assert [site.slot for site in found.sites] == ["input"] * 4 + ["final"]
    assert [block.branches[0].module for block in found.blocks] == [
        f"blocks.{block}.parts.{part}" for block in range(2) for part in range(3)
    ]


@pytest.mark.parametrize("seed", range(15))
def test_random_attention(seed):
    model, inputs, truth = network(seed)
    found = npl.audit(model, *inputs)
    assert [site.slot for site in found.sites] == truth
    assert {block.custom_backward is not None for block in found.blocks} <= {model.streams == "reversible"}


def test_queries_that_begin_with_zeros():
    assert slots(variants.Queries()) == ["stream"] * 4


class Opaque(nn.Module):
    """A branch with an operator of another library."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(variants.DIM), variants.mlp()

    def forward(self, x):
        return x + torch.ops.audit_test.hidden(self.mlp(self.norm(x)))


def test_operators_that_are_not_understood_are_reported():
    library = torch.library.Library("audit_test", "FRAGMENT")
    library.define("hidden(Tensor x) -> Tensor")
    library.impl("hidden", lambda x: x * 2, "CompositeExplicitAutograd")
    found = audited(Net(Opaque(), Block("softmax")))
    assert [(each.module, each.operator) for each in found.unknown] == [("blocks.0", "audit_test::hidden")]
    assert [bool(block.unknown) for block in found.blocks] == [True, False, False]
    assert "not understood: audit_test::hidden in blocks.0:" in str(found)


class Synthesizer(nn.Module):
    """Scores that are made of each row alone (Tay et al. 2020, arXiv 2005.00743), with a norm on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.values = nn.Linear(variants.DIM, TOKENS.shape[1]), nn.Linear(variants.DIM, variants.DIM)
        self.norm, self.out = nn.LayerNorm(variants.DIM), nn.Linear(variants.DIM, variants.DIM)

    def forward(self, x):
        return x + self.out(self.scores(x).softmax(-1) @ self.norm(self.values(x)))


def test_attention_that_is_not_understood_is_reported():
    found = audited(Net(Synthesizer()))
    assert [(each.module, each.operator) for each in found.unknown] == [("blocks.0.norm", "attention")]
    assert [bool(block.unknown) for block in found.blocks] == [True]


def test_known_networks_have_nothing_unknown():
    assert audited(Net(Block("linear"), Block("softmax"))).unknown == ()


def test_a_squash_whose_slope_and_gain_are_offset_by_constants():
    blocks = [Block("softmax"), Block("softmax")]
    for block in blocks:
        block.norm1, block.norm2 = variants.DynamicTanh(), variants.DynamicTanh()
    found = audited(Net(*blocks))
    assert [site.slot for site in found.sites] == [*BLOCK * 2, "final"]
    assert [site.kind for site in found.sites if site.slot == "input"] == ["squash"] * 4


@pytest.mark.parametrize("early", [True, False])
def test_a_class_token_that_reads_itself_and_the_patches(early):
    found = audited(variants.ClassToken(early))
    assert [site.slot for site in found.sites] == [*BLOCK * 3, "final"]
    assert len(found.blocks) == 6


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_stages_within_a_skip_over_the_whole_network(stages):
    found = audited(variants.LongSkip(stages))
    assert [site.slot for site in found.sites] == [*BLOCK * 2 * stages, "final"]
    assert len(found.blocks) == 5 * stages + 1


def test_values_of_the_first_layer_are_not_a_stream():
    found = audited(variants.ValueResidual())
    assert found.placement == "pre"
    assert [block.kind for block in found.blocks] == ["attention", "mlp"] * 3
    assert [site.slot for site in found.sites] == ["input"] * 6 + ["final"]


def test_values_that_layers_share_and_earlier_streams_that_are_added_again():
    found = npl.audit(variants.SharedValues(), torch.arange(8).view(2, 4))
    assert found.placement == "pre"
    assert [block.kind for block in found.blocks] == ["attention", "mlp"] * 4
    assert [site.slot for site in found.sites] == ["input", "inner.v", "inner.q", "input"] * 4 + ["final"]


def test_a_sum_of_losses_is_not_a_stream():
    found = audited(variants.Losses())
    assert [block.kind for block in found.blocks] == ["attention", "mlp"] * 3
    assert [site.slot for site in found.sites] == [*BLOCK * 3, "final"]
