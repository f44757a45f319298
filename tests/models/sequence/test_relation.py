"""CausalRN's branch and block, against the published equations written out pair by pair in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from normplace import UsageError
from normplace.models import CausalRN
from normplace.models.sequence import RelationBranch
from normplace.models.sequence.relation import ACTIVATIONS, NORMS, RelationCache

ACT = {"exp": torch.exp, "relu": F.relu, "gelu": F.gelu, "elu": F.elu}


def plain(x, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def pairs(a, b, norm, activation, post_norm, eps):
    """BAR, one pair after the other."""
    if norm == "separate":
        a, b = plain(a, eps), plain(b, eps)
    rows = []
    for i in range(a.shape[1]):
        terms = [a[:, i] + b[:, j] for j in range(i + 1)]
        terms = [plain(term, eps) if norm == "joint" else term for term in terms]
        rows.append(sum(ACT[activation](term) for term in terms) / (i + 1))
    y = torch.stack(rows, 1)
    return plain(y, eps) if post_norm else y


def branch(**options) -> RelationBranch:
    generator = torch.Generator().manual_seed(0)
    return RelationBranch(6, 10, std=0.7, last_std=0.7, generator=generator, dtype=torch.float64, **options)


def stream(length=7, width=6):
    return torch.randn(2, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("post_norm", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_the_branch_is_the_published_equation(norm, activation, post_norm):
    block = branch(norm=norm, activation=activation, post_norm=post_norm)
    x = stream().requires_grad_()
    y = pairs(block.query(x), block.key(x), norm, activation, post_norm, 1e-5)
    wanted = block.output(y)
    actual = block(x)
    torch.testing.assert_close(actual, wanted)
    weight = torch.randn(actual.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    parameters = [x, *block.parameters()]
    gradients = [torch.autograd.grad((out * weight).sum(), parameters) for out in (actual, wanted)]
    torch.testing.assert_close(*gradients)


def test_a_network_without_eps_is_the_published_one():
    model = CausalRN(11, 8, 3, context=9, hidden=12, eps=0.0, dtype=torch.float64)
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(0))
    x = model.embed.weight[tokens] + model.position_embedding.weight
    for (block,) in model.layers:
        part = block.branch
        r = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, unbiased=False)
        a, b = F.linear(r, part.query.weight, part.query.bias), F.linear(r, part.key.weight)
        x = x + F.linear(pairs(a, b, "joint", "exp", True, 0.0), part.output.weight, part.output.bias)
    wanted = F.linear(plain(x, 0.0), model.head.weight)
    torch.testing.assert_close(model(tokens), wanted)


def test_initial_weights_are_the_published_ones():
    model = CausalRN(29, 192, 4, context=130, generator=torch.Generator().manual_seed(0))
    ((block,), *_) = model.layers
    part = block.branch
    spread = {
        model.embed.weight: 1.0,
        model.position_embedding.weight: 1.0,
        part.query.weight: 0.02,
        part.key.weight: 0.02,
        part.output.weight: 0.02 / math.sqrt(4),
        model.head.weight: 0.02,
    }
    for weight, deviation in spread.items():
        # Five deviations of the deviation of that many normal numbers.
        assert weight.std().item() == pytest.approx(deviation, rel=5 / math.sqrt(2 * weight.numel()))
    assert not part.query.bias.any()
    assert not part.output.bias.any()
    assert part.key.bias is None


def test_the_scan_is_chosen_where_it_computes_the_same():
    forms = {(norm, name): branch(norm=norm, activation=name).form for norm in NORMS for name in ACTIVATIONS}
    assert {cell for cell, form in forms.items() if form == "scan"} == {("separate", "exp"), ("none", "exp")}
    x = stream()
    torch.testing.assert_close(branch(norm="separate")(x), branch(norm="separate", form="pairwise")(x))


@pytest.mark.parametrize("norm", NORMS)
def test_masked_tokens_are_not_read(norm):
    block, x = branch(norm=norm, heads=2), stream()
    mask = torch.tensor([[True] * 7, [True, True, False, True, False, True, True]])
    actual = block(x, mask=mask)
    torch.testing.assert_close(actual[:1], block(x[:1]))
    torch.testing.assert_close(actual[1:, mask[1]], block(x[1:, mask[1]]))


def test_memories_hold_what_the_forms_say():
    x = stream(length=5)
    with torch.no_grad():
        sizes = {}
        for norm in ("joint", "separate"):
            block, cache = branch(norm=norm), RelationCache()
            sizes[norm] = [0]
            for part in x.split([3, 1, 1], 1):
                block(part, cache=cache)
                sizes[norm].append(cache.nbytes)
    row = 2 * 10 * 8
    assert sizes == {"joint": [0, 3 * row, 4 * row, 5 * row], "separate": [0, row, row, row]}


MISTAKES = [
    ({"norm": "jiont"}, "did you mean 'joint'"),
    ({"activation": "exponential"}, "unknown activation of a pair"),
    ({"form": "scan"}, "use norm='separate' or 'none'"),
    ({"heads": 3}, "3 heads cannot share 10 channels"),
    ({"eps": -1.0}, "eps must be zero or more"),
]


@pytest.mark.parametrize(("options", "reason"), MISTAKES)
def test_mistakes_are_named(options, reason):
    with pytest.raises(UsageError, match=reason):
        branch(**options)


def test_a_cache_refuses_gradients():
    with pytest.raises(UsageError, match="a cache holds no gradients"):
        branch()(stream(), cache=RelationCache())
