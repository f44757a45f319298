"""Norms over rows against explicit loops over graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normplace import BatchNorm, GraphNorm, MsgNorm, PairNorm

DIM = 6
BATCH = torch.tensor([0, 0, 0, 2, 2, 2, 2, 3])  # graph 1 is empty, graph 3 has one node


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def per_graph(function, x):
    out = torch.empty_like(x)
    for graph in BATCH.unique():
        out[graph == BATCH] = function(x[graph == BATCH])
    return out


def test_graphnorm_equals_its_definition_graph_by_graph():
    norm = GraphNorm(DIM).double()
    with torch.no_grad():
        for seed, parameter in enumerate(norm.parameters()):
            parameter.copy_(draw(DIM, seed=seed))
    x = draw(len(BATCH), DIM)

    def definition(rows):
        shifted = rows - norm.mean_scale * rows.mean(0)
        return norm.weight * shifted / torch.sqrt((shifted**2).mean(0) + norm.eps) + norm.bias

    torch.testing.assert_close(norm(x, BATCH), per_graph(definition, x))
    torch.testing.assert_close(norm(x, BATCH, num_graphs=4), per_graph(definition, x))
    torch.testing.assert_close(norm(x), definition(x))


@pytest.mark.parametrize("individually", [False, True])
def test_pairnorm_equals_its_definition_graph_by_graph(individually):
    norm = PairNorm(DIM, scale=1.5, scale_individually=individually)
    x = draw(len(BATCH), DIM)

    def definition(rows):
        centred = rows - rows.mean(0)
        square = (centred**2).sum(1, keepdim=True)
        square = square if individually else square.mean(0, keepdim=True)
        return 1.5 * centred / torch.sqrt(square + norm.eps)

    torch.testing.assert_close(norm(x, BATCH), per_graph(definition, x))


def test_pairnorm_fixes_the_mean_squared_row_norm():
    rows = PairNorm(DIM, scale=3.0, eps=0.0)(draw(50, DIM))
    assert float(rows.square().sum(1).mean()) == pytest.approx(9.0)


def test_a_row_scalar_survives_row_norms_and_not_individual_pairnorm():
    x, s = draw(50, DIM), torch.rand(50, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5

    def change(norm):
        return float(((norm(s * x) - norm(x)).norm() / norm(x).norm()).detach())

    assert change(GraphNorm(DIM).double()) > 0.2
    assert change(BatchNorm(DIM).double()) > 0.2
    assert change(PairNorm(DIM)) > 0.2
    # Not zero: the scalar also moves the mean that is subtracted first.
    assert change(PairNorm(DIM, scale_individually=True)) < 0.5 * change(PairNorm(DIM))


def test_batchnorm_takes_features_last_and_shares_torchs_state():
    ours, theirs = BatchNorm(DIM), nn.BatchNorm1d(DIM)
    x = draw(4, 5, DIM).float()
    torch.testing.assert_close(ours(x), theirs(x.transpose(1, 2)).transpose(1, 2))
    theirs.load_state_dict(ours.state_dict(), strict=True)
    ours.eval(), theirs.eval()
    assert torch.equal(ours(x[0]), theirs(x[0]))
    with pytest.raises(ValueError, match="6 features"):
        ours(torch.zeros(2, 5))


def test_msgnorm_gives_the_message_the_length_of_its_receiver():
    norm = MsgNorm(DIM, scale_init=2.0).double()
    message, receiver = draw(5, DIM), draw(5, DIM, seed=1)
    out = norm(message, receiver)
    torch.testing.assert_close(out.norm(dim=1), 2 * receiver.norm(dim=1))
    torch.testing.assert_close(norm(7 * message, receiver), out)
    assert torch.equal(norm(torch.zeros_like(message), receiver), torch.zeros_like(message))
    assert not MsgNorm(DIM, learn_scale=False).scale.requires_grad
    wider = draw(5, DIM + 3, seed=2)
    torch.testing.assert_close(norm(message, wider).norm(dim=1), 2 * wider.norm(dim=1))
    with pytest.raises(ValueError, match="a row for each message"):
        norm(message, receiver[:4])
