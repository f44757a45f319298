"""Diffusion Transformers: gate, add, norm and modulation become one pass, and the function stays the same."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from tests.edit.fuse import dit_models
from tests.edit.fuse.dit_models import Block, BroadcastBlock, ChannelBlock, StatementBlock, build
from tests.edit.fuse.fuse_models import agree, gradients
from tests.ops.kernels import needs_gpu
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import normplace as npl
from normplace.edit.fuse import gates as fuse_gates
from normplace.edit.fuse.gates import MODULATIONS
from normplace.edit.fuse.numbers import measure, measure_in_float64
from normplace.edit.fuse.verify import verify_model

BLOCKS = [
    Block, StatementBlock, BroadcastBlock, ChannelBlock, dit_models.LateBlock, dit_models.ReassignedBlock,
    dit_models.WrittenBlock, dit_models.OtherBlock,
]  # fmt: skip
# The compiler looks at the gradient of every input.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def fused(model, inputs, **options):
    return npl.fuse(model, *inputs, only_if_faster=False, **options)


@pytest.fixture
def count(monkeypatch):
    """How often the op runs."""
    calls, plain = [], fuse_gates.gate_add_norm

    def counted(*args, **kwargs):
        calls.append(kwargs)
        return plain(*args, **kwargs)

    monkeypatch.setattr(fuse_gates, "gate_add_norm", counted)
    return calls


@pytest.mark.parametrize("block", BLOCKS)
def test_bits_in_half_precision_and_gradients_in_float32(block):
    model, inputs = build(block, torch.bfloat16)
    result = fused(model, inputs)
    for context in (torch.no_grad(), torch.enable_grad(), torch.inference_mode()):
        with context:
            assert torch.equal(result(*inputs), model(*inputs))
    model, inputs = build(block)
    agree(*(gradients(each, lambda m: m(*inputs)) for each in (fused(model, inputs), model)))


@pytest.mark.parametrize("block", [Block, StatementBlock, BroadcastBlock])
@pytest.mark.parametrize("reach", ["layer", "stack"])
def test_a_block_is_three_passes(block, reach, count):
    model, inputs = build(block)
    result = fused(model, inputs, reach=reach)
    parts = [(part.parts, part.fused) for part in npl.changes(result).fusions]
    sums = [("gate, add, norm, modulate", True), ("gate, add", True)]
    assert sorted(parts) == sorted([*sums * 2, *[("norm, modulate", True)] * 3])
    assert all(part.bytes_saved > 0 for part in npl.changes(result).fusions)
    for mode in (torch.enable_grad, torch.no_grad):
        count.clear()
        with mode():
            result(*inputs)
        assert len(count) == 7  # three in each block, and the final norm


def test_a_gate_for_each_channel_is_fused_with_a_plain_norm(count):
    model, inputs = build(ChannelBlock, norm=lambda: nn.LayerNorm(dit_models.WIDTH))
    result = fused(model, inputs)
    parts = [part.parts for part in npl.changes(result).fusions if part.fused]
    assert parts.count("gate, add, norm") == 2 and parts.count("gate, add") == 2
    count.clear()
    agree(*(gradients(each, lambda m: m(*inputs)) for each in (result, model)))
    assert len(count) == 5 and all(call["gate"].shape == (16,) for call in count if call.get("gate") is not None)


@pytest.mark.parametrize(
    ("block", "words"), [(dit_models.LateBlock, "not known before"), (dit_models.ReassignedBlock, "not known before")]
)
def test_factors_that_are_not_known_before_the_sum_are_a_reason(block, words):
    model, inputs = build(block)
    fusions = npl.edit.plan_fusion(model, *inputs).fusions
    assert any(words in part.reason for part in fusions)
    assert "norm, modulate" in [part.parts for part in fusions] and "modulate" not in fusions[0].parts


def test_a_factor_that_is_written_to_is_read_again():
    model, inputs = build(dit_models.WrittenBlock)
    result = fused(model, inputs)
    assert "gate, add, norm, modulate" in [part.parts for part in npl.changes(result).fusions]
    for each in (model, result):
        for block in each.blocks:
            block.write = True
    with torch.no_grad():
        assert torch.allclose(result(*inputs), model(*inputs), atol=1e-6)


def test_hooks_on_a_modulated_norm_are_called():
    model, inputs = build()
    result, seen = fused(model, inputs), []
    for name in ("norm1", "norm2"):
        getattr(result.blocks[0], name).register_forward_hook(lambda *_, name=name: seen.append(name))
    assert torch.allclose(result(*inputs), model(*inputs), atol=1e-6)
    assert seen == ["norm1", "norm2"]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_are_fused_and_unfuse_restores_everything(clone, count):
    model, inputs = build()
    copied = clone(fused(model, inputs))
    count.clear()
    assert torch.allclose(copied(*inputs), model(*inputs), atol=1e-6) and len(count) == 7
    npl.unfuse(copied)
    assert torch.equal(copied(*inputs), model(*inputs))
    assert all(MODULATIONS not in vars(module) for module in copied.modules())
    assert "forward" not in vars(copied.blocks[0])


def test_compiled_checkpointed_and_under_autocast():
    torch.compiler.reset()
    model, inputs = build()
    result = fused(model, inputs)
    compiled = torch.compile(result, backend="aot_eager", fullgraph=True)
    agree(gradients(result, lambda _: compiled(*inputs)), gradients(model, lambda m: m(*inputs)))

    def checkpointed(m):
        x = m.embed(inputs[0])
        for block in m.blocks:
            x = checkpoint(block, x, inputs[1], use_reentrant=False)
        return m.final(x, inputs[1])

    agree(gradients(result, checkpointed), gradients(model, lambda m: m(*inputs)))
    call = (inputs, {})
    with torch.autocast("cpu", torch.bfloat16):
        assert verify_model(measure(model, call), measure(result, call), measure_in_float64(model, call)) <= 1


def test_fused_inside_autocast(count):
    model, inputs = build()
    with torch.autocast("cpu", torch.bfloat16):
        result = fused(model, inputs)
        count.clear()
        with torch.no_grad():
            one, other = result(*inputs), model(*inputs)
    assert one.dtype == other.dtype and len(count) == 7
    assert (one.double() - other.double()).abs().max() <= 0.02 * other.double().abs().max()


def test_nothing_is_kept_after_a_pass():
    model, inputs = build()
    result = fused(model, inputs)
    result(*inputs).sum().backward()
    gc.collect()
    assert len(fuse_gates._modulated) == 0


class Mixed(Block):
    """A stream in float32 with branches in half precision."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate, *_ = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate.unsqueeze(1) * self.attn(self.norm1(x).to(gate.dtype))
        return x + self.mlp((self.norm2(x) * (1 + scale[:, None]) + shift[:, None]).to(gate.dtype))


class MixedNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Mixed().bfloat16() for _ in range(2)), nn.Linear(dit_models.WIDTH, 4)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, c)
        return self.head(x)


def test_a_stream_in_float32_with_branches_in_half_precision(count):
    torch.manual_seed(0)
    model, x, c = MixedNetwork(), torch.randn(3, 5, dit_models.WIDTH), torch.randn(3, dit_models.WIDTH).bfloat16()
    result = fused(model, (x, c))
    count.clear()
    error = (result(x, c) - model(x, c)).abs().max()
    assert len(count) == 2 and all(call["stream_dtype"] == torch.float32 for call in count)
    assert error <= 1e-2  # half precision in the branches, in another order of the sums in the norm


def inject(monkeypatch, wrong):
    plain = fuse_gates.gate_add_norm
    monkeypatch.setattr(fuse_gates, "gate_add_norm", lambda *args, **kwargs: wrong(plain, *args, **kwargs))


class Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 0.99 * gradient


FAULTS = {
    "eps": lambda plain, *args, **kwargs: plain(*args, **kwargs | {"eps": 2e-6}),
    "roles": lambda plain, *args, **kwargs: plain(
        *args, **kwargs | {"scale": kwargs.get("shift"), "shift": kwargs.get("scale")}
    ),
    "gate": lambda plain, *args, gate=None, **kwargs: plain(
        *args, gate=None if gate is None else gate.flip(0), **kwargs
    ),
    "gradient": lambda plain, x, *args, **kwargs: plain(Slope.apply(x), *args, **kwargs),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_part_is_noticed(monkeypatch, fault):
    model, inputs = build()
    inject(monkeypatch, FAULTS[fault])
    words = "gradient of the stream" if fault == "gradient" else "differs from the model's own"
    with pytest.raises(npl.UsageError, match=words):
        fused(model, inputs)


def test_a_wrong_order_of_casts_is_noticed(monkeypatch):
    model, inputs = build(dtype=torch.bfloat16)
    inject(monkeypatch, lambda plain, *args, **kwargs: plain(*args, **kwargs | {"rounding": "once"}))
    with pytest.raises(npl.UsageError, match="differs from the model's own"):
        fused(model, inputs)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block", BLOCKS)
def test_fused_on_a_gpu(block, dtype, count):
    model, inputs = build(block, dtype)
    model, inputs = model.cuda(), tuple(value.cuda() for value in inputs)
    result = fused(model, inputs)
    count.clear()
    # Gradients are sums of a few dozen rounded terms.
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    agree(*(gradients(each, lambda m: m(*inputs)) for each in (result, model)), tolerance)
    assert count


@needs_gpu
@pytest.mark.parametrize("block", [Block, StatementBlock, ChannelBlock])
def test_autocast_on_a_gpu(block, count):
    model, inputs = build(block)
    model, inputs = model.cuda(), tuple(value.cuda() for value in inputs)
    with torch.autocast("cuda", torch.bfloat16):
        result = fused(model, inputs)
        count.clear()
        with torch.no_grad():
            one, other = result(*inputs), model(*inputs)
    assert count and one.dtype == other.dtype
    assert (one.double() - other.double()).abs().max() <= 0.05 * other.double().abs().max()
