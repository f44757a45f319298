"""Training a recommender: one step by hand, learned preferences and errors."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.lab.tasks.recommend.recommend_cases import clustered, some_interactions

from normplace import UsageError
from normplace.lab.tasks.recommend import TripleSampler, rank_all
from normplace.lab.train.recommend import fit_bpr
from normplace.models.recommend import Adjacency, LightGCN


def made(data, dim=8, depth=2):
    model = LightGCN(data.num_users, data.num_items, dim, depth, generator=torch.Generator().manual_seed(0))
    return model, partial(model, Adjacency(data.edges, data.num_nodes))


def fit(data, model, represent, **options):
    options = {"epochs": 2, "batch_size": 16, "learning_rate": 0.05, **options}
    return fit_bpr(model, represent, data, generator=torch.Generator().manual_seed(1), **options)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_equals_adam_on_the_formula(schedule):
    data = some_interactions()
    model, represent = made(data)
    loss = fit(data, model, represent, schedule=schedule, l2=0.01)
    assert not model.training
    other, rows = made(data)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.05)
    draws, sampler = torch.Generator().manual_seed(1), TripleSampler(data)
    steps = -(-data.train.shape[1] // 16)
    for step in range(2 * steps):
        if step % steps == 0:
            triples, total = sampler.draw(16 * steps, draws), 0.0
        users, positive, negative = triples[:, 16 * (step % steps) : 16 * (step % steps + 1)]
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / (2 * steps)) if schedule == "linear" else 0.05
        nodes = [users, data.num_users + positive, data.num_users + negative]
        u, p, n = (rows()[chosen] for chosen in nodes)
        ranking = -torch.sigmoid((u * p).sum(1) - (u * n).sum(1)).log().mean()
        penalty = sum(other.embedding[chosen].square().sum() for chosen in nodes) / 32
        value = ranking + 0.01 * penalty
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        total += float(value.detach())
    # Adam divides by the gradient's size, so roundings of tiny gradients show at the size of a step.
    torch.testing.assert_close(model.embedding, other.embedding, rtol=1e-3, atol=1e-4)
    assert loss == pytest.approx(total / steps, rel=1e-4)


def test_it_learns_the_preferences_of_users():
    data = clustered()
    model, represent = made(data)
    seen = []

    def look(epoch):
        with torch.no_grad():
            seen.append((epoch, rank_all(*represent().split([60, 40]), data, 5).recall))

    fit(data, model, represent, epochs=8, watch=look)
    assert [epoch for epoch, _ in seen] == list(range(1, 9))
    assert seen[-1][1] > 0.9
    again, rows = made(data)
    fit(data, again, rows, epochs=8)
    assert torch.equal(again.embedding, model.embedding)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"schedule": "linar"}, "did you mean 'linear'"),
        ({"cuda_graph": True}, "needs a GPU"),
    ],
)
def test_bad_arguments_are_errors(options, sentence):
    data = some_interactions()
    with pytest.raises(UsageError, match=sentence):
        fit(data, *made(data), **options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graphed_step_equals_the_eager_step():
    data = clustered().to("cuda")
    results = []
    for recorded in (False, True):
        model, _ = made(clustered())
        model.cuda()
        represent = partial(model, Adjacency(data.edges, data.num_nodes))
        generator = torch.Generator("cuda").manual_seed(1)
        options = {"epochs": 3, "batch_size": 64, "learning_rate": 0.05, "schedule": "linear"}
        fit_bpr(model, represent, data, generator=generator, cuda_graph=recorded, **options)
        results.append(model.embedding.detach())
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)
