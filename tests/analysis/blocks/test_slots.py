"""Slots in blocks that published models write in unusual ways."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normplace as npl

DIM = 8
TOKENS = torch.arange(5)[None]


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        return self.out(F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1)))


class Net(nn.Module):
    """Tokens, blocks, head."""

    def __init__(self, *blocks):
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(10, DIM), nn.Sequential(*blocks), nn.Linear(DIM, 10)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


class Before(nn.Module):
    """The wrapper that normalizes for any function."""

    def __init__(self, function):
        super().__init__()
        self.norm, self.function = nn.LayerNorm(DIM), function

    def forward(self, x):
        return self.function(self.norm(x))


class Added(nn.Module):
    """The wrapper that adds for any function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) + x


def slots(model, *inputs):
    return {site.name: site.slot for site in npl.audit(model, *inputs).sites}


def test_wrappers():
    pre = Net(Added(Before(Attention())), Added(Before(Mlp())), nn.LayerNorm(DIM))
    assert slots(pre, TOKENS) == {
        "blocks.0.function.norm": "input", "blocks.1.function.norm": "input", "blocks.2": "final",
    }  # fmt: skip
    post = Net(Added(Attention()), nn.LayerNorm(DIM), Added(Mlp()), nn.LayerNorm(DIM))
    assert slots(post, TOKENS) == {"blocks.1": "stream", "blocks.3": "stream"}


class InOneForward(nn.Module):
    """A whole stack without a module per block."""

    def __init__(self, how):
        super().__init__()
        self.how, self.parts = how, nn.ModuleList([Attention(), Mlp(), Attention(), Mlp()])
        self.norms, self.end = nn.ModuleList(nn.RMSNorm(DIM) for _ in range(4)), nn.RMSNorm(DIM)

    def forward(self, x):
        for part, norm in zip(self.parts, self.norms, strict=True):
            if self.how == "input":
                x = x + part(norm(x))
            else:
                x = norm(x + part(x)) if self.how == "stream" else x + norm(part(x))
        return x if self.how == "stream" else self.end(x)


@pytest.mark.parametrize("how", ["input", "stream", "output"])
def test_without_block_modules(how):
    found = npl.audit(InOneForward(how), torch.randn(1, 5, DIM))
    assert [site.slot for site in found.sites] == [how] * 4 + ["final"] * (how != "stream")


