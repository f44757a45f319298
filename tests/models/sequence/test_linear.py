"""Linear attention with and without a gate, against loops over tokens in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from normplace import UsageError
from normplace.models.sequence import GatedLinear, LinearAttention
from normplace.models.sequence.linear import LinearCache, decayed_sums


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def one_by_one(q, k, v, log_decay, state):
    rows = []
    for t in range(q.shape[2]):
        state = log_decay[:, :, t, None, None].exp() * state + k[:, :, t, :, None] * v[:, :, t, None, :]
        rows.append((q[:, :, t, :, None] * state).sum(-2))
    return torch.stack(rows, 2), state


@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("length", [1, 4, 11])
@pytest.mark.parametrize("before", [True, False])
def test_chunks_equal_a_loop(length, chunk, before):
    q, k, v = (numbers(2, 3, length, width, seed=n) for n, width in enumerate((5, 5, 4)))
    log_decay = F.logsigmoid(numbers(2, 3, length, seed=3))
    state = numbers(2, 3, 5, 4, seed=4)
    wanted = one_by_one(q, k, v, log_decay, state if before else torch.zeros_like(state))
    torch.testing.assert_close(decayed_sums(q, k, v, log_decay, state if before else None, chunk), wanted)
    undecayed = one_by_one(q, k, v, torch.zeros_like(log_decay), state if before else torch.zeros_like(state))
    torch.testing.assert_close(decayed_sums(q, k, v, None, state if before else None, chunk), undecayed)


def test_small_decays_after_many_large_ones_keep_their_digits():
    q, k, v = (numbers(1, 1, 400, 3, seed=n) for n in range(3))
    log_decay = torch.full((1, 1, 400), -0.003, dtype=torch.float64)
    log_decay[..., :200] = -500
    wanted, state = decayed_sums(q, k, v, log_decay, chunk=1)
    out, last = decayed_sums(q.float(), k.float(), v.float(), log_decay.float(), chunk=1)
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=1e-4)
    torch.testing.assert_close(last.double(), state, rtol=0, atol=1e-4)


def branch(kind, **options):
    torch.manual_seed(0)
    module = kind(8, 2, dtype=torch.float64, **options)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def heads(x):
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


def test_linear_attention_is_its_equation():
    module, x = branch(LinearAttention), numbers(2, 9, 8)
    q, k, v = (heads(part(x)) for part in (module.query, module.key, module.value))
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2)).tril()
    mixed = (weights / weights.sum(-1, keepdim=True)) @ v
    torch.testing.assert_close(module(x), module.output(mixed.transpose(1, 2).flatten(2)))


def test_gated_linear_attention_is_its_equation():
    module, x = branch(GatedLinear), numbers(2, 9, 8)
    q, k, v = (heads(part(x)) for part in (module.query, module.key, module.value))
    log_decay = torch.sigmoid(module.gate(x)).log().transpose(1, 2) / 16
    mixed, _ = one_by_one(q / 2, k, v, log_decay, torch.zeros(2, 2, 4, 4, dtype=torch.float64))
    mixed = (mixed - mixed.mean(-1, keepdim=True)) / (mixed.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(module(x), module.output(mixed.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("kind", [LinearAttention, GatedLinear])
def test_masked_tokens_are_not_read(kind):
    module, x = branch(kind), numbers(1, 7, 8)
    mask = torch.tensor([[True, True, False, True, False, True, True]])
    torch.testing.assert_close(module(x, mask=mask)[:, mask[0]], module(x[:, mask[0]]))


@pytest.mark.parametrize("kind", [LinearAttention, GatedLinear])
def test_the_state_is_of_one_size_and_in_single_precision(kind):
    module, x = branch(kind).to(torch.bfloat16), numbers(1, 70, 8).to(torch.bfloat16)
    cache, sizes = LinearCache(), []
    assert cache.nbytes == 0
    with torch.no_grad():
        parts = []
        for part in x.split([67, 1, 2], 1):
            parts.append(module(part, cache=cache))
            sizes.append(cache.nbytes)
        assert cache.state.dtype == torch.float32
        whole = module(x)
    assert len(set(sizes)) == 1
    assert whole.dtype == torch.bfloat16
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("kind", [LinearAttention, GatedLinear])
def test_mistakes_are_named(kind):
    with pytest.raises(UsageError, match="3 heads cannot share a width of 8"):
        kind(8, 3)
    with pytest.raises(UsageError, match="a cache holds no gradients"):
        branch(kind)(numbers(1, 3, 8), cache=LinearCache())
