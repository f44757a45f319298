"""Every memory mode computes the numbers of the one that keeps everything; reversible ones do not grow with depth."""

from __future__ import annotations

import gc
import math

import pytest
import torch
import torch.distributed as dist
from tests.models.small_graph import RING, SumConv, features
from tests.process_pairs import run_pair
from torch.nn.parallel import DistributedDataParallel

from normplace import Scale, UsageError
from normplace.lab.train.distributed import exit_now
from normplace.models import Dropout, GraphStack
from normplace.models.depth import segment_length

EDGE_WEIGHT = torch.linspace(0.5, 1.5, RING.shape[1], dtype=torch.float64)


def stack(memory: str, *, depth=5, seed=0, dim=12, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    options = {"placement": "pre", "order": "activation-conv", "dropout": 0.3, "norm": "batch", **options}
    return GraphStack(SumConv, 3, dim, 2, depth, memory=memory, dtype=dtype, **options)


def gradients(net, *, x=None, weight=None, seed=7):
    """Output, and the gradients of parameters, inputs and edge weights, with the dropout masks of one seed."""
    x = features().double().requires_grad_() if x is None else x.detach().requires_grad_()
    weight = EDGE_WEIGHT.clone().requires_grad_() if weight is None else weight
    torch.manual_seed(seed)
    out = net(x, RING, weight)
    out.square().sum().backward()
    state = torch.get_rng_state()
    return (
        out.detach(),
        {
            "x": x.grad,
            "weight": weight.grad,
            **{name: p.grad for name, p in net.named_parameters()},
        },
        state,
    )


def assert_same(one, other, tolerance):
    out, grads, state = one
    out2, grads2, state2 = other
    torch.testing.assert_close(out, out2, rtol=0, atol=tolerance)
    assert grads.keys() == grads2.keys()
    for name, grad in grads.items():
        assert grad is not None, name
        torch.testing.assert_close(
            grad, grads2[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert torch.equal(state, state2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 3},
        {"placement": "peri", "norm": "layer"},
        {"scale": Scale("degree", power=-1), "gate": "learned", "stem": True},
        {"placement": "rezero", "order": "conv-activation"},
    ],
    ids=["batchnorm", "three groups", "peri", "gated scale", "rezero"],
)
def test_reversible_gradients_are_the_stored_ones(options):
    options = {"groups": 2, **options}
    stored, reversible = stack("store", **options), stack("reversible", **options)
    assert_same(gradients(stored), gradients(reversible), 1e-10)
    for (name, kept), again in zip(stored.named_buffers(), reversible.buffers(), strict=True):
        torch.testing.assert_close(kept, again, msg=f"{name} counted a recomputation")


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 40},
        {"dropout": Dropout(branch=0.2, stream=0.3, head=0.1), "virtual_node": True},
        {"placement": "post", "norm": "layer"},
        {"groups": 2},
        {"growth": 4},
    ],
    ids=["segments", "stream dropout, virtual node", "post", "groups", "growth"],
)
def test_checkpointed_gradients_are_the_stored_ones(options):
    stored, checkpointed = stack("store", **options), stack("checkpoint", **options)
    assert_same(gradients(stored), gradients(checkpointed), 1e-10)
    for kept, again in zip(stored.buffers(), checkpointed.buffers(), strict=True):
        torch.testing.assert_close(kept, again)


def test_reversible_in_single_precision():
    stored, reversible = (
        stack(m, groups=2, depth=30, norm="layer", dtype=torch.float32) for m in ("store", "reversible")
    )
    x, weight = features(), EDGE_WEIGHT.float()
    one, other = (gradients(net, x=x, weight=weight.clone().requires_grad_())[1] for net in (stored, reversible))
    largest = max(float(grad.abs().max()) for grad in one.values())
    for name, grad in one.items():
        assert float((grad - other[name]).abs().max()) < 1e-5 * largest, name