class Conditioned(nn.Module):
    """DiT's adaptive norm: shift, scale and gate come from a condition."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM, elementwise_affine=False) for _ in range(2))
        self.parts, self.modulate = nn.ModuleList([Attention(), Mlp()]), nn.Linear(DIM, 6 * DIM)

    def forward(self, x, condition):
        numbers = self.modulate(F.silu(condition))[:, None].chunk(6, -1)
        for at, (norm, part) in enumerate(zip(self.norms, self.parts, strict=True)):
            shift, scale, gate = numbers[3 * at : 3 * at + 3]
            x = x + gate * part(norm(x) * (1 + scale) + shift)
        return x


def test_adaptive_norms():
    assert slots(Conditioned(), torch.randn(2, 5, DIM), torch.randn(2, DIM)) == {"norms.0": "input", "norms.1": "input"}


class DiffusionBlock(nn.Module):
    """A U-Net's block: group norms before convolutions, time added within, a projected skip."""

    def __init__(self, wide):
        super().__init__()
        self.first, self.second = nn.GroupNorm(2, DIM), nn.GroupNorm(2, wide)
        self.into, self.out = nn.Conv2d(DIM, wide, 3, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
        self.time = nn.Linear(4, wide)
        self.skip = nn.Conv2d(DIM, wide, 1) if wide != DIM else nn.Identity()

    def forward(self, x, time):
        hidden = self.into(F.silu(self.first(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.out(F.silu(self.second(hidden)))


@pytest.mark.parametrize("wide", [DIM, 2 * DIM])
def test_diffusion_blocks(wide):
    found = npl.audit(DiffusionBlock(wide), torch.randn(1, DIM, 4, 4), torch.randn(1, 4))
    assert [(site.slot, site.kind) for site in found.sites] == [("input", "group"), ("inner.mid", "group")]
    assert found.blocks[0].projected == (wide != DIM)


class OnTheSphere(nn.Module):
    """nGPT: the stream and every branch are of length one, and the add is an interpolation."""

    def __init__(self):
        super().__init__()
        self.parts, self.rates = nn.ModuleList([Attention(), Mlp()]), nn.Parameter(torch.ones(2, DIM))

    def forward(self, x):
        x = F.normalize(x, dim=-1)
        for part, rate in zip(self.parts, self.rates, strict=True):
            x = F.normalize(torch.lerp(x, F.normalize(part(x), dim=-1), rate), dim=-1)
        return x


def test_interpolated_adds():
    assert list(slots(Net(OnTheSphere()), TOKENS).values()) == ["embedding", "output", "stream", "output", "stream"]


class TwoStreams(nn.Module):
    """ResiDual: a post-norm stream beside an unnormalized one that gets a final norm."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Attention(), Mlp(), Attention(), Mlp()])
        self.norms, self.end = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(4)), nn.LayerNorm(DIM)

    def forward(self, x):
        other = x
        for part, norm in zip(self.parts, self.norms, strict=True):
            out = part(x)
            x, other = norm(x + out), other + out
        return x + self.end(other)


def test_two_streams():
    found = slots(Net(TwoStreams()), TOKENS)
    assert found == {**{f"blocks.0.norms.{at}": "stream" for at in range(4)}, "blocks.0.end": "final"}


class BottomToTop(nn.Module):
    """B2T: the last norm of the layer also gets the layer's input."""

    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), Mlp()
        self.middle, self.last = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x):
        middle = self.middle(x + self.attention(x))
        return self.last(x + middle + self.mlp(middle))


def test_long_skips():
    found = slots(Net(BottomToTop(), BottomToTop()), TOKENS)
    assert set(found.values()) == {"stream"}
    assert len(found) == 4


class Restoration(nn.Module):
    """SwinIR: one long skip around a whole stack that ends with a norm and a convolution."""

    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Sequential(Added(Before(Attention())), Added(Before(Mlp()))), nn.LayerNorm(DIM)
        self.last = nn.Conv1d(DIM, DIM, 3, padding=1)

    def forward(self, x):
        return x + self.last(self.norm(self.body(x)).mT).mT


def test_a_stack_within_a_branch():
    assert slots(Restoration(), torch.randn(1, 5, DIM)) == {
        "body.0.function.norm": "input", "body.1.function.norm": "input", "norm": "final",
    }  # fmt: skip


class ManyStreams(nn.Module):
    """Hyper-connections: n copies of the stream, mixed by a small learned matrix at every add."""

    def __init__(self, copies=2):
        super().__init__()
        self.copies, self.parts = copies, nn.ModuleList([Attention(), Mlp(), Attention()])
        self.norms, self.end = nn.ModuleList(nn.RMSNorm(DIM) for _ in self.parts), nn.RMSNorm(DIM)
        self.mix = nn.Parameter(torch.eye(copies).repeat(3, 1, 1))
        self.read, self.write = nn.Parameter(torch.ones(3, copies, 1)), nn.Parameter(torch.ones(3, copies, 1))

    def forward(self, x):
        x = x[:, :, None].expand(-1, -1, self.copies, -1)
        for at, (part, norm) in enumerate(zip(self.parts, self.norms, strict=True)):
            out = part(norm((x * self.read[at]).sum(2)))
            x = torch.einsum("ij,btjd->btid", self.mix[at], x) + out[:, :, None] * self.write[at]
        return self.end(x.sum(2))


def test_hyper_connections():
    assert list(slots(Net(ManyStreams()), TOKENS).values()) == ["input"] * 3 + ["final"]


class Latents(nn.Module):
    """Perceiver: learned latents are the stream, the data is a memory with a norm of its own."""

    def __init__(self):
        super().__init__()
        self.latents, self.attention = (
            nn.Parameter(torch.randn(3, DIM)),
            nn.MultiheadAttention(DIM, 2, batch_first=True),
        )
        self.query, self.memory, self.mlp, self.end = (
            nn.LayerNorm(DIM),
            nn.LayerNorm(DIM),
            Before(Mlp()),
            nn.LayerNorm(DIM),
        )

    def forward(self, x):
        latents, memory = self.latents[None].expand(len(x), -1, -1), self.memory(x)
        latents = latents + self.attention(self.query(latents), memory, memory)[0]
        return self.end(latents + self.mlp(latents))


def test_learned_latents():
    assert slots(Latents(), torch.randn(2, 5, DIM)) == {
        "memory": "input", "query": "input", "mlp.norm": "input", "end": "final",
    }  # fmt: skip


class Reinjected(nn.Module):
    """A block that adds the first stream and a value embedding again, as fast GPT-2 trainers do."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.mlp = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM), Mlp()
        self.weights = nn.Parameter(torch.ones(4))

    def forward(self, x, first, values):
        x = self.weights[0] * x + self.weights[1] * first
        q, k, v = self.qkv(F.rms_norm(x, (DIM,))).chunk(3, -1)
        v = self.weights[2] * v + self.weights[3] * values
        x = x + self.out(F.scaled_dot_product_attention(F.rms_norm(q, (DIM,)), F.rms_norm(k, (DIM,)), v))
        return x + self.mlp(F.rms_norm(x, (DIM,)))


class Speedrun(nn.Module):
    """Such blocks with skips from the first half to the second."""

    def __init__(self):
        super().__init__()
        self.embed, self.values, self.head = nn.Embedding(10, DIM), nn.Embedding(10, DIM), nn.Linear(DIM, 10)
        self.blocks, self.skips = nn.ModuleList(Reinjected() for _ in range(4)), nn.Parameter(torch.ones(2))

    def forward(self, tokens):
        x = first = F.rms_norm(self.embed(tokens), (DIM,))
        values, kept = self.values(tokens), []
        for at, block in enumerate(self.blocks):
            x = x + self.skips[at - 2] * kept.pop() if at >= 2 else x
            x = block(x, first, values)
            kept.append(x)
        return self.head(F.rms_norm(x, (DIM,)))


def test_streams_that_are_added_again():
    found = npl.audit(Speedrun(), TOKENS)
    block = ["input", "inner.q", "inner.k", "input"]
    assert [site.slot for site in found.sites] == ["embedding", *block * 4, "final"]
    assert found.placement == "pre"


class LowRank(nn.Module):
    """A linear map with an adapter, which must not pass for a residual block."""

    def __init__(self):
        super().__init__()
        self.full, self.down, self.up = nn.Linear(DIM, DIM), nn.Linear(DIM, 2), nn.Linear(2, DIM)

    def forward(self, x):
        return self.full(x) + self.up(self.down(x))


def test_adapters():
    found = npl.audit(Net(*(Added(Before(nn.Sequential(LowRank(), nn.GELU(), LowRank()))) for _ in range(2))), TOKENS)
    assert [block.equation for block in found.blocks] == ["x + F(N(x))"] * 2


class Recurrent(nn.Module):
    """A gated recurrence with a norm before and one on the sum's way out."""

    def __init__(self):
        super().__init__()
        self.norm, self.cell, self.end = nn.LayerNorm(DIM), nn.GRU(DIM, DIM, batch_first=True), nn.LayerNorm(DIM)

    def forward(self, x):
        return self.end(x + self.cell(self.norm(x))[0])


def test_recurrence():
    assert slots(Recurrent(), torch.randn(1, 5, DIM)) == {"norm": "input", "end": "final"}


class Cached(nn.Module):
    """Attention that writes its keys and values into a buffer in place, as a static cache does."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
        self.keys, self.values = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.register_buffer("cache", torch.zeros(2, 1, 8, DIM), persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        self.cache[0, :, : k.shape[1]] = self.keys(k)
        self.cache[1, :, : v.shape[1]] = self.values(v)
        keys, values = self.cache[:, :, : k.shape[1]]
        return x + self.out((q @ keys.mT).softmax(-1) @ values)


def test_values_written_in_place_are_followed():
    # Keys and values share one buffer, and what is read of it is followed as a whole.
    assert slots(Cached(), torch.randn(1, 5, DIM)) == {"norm": "input", "keys": "inner.kv", "values": "inner.kv"}


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_a_projected_skip_with_a_norm(norm):
    """PyTorch computes RMSNorm in several operators, LayerNorm in one."""

    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp, self.skip = Mlp(), nn.Linear(DIM, DIM)
            self.output, self.skipped = norm(DIM), norm(DIM)

        def forward(self, x):
            return self.skipped(self.skip(x)) + self.output(self.mlp(x))

    audit = npl.audit(Net(Projected()), TOKENS)
    assert audit.equations == ("P(x) + N(F(x))",)
    assert [site.slot for site in audit.sites] == ["skip", "output"]


class PostNorm(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.mlp, self.norm = Mlp(), norm

    def forward(self, x):
        return self.norm(x + self.mlp(x))


@pytest.mark.parametrize("order", ["aaa", "aba", "abb", "aabb"])
@pytest.mark.parametrize("final", [False, True])
def test_blocks_that_share_norms(order, final):
    """A shared module has the name of its first place."""
    norms = {letter: nn.LayerNorm(DIM) for letter in "ab"}
    model = Net(*(PostNorm(norms[letter]) for letter in order))
    model.head = nn.Sequential(nn.LayerNorm(DIM), model.head) if final else model.head
    audit = npl.audit(model, TOKENS)
    assert [site.slot for site in audit.sites] == ["stream"] * len(order) + ["final"] * final
    assert audit.equations == ("N(x + F(x))",)


class MatrixRMS(nn.Module):
    """An RMSNorm whose mean square is a product."""

    def forward(self, x):
        return x * torch.rsqrt((x[..., None, :] @ x[..., :, None])[..., 0] / x.shape[-1] + 1e-6)


def test_squares_by_a_product_do_not_mix_rows():
    mlp = nn.Sequential(MatrixRMS(), nn.Linear(DIM, DIM), nn.GELU(), nn.LayerNorm(DIM), nn.Linear(DIM, DIM))
    audit = npl.audit(Net(Added(mlp), Added(mlp)), TOKENS)
    assert [site.slot for site in audit.sites] == ["input", "inner.mid"] * 2
    assert [block.kind for block in audit.blocks] == ["mlp"] * 2


def test_a_norm_between_two_stacks_belongs_to_no_block():
    def pre():
        return Added(Before(Mlp()))

    audit = npl.audit(Net(pre(), pre(), nn.LayerNorm(DIM), pre(), pre(), nn.LayerNorm(DIM)), TOKENS)
    assert audit.equations == ("x + F(N(x))",)
    assert audit.placement == "pre"
    assert {site.name: site.slot for site in audit.sites if site.block is None} == {
        "blocks.2": "transition", "blocks.5": "final",
    }  # fmt: skip


class SkipAfterNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(DIM), Mlp()

    def forward(self, x):
        x = self.norm(x)
        return x + self.mlp(x)


class PostBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Attention(), Mlp()])
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))

    def forward(self, x):
        for part, norm in zip(self.parts, self.norms, strict=True):
            x = norm(x + part(x))
        return x


def test_skips_after_norms_in_other_modules_do_not_change_a_post_norm_block():
    layers = [nn.Sequential(OrderedDict(fusion=SkipAfterNorm(), post=PostBlock())) for _ in range(2)]
    audit = npl.audit(Net(*layers), TOKENS)
    assert [block.equation for block in audit.blocks] == ["N(x) + F(N(x))", "N(x + F(x))", "N(x + F(x))"] * 2


class SharedMemory(nn.Module):
    """Every layer multiplies one normalized memory by a gate, as the inputs per layer of Gemma 3n."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Linear(DIM, DIM), nn.RMSNorm(DIM)
        self.gates = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))
        self.outs = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x, memory):
        memory = self.norm(self.embed(memory))
        for gate, out in zip(self.gates, self.outs, strict=True):
            x = x + out(F.gelu(gate(x)) * memory)
        return x


