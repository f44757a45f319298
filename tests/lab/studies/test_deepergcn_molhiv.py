"""The compiled step of the molhiv networks, its kernels and its dropout."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from tests.lab.studies.molhiv_cases import random_bonds
from tests.lab.studies.support import stand_in_data
from tests.ops.kernels import agree_when_interpreted, needs_gpu

from normplace import UsageError
from normplace.lab.studies.deepergcn import molhiv_dropout
from normplace.lab.studies.deepergcn.molhiv_aggregation import Bonds, softmax_messages
from normplace.lab.studies.deepergcn.molhiv_batches import check_symmetric, lay_out
from normplace.lab.studies.deepergcn.molhiv_dropout import draw_keys, drop
from normplace.lab.studies.deepergcn.molhiv_official import SCALES, OfficialTrial, Training, plan
from normplace.lab.tasks.graphs.molecules import load_molhiv

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # torch.compile's own
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),  # not used, to compare with the CPU
]


@pytest.fixture
def molecules(tmp_path, monkeypatch):
    stand_in_data("deepergcn", tmp_path, monkeypatch)
    return load_molhiv()


def gradients(data, device, compiled):
    """Gradients and running statistics of one step of a network of each kind, by name."""
    trials = [OfficialTrial(seed=seed, scale=scale, depth=3, dim=16, batch_size=4) for seed, scale in enumerate(SCALES)]
    training = Training(trials, data, torch.device(device), compiled)
    training.model.train()
    orders = [torch.arange(len(data)).roll(2 * seed)[:4] for seed in range(len(trials))]
    batch = lay_out(training.data, orders, 4, training.rooms[-1]).at(0)
    keys = torch.stack([draw_keys(generator, 3) for generator in training.generators])
    training.loss(keys.to(device), *batch).backward()
    tensors = {name: parameter.grad for name, parameter in training.model.named_parameters()}
    tensors |= {name: buffer for name, buffer in training.model.named_buffers() if name != "postdeg"}
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def compare_gradients(data, device, compiled):
    """Compare with the eager network on the CPU.

    A gradient is a sum over about 50 atoms and bonds, through 3 layers with sums over 16 channels, so float32 rounds it
    by less than 3 * (50 + 16) * 2**-24 = 1.2e-5 of the largest terms. Norms, which divide by the standard deviation of
    few atoms, magnify this by up to 10 in these networks.
    """
    expected, computed = gradients(data, "cpu", False), gradients(data, device, compiled)
    largest = max(float(tensor.abs().max()) for tensor in expected.values())
    for name, tensor in expected.items():
        torch.testing.assert_close(computed[name], tensor, rtol=0, atol=1.2e-4 * largest, msg=name)
    assert min(float(tensor.abs().max()) for name, tensor in expected.items() if "temperature" in name) > 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_the_compiled_gradient_equals_the_eager_one(molecules):
    compare_gradients(molecules, "cpu", True)


def symmetric(molecules):
    """The molecules with bonds of one kind."""
    return replace(molecules, edge_attr=torch.zeros_like(molecules.edge_attr))


@needs_gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_on_a_gpu(molecules, compiled):
    compare_gradients(symmetric(molecules), "cuda", compiled)


def test_bonds_must_be_symmetric_on_a_gpu(molecules):
    check_symmetric(symmetric(molecules))
    with pytest.raises(UsageError, match="in the other direction"):
        check_symmetric(molecules)


def test_kernels_agree_in_the_interpreter():
    agree_when_interpreted("tests.lab.studies.molhiv_interpreted")


def test_gradients_of_the_aggregation():
    generator = torch.Generator().manual_seed(0)
    bonds = random_bonds(2, 6, 3, generator)
    assert bonds.first[:, -1].min() > 0
    x, table = (torch.randn(2, n, 2, generator=generator, dtype=torch.float64, requires_grad=True) for n in (6, 3))
    temperature = torch.tensor([0.7, -0.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *inputs: softmax_messages(*inputs, bonds), (x, table, temperature))


def test_the_aggregation_is_a_softmax():
    first, source, kind = (
        torch.tensor([[0, 0, 2, 3, 4]]),
        torch.tensor([[2, 3, 1, 1, 0]]),
        torch.tensor([[1, 0, 1, 0, 0]]),
    )
    generator = torch.Generator().manual_seed(0)
    x, table = (torch.randn(1, n, 3, generator=generator, dtype=torch.float64) for n in (4, 2))
    received = softmax_messages(x, table, torch.tensor([0.5], dtype=torch.float64), Bonds(first, source, kind)) - x
    messages = (x[0, [2, 3]] + table[0, [1, 0]]).relu() + 1e-7
    expected = ((0.5 * messages).softmax(0) * messages).sum(0)
    torch.testing.assert_close(received[0, 1], expected)
    assert not received[0, 0].any()


def test_hashes_of_32_bits():
    def mix(bits):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            bits = ((bits ^ bits >> shift) * factor) % 2**32
        return bits ^ bits >> 16

    keys = draw_keys(torch.Generator().manual_seed(0), 1000)
    assert [int(key) % 2**32 for key in molhiv_dropout._mix(keys)] == [mix(int(key) % 2**32) for key in keys]


def test_dropout_keeps_its_share_and_depends_on_key_and_place_alone():
    keys = draw_keys(torch.Generator().manual_seed(0), 8)
    kept = drop(torch.ones(8, 500, 64), keys, 0.2)
    assert set(kept.unique().tolist()) == {0.0, 1.25}
    # Standard deviation of the mean of 256,000 draws: (0.2 * 0.8 / 256,000) ** 0.5 * 1.25 = 0.001.
    assert float(kept.mean()) == pytest.approx(1, abs=0.004)
    # Of products of independent masks: 0.25 / 32,000 ** 0.5 = 0.0014.
    others = [kept[1:] - 1, kept[:1, 1:] - 1, kept[:1, :, 1:] - 1]
    for mask, other in zip((kept[:1] - 1, kept[:1, :-1] - 1, kept[:1, :, :-1] - 1), others, strict=True):
        assert (mask * other).mean((1, 2)).abs().max() < 0.006
    assert torch.equal(drop(torch.ones(1, 100, 64), keys[3:4], 0.2)[0], kept[3, :100])
    assert torch.equal(drop(kept, keys, 0.0), kept)


def test_ten_seeds_without_and_five_with_the_scale_are_planned():
    trials = list(plan("full"))
    assert [trial.seed for trial in trials if trial.scale == "none"] == list(range(10))
    assert [trial.seed for trial in trials if trial.scale == "degree"] == list(range(5))
