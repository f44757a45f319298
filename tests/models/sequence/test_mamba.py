"""Mamba-2 against the mixer of Hugging Face, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from normplace import UsageError
from normplace.models.sequence import Mamba2, SequenceModel
from normplace.models.sequence.mamba import DECAYS, STEPS, MambaCache
from normplace.models.transformer import WeightInit


def test_it_computes_what_transformers_computes():
    mamba2 = pytest.importorskip("transformers.models.mamba2", reason="the reference is in transformers")
    config = mamba2.Mamba2Config(
        hidden_size=12, num_heads=3, head_dim=8, expand=2, state_size=5, n_groups=1, conv_kernel=4, chunk_size=8,
        num_hidden_layers=1,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = mamba2.modeling_mamba2.Mamba2Mixer(config, 0).double().eval()
    ours = Mamba2(12, 3, state=5, dtype=torch.float64)
    weights = {
        "input.weight": theirs.in_proj.weight,
        "output.weight": theirs.out_proj.weight,
        "filter": theirs.conv1d.weight[:, 0],
        "filter_bias": theirs.conv1d.bias,
        "step_bias": theirs.dt_bias,
        "log_decay": theirs.A_log,
        "skip": theirs.D,
        "gain": theirs.norm.weight,
    }
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            drawn = torch.randn(parameter.shape, dtype=torch.float64) / 2
            weights[name].copy_(drawn)
            parameter.copy_(drawn)
        x = torch.randn(2, 21, 12, dtype=torch.float64)
        # There, the gated norm is in float32.
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_initial_values_are_in_the_published_ranges():
    branch = Mamba2(8, 64, 128, init=WeightInit(depth=4, branches=1), generator=torch.Generator().manual_seed(0))
    steps = torch.nn.functional.softplus(branch.step_bias)
    for values, (low, high) in ((steps, STEPS), (branch.log_decay.exp(), DECAYS)):
        assert low * 0.999 <= values.min() < values.max() <= high * 1.001
        assert values.max() / values.min() > 4
    assert float(branch.output.weight.detach().std()) == pytest.approx(0.01, rel=0.1)
    branch.gain.data.zero_()
    branch.reset_parameters()
    assert branch.gain.eq(1).all()


def test_the_state_does_not_grow():
    model = SequenceModel(11, 8, 1, mixer="mamba-2", positions="none")
    sizes = []
    for length in (8, 64):
        _, state = model.prefill(torch.zeros(1, length, dtype=torch.long))
        sizes.append(state.layers[0].nbytes)
    assert sizes[0] == sizes[1] == 4 * (16 * 64 + 3 * (16 + 2 * 64))


def test_what_it_refuses():
    with pytest.raises(UsageError, match="3 heads cannot share 16 channels"):
        Mamba2(8, 3)
    with pytest.raises(UsageError, match="holds no gradients"):
        Mamba2(8)(torch.zeros(1, 2, 8), cache=MambaCache())