def test_a_memory_that_several_branches_read_is_not_normalized_for_the_first():
    audit = npl.audit(SharedMemory(), torch.randn(2, DIM), torch.randn(2, DIM))
    assert audit.equations == ("x + F(x)",)
    assert [(site.slot, site.block) for site in audit.sites] == [("input", None)]


class Positioned(nn.Module):
    """Post-norm attention whose queries and keys read positions that are computed from the features."""

    def __init__(self):
        super().__init__()
        self.position, self.query, self.value = (nn.Linear(DIM, DIM) for _ in range(3))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x):
        query = self.query(x + F.relu(self.position(x)))
        return self.norm(x + F.scaled_dot_product_attention(query, query, self.value(x)))


def test_positions_computed_from_features_are_not_a_block():
    audit = npl.audit(Net(Positioned(), Positioned()), TOKENS)
    assert [(block.equation, block.kind) for block in audit.blocks] == [("N(x + F(x))", "attention")] * 2


class AddedInMlp(nn.Module):
    """A post-norm block whose MLP adds its own skip, before a norm that ends the stack."""

    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), Added(Mlp())
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))

    def forward(self, x):
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](self.mlp(x))


def test_the_last_norm_of_a_stack_is_like_its_siblings():
    audit = npl.audit(Net(AddedInMlp(), AddedInMlp()), TOKENS)
    assert audit.equations == ("N(x + F(x))",)
    assert audit.placement == "post"