def test_reversible_under_autocast():
    actual = []
    for memory in ("store", "reversible"):
        net = stack(memory, groups=2, norm="layer", dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.manual_seed(7)
            loss = net(features(), RING).float().square().sum()
        loss.backward()
        actual.append((loss.detach(), net.blocks[0].parts[0].branch.conv.weight.grad))
    torch.testing.assert_close(actual[0][0], actual[1][0])
    assert float((actual[0][1] - actual[1][1]).abs().max()) < 0.03 * float(actual[0][1].abs().max())


def test_the_coupling_by_hand():
    net = stack("store", depth=1, groups=3, norm="layer", dropout=0.0)
    x = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    one, two, three = x.chunk(3, -1)
    parts = net.blocks[0].parts

    def f(part, value):
        return part.branch.conv(torch.relu(part.input_norm(value)), RING)

    first = one + f(parts[0], two + three)
    second = two + f(parts[1], first)
    torch.testing.assert_close(net.blocks[0](x, RING), torch.cat([first, second, three + f(parts[2], second)], -1))


def test_evaluation_needs_no_mode():
    nets = [stack(memory, groups=2).eval() for memory in ("store", "checkpoint", "reversible")]
    with torch.no_grad():
        outputs = [net(features().double(), RING) for net in nets]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def streams() -> int:
    """Tensors of 5 x 8 that Python holds, as checkpointing does with what it keeps, out of autograd's sight."""
    gc.collect()
    return sum(type(item) is torch.Tensor and item.shape == (5, 8) for item in gc.get_objects())


def kept(memory: str, depth: int) -> float:
    """How many streams of 5 x 8 numbers autograd holds between the passes, parameters left out."""
    net = stack(memory, depth=depth, groups=2, dim=8)
    sizes = []

    def pack(tensor):
        if tensor.is_floating_point() and not (tensor.is_leaf and tensor.requires_grad):
            sizes.append(tensor.numel())
        return tensor

    before = streams()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = net(features().double(), RING)
    after = streams()
    del out
    return sum(sizes) / 40 + after - before


def test_what_is_kept_between_the_passes():
    gc.collect()
    gc.freeze()  # objects of earlier tests are not listed; there may be millions, such as those of compiled graphs
    assert kept("store", 64) - kept("store", 32) > 32 * 4
    segments = [math.ceil(depth / segment_length(depth)) for depth in (64, 32)]
    assert kept("checkpoint", 64) - kept("checkpoint", 32) == segments[0] - segments[1] == 6
    assert kept("reversible", 64) == kept("reversible", 32) < 10
    assert [segment_length(depth) for depth in (1, 7, 112, 1000)] == [1, 1, 4, 11]


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_a_kept_graph_can_be_walked_again(memory):
    net = stack(memory, groups=2)
    x = features().double().requires_grad_()
    out = net(x, RING).square().sum()
    first, second = (torch.autograd.grad(out, x, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second)


def test_a_changed_parameter_is_noticed():
    net = stack("reversible")
    out = net(features().double(), RING)
    with torch.no_grad():
        for parameter in net.blocks.parameters():
            parameter.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_frozen_parts_get_no_gradient():
    net = stack("reversible")
    net.blocks[0].requires_grad_(False)
    net(features().double(), RING).sum().backward()
    assert all(p.grad is None for p in net.blocks[0].parameters())
    assert all(p.grad is not None for p in net.blocks[1].parameters())


def _worker(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for memory in ("checkpoint", "reversible"):
        net = DistributedDataParallel(stack(memory, groups=2, norm="layer", dropout=0.0))
        for _ in range(2):  # the second step would fail if a parameter had been counted twice in the first
            net.zero_grad()
            net(features(seed=rank).double(), RING).square().sum().backward()
        if rank == 0:
            torch.save({name: p.grad for name, p in net.module.named_parameters()}, f"{folder}/{memory}.pt")
    dist.barrier()
    dist.destroy_process_group()
    exit_now()


def test_two_processes_give_the_gradients_of_one(tmp_path):
    run_pair(tmp_path, _worker, str(tmp_path))
    net = stack("store", groups=2, norm="layer", dropout=0.0)
    (sum(net(features(seed=rank).double(), RING).square().sum() for rank in range(2)) / 2).backward()
    for memory in ("checkpoint", "reversible"):
        actual = torch.load(tmp_path / f"{memory}.pt", weights_only=True)
        for name, parameter in net.named_parameters():
            torch.testing.assert_close(actual[name], parameter.grad, rtol=1e-10, atol=1e-12)


MISTAKES = [
    ({"memory": "revers"}, "did you mean 'reversible'"),
    ({"memory": "reversible", "groups": 5}, "5 groups cannot share a width of 12"),
    ({"memory": "reversible", "groups": 1}, "give groups=2 or more"),
    ({"memory": "reversible", "placement": "post"}, "choose one such as 'pre'"),
    ({"memory": "reversible", "dropout": Dropout(stream=0.1)}, "use memory='checkpoint'"),
    ({"memory": "reversible", "virtual_node": True}, "use memory='checkpoint'"),
    ({"memory": "reversible", "growth": 4}, "widens the stream"),
]


@pytest.mark.parametrize(("options", "reason"), MISTAKES)
def test_mistakes_are_named(options, reason):
    with pytest.raises(UsageError, match=reason):
        stack(**options)