class NormedSkip(nn.Module):
    """A block of RepVGG: a norm on the skip, and one on each convolution."""

    def __init__(self, branches):
        super().__init__()
        self.skip = nn.BatchNorm1d(DIM)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv1d(DIM, DIM, 1), nn.BatchNorm1d(DIM)) for _ in range(branches)
        )

    def forward(self, x):
        total = self.skip(x)
        for branch in self.branches:
            total = total + branch(x)
        return F.relu(total)


@pytest.mark.parametrize(("branches", "equation"), [(1, "N(x) + N(F(x))"), (2, "N(x) + N(F1(x)) + N(F2(x))")])
def test_a_norm_on_the_skip_is_in_the_equation(branches, equation):
    audit = npl.audit(nn.Sequential(NormedSkip(branches), NormedSkip(branches)), torch.randn(2, DIM, 5))
    assert {site.slot for site in audit.sites if "skip" in site.name} == {"skip"}
    assert audit.equations == (equation,)


class WeightedHistory(nn.Module):
    """Every block reads a weighted sum of the outputs of all earlier blocks, as in DenseFormer."""

    def __init__(self, combine):
        super().__init__()
        self.combine = combine
        self.blocks = nn.ModuleList(nn.Sequential(Added(Before(Attention())), Added(Before(Mlp()))) for _ in range(3))
        self.weights = nn.ParameterList(torch.randn(2 + number) for number in range(3))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 10)

    def forward(self, x):
        history = [x]
        for block, weights in zip(self.blocks, self.weights, strict=True):
            history.append(block(x))
            x = self.combine(weights, history)
        return self.head(self.norm(x))


@pytest.mark.parametrize(
    "combine",
    [
        lambda weights, history: sum(weight * x for weight, x in zip(weights, history, strict=True)),
        lambda weights, history: torch.stack(history, -1) @ weights,
        lambda weights, history: torch.tensordot(weights, torch.stack(history), dims=1),
        lambda weights, history: torch.einsum("l,lbnd->bnd", weights, torch.stack(history)),
    ],
    ids=["sum", "product", "tensordot", "einsum"],
)
def test_weighted_sums_of_earlier_layers_are_one_stream(combine):
    audit = npl.audit(WeightedHistory(combine), torch.randn(2, 5, DIM))
    assert [site.slot for site in audit.sites] == ["input"] * 6 + ["final"]
    assert {block.stream for block in audit.blocks} == {0}
    assert audit.equations == ("x + F(N(x))",)
    assert not audit.findings


class ModuleThatAdds(nn.Module):
    """Post-norm layers in one forward, of which the attention adds its own skip, as in Mega."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([Added(Attention()), nn.LayerNorm(DIM), Mlp(), nn.LayerNorm(DIM)]) for _ in range(3)
        )
        self.head = nn.Linear(DIM, 10)

    def forward(self, x):
        for attention, first, mlp, second in self.layers:
            x = first(attention(x))
            x = second(x + mlp(x))
        return self.head(x)


def test_a_norm_in_one_layer_is_not_the_input_norm_of_the_next():
    audit = npl.audit(ModuleThatAdds(), torch.randn(1, 5, DIM))
    assert audit.equations == ("N(x + F(x))",)
    assert [site.slot for site in audit.sites] == ["stream"] * 6
