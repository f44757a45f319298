"""Several seeds of DeeperGCN's networks computed at once: equal to each seed alone."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace

import pytest
import torch
from tests.lab.studies.support import record, stand_in_data, verdict
from tests.ops.kernels import needs_gpu
from torch.nn import functional as F

from normplace import UsageError
from normplace.lab.studies.deepergcn import molhiv, molhiv_official, node_seeds, orders, recipes, stacked
from normplace.lab.studies.deepergcn.claims import CLAIMS
from normplace.lab.studies.deepergcn.device_scores import DeviceScores
from normplace.lab.studies.deepergcn.molhiv_batches import lay_out, multi_hot, needed_rooms, rooms
from normplace.lab.studies.deepergcn.molhiv_official import POSTDEG, OfficialTrial
from normplace.lab.studies.deepergcn.networks import OWN_WEIGHTS
from normplace.lab.studies.deepergcn.node_seeds import SeedsTrial, gradient_reach
from normplace.lab.studies.deepergcn.published import MOLHIV_PARAMETERS
from normplace.lab.tasks.graphs.labelled import LabelledGraph
from normplace.lab.tasks.graphs.molecules import load_molhiv
from normplace.lab.train.cuda_graph import WARM_UP, GraphedStep
from normplace.lab.trials.claims import Verdict

SMALL = SeedsTrial(
    "grid-mines", "res+", 3, 0, side=10, dim=4, growth=2, epochs=6, dropout=0.2, learning_rate=1e-2, device="cpu"
)
VARIANTS = [
    {"order": "res+", "aggregation": "softmax learned"},
    {"order": "res", "aggregation": "power mean per channel", "dropped": "stream"},
    {"order": "plain", "aggregation": "softmax sum"},
    {"order": "dense", "aggregation": f"mean{OWN_WEIGHTS}", "average": 0.9, "input_dropout": 0.2, "schedule": "cosine"},
]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def in_float64(monkeypatch):
    """Float64, in which Adam does not turn the rounding of zero gradients into steps."""
    build, load = node_seeds._build, node_seeds.load

    def wide(trial):
        graph, split = load(trial)
        return replace(graph, x=graph.x.double()), split

    monkeypatch.setattr(node_seeds, "_build", lambda trial, graph: build(trial, graph).double())
    monkeypatch.setattr(node_seeds, "load", wide)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_seed_does_not_depend_on_the_seeds_trained_with_it(variant, in_float64):
    trials = [replace(SMALL, seed=seed, **variant) for seed in (3, 4, 5)]
    together, alone = node_seeds.run_seeds(trials), [node_seeds.run(trial) for trial in trials]
    for one, other in zip(together, alone, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-6, abs=1e-9)
    assert together[0].metrics != together[1].metrics


def _eager(step, generators):
    """Stands in for the recorder of CUDA graphs."""
    return step


class FailsToRecord(GraphedStep):
    """Takes the eager steps before a recording, then fails."""

    def __call__(self, *inputs):
        if self.eager_steps == WARM_UP:
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")
        self.eager_steps += 1
        self.step()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_seed_of_a_recorded_step_does_not_depend_on_the_others(variant, in_float64, monkeypatch):
    monkeypatch.setattr(node_seeds, "_recorder", lambda device: _eager)
    trials = [replace(SMALL, seed=seed, **variant) for seed in (3, 4, 5)]
    together, alone = node_seeds.run_seeds(trials), [node_seeds.run(trial) for trial in trials]
    for one, other in zip(together, alone, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-6, abs=1e-9)
    assert together[0].metrics != together[1].metrics


@pytest.mark.parametrize("variant", [{"average": 0.9, "schedule": "cosine"}, {"data": "grid-mines", "order": "dense"}])
def test_recorded_and_eager_steps_give_equal_results(variant, in_float64, monkeypatch):
    trials = [replace(SMALL, seed=seed, dropout=0.0, **variant) for seed in (3, 4)]  # masks are drawn in another order
    expected = node_seeds.run_seeds(trials)
    monkeypatch.setattr(node_seeds, "_recorder", lambda device: _eager)
    for one, other in zip(node_seeds.run_seeds(trials), expected, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-9, abs=1e-12)
        for name in ("gradient_end", "energy", "cosine", "train"):
            assert one.series[name] == pytest.approx(other.series[name])


@needs_gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_recorded_step_equals_an_eager_one_on_a_gpu(variant, in_float64, monkeypatch):
    trials = [replace(SMALL, seed=seed, device="cuda", epochs=2 * WARM_UP, **variant) for seed in (3, 4)]
    recorded = node_seeds.run_seeds(trials)
    monkeypatch.setattr(node_seeds, "_recorder", lambda device: None)
    for one, other in zip(recorded, node_seeds.run_seeds(trials), strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-6, abs=1e-9)


@needs_gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gpu_computes_what_a_cpu_does(variant, in_float64):
    trials = [replace(SMALL, seed=seed, dropout=0.0, **{**variant, "input_dropout": 0.0}) for seed in (3, 4)]
    expected = node_seeds.run_seeds(trials)
    for one, other in zip(node_seeds.run_seeds([replace(t, device="cuda") for t in trials]), expected, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-6, abs=1e-9)


def test_a_step_that_cannot_be_recorded_runs_eagerly_with_a_warning(monkeypatch):
    expected = node_seeds.run(SMALL)
    monkeypatch.setattr(node_seeds, "_recorder", lambda device: FailsToRecord)
    with pytest.warns(UserWarning, match="runs eagerly, because .* not permitted when stream is capturing$"):
        assert node_seeds.run(SMALL).metrics == expected.metrics


def test_an_error_before_the_recording_is_raised(monkeypatch):
    class FailsAtOnce(FailsToRecord):
        def __call__(self, *inputs):
            raise RuntimeError("out of memory")

    monkeypatch.setattr(node_seeds, "_recorder", lambda device: FailsAtOnce)
    with pytest.raises(RuntimeError, match="out of memory"):
        node_seeds.run(SMALL)


def test_a_training_is_released_without_a_garbage_collection(monkeypatch):
    """Graphs of deep stacks hold tens of gigabytes."""
    trainings = weakref.WeakSet()

    class Watched(node_seeds.Training):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            trainings.add(self)

    monkeypatch.setattr(node_seeds, "Training", Watched)
    monkeypatch.setattr(node_seeds, "_recorder", lambda device: _eager)
    gc.disable()
    try:
        node_seeds.run(SMALL)
        assert not trainings
    finally:
        gc.enable()


@pytest.mark.parametrize("nodes", [5, 2 * stacked.PARTS, 3 * stacked.PARTS + 7])
@pytest.mark.parametrize("bias", [True, False])
def test_products_in_place_equal_the_linear_maps(nodes, bias):
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    x, weight, shift = random(nodes, 3 * 4), random(3, 5, 4), random(3, 5) if bias else None
    inputs = [tensor for tensor in (x, weight, shift) if tensor is not None]
    y = stacked.ProductInPlace.apply(x, weight, shift)
    expected = torch.einsum("nki,koi->nko", x.unflatten(1, (3, 4)), weight)
    expected = (expected if shift is None else expected + shift).flatten(1)
    torch.testing.assert_close(y, expected)
    upstream = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(*(torch.autograd.grad(out, inputs, upstream) for out in (y, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_masks_of_all_layers_are_drawn_at_once():
    generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
    model = torch.nn.Sequential(*(stacked.SeededDropout(0.25, generators) for _ in range(2)))
    masks = stacked.DropoutMasks(model)
    x = torch.ones(200, 2 * 30, requires_grad=True)
    masks.draw()
    model(x)  # tells the sizes
    masks.draw()
    y = model[0](x)
    y.sum().backward()
    kept = y != 0
    assert kept.float().mean() == pytest.approx(0.75, abs=0.02)  # 12,000 draws: 5 standard deviations
    torch.testing.assert_close(y, kept / 0.75)
    torch.testing.assert_close(x.grad, kept / 0.75)
    others = [kept[:, 30:], model[1](x)[:, :30] != 0]
    masks.draw()
    others.append(model[0](x)[:, :30] != 0)
    for other in others:  # of another network, layer and step
        assert (kept[:, :30] == other).float().mean() == pytest.approx(0.75**2 + 0.25**2, abs=0.04)


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_on_the_device_equal_the_official_metric(classes):
    generator = torch.Generator().manual_seed(0)
    masks = torch.randint(3, (4, 50), generator=generator)
    graph = LabelledGraph(
        "random",
        torch.zeros(50, 1),
        torch.randint(classes, (50,), generator=generator),
        torch.zeros(2, 0, dtype=torch.long),
        *(masks == number for number in range(3)),
    )
    splits = (2, 0)
    logits = torch.randn(2, 50, classes, generator=generator).mul(4).round()  # with ties
    logits[1, :10] = logits[1, 10:20]
    scores = DeviceScores([(graph, split) for split in splits], torch.device("cpu"))(logits)
    for column, split in enumerate(splits):
        sets = (graph.train, graph.val, graph.test)
        expected = [graph.score(logits[column], nodes[split]) for nodes in sets]
        assert scores[:, column].tolist() == pytest.approx(expected, abs=1e-12)


def test_every_layer_has_a_gradient_and_a_smoothness():
    outcome = node_seeds.run(replace(SMALL, order="dense"))
    assert len(outcome.series["energy"]) == SMALL.depth + 1
    for when in ("start", "end"):
        norms = outcome.series[f"gradient_{when}"]
        assert len(norms) == SMALL.depth
        assert min(norms) > 0
        assert outcome.metrics[f"gradient_reach_{when}"] == pytest.approx(math.log10(norms[0] / norms[-1]), abs=1e-3)
    assert outcome.metrics["train"] > 0
    assert gradient_reach([1e-40, 1.0]) == -30


def test_training_changes_the_network_and_its_average():
    start = node_seeds.run(replace(SMALL, epochs=1, learning_rate=1e-9, evaluations=1))
    for average in (0.0, 0.9):
        trained = node_seeds.run(replace(SMALL, epochs=60, average=average, side=16, dim=8))
        assert trained.metrics["train"] > 0.75 > start.metrics["train"]


def test_the_grid_and_the_splits_are_planned():
    trials = list(orders.plan("full"))
    assert len(set(trials)) == len(trials)
    splits = {(trial.data, trial.depth): set() for trial in trials}
    for trial in trials:
        splits[trial.data, trial.depth].add(trial.seed)
    assert splits["tolokers", 112] == set(range(5))
    assert splits["tolokers", 28] == splits["minesweeper", 112] == set(range(10))
    assert {trial.depth for trial in trials if trial.data == "tolokers"} == {3, 7, 28, 112}
    assert max(trial.depth for trial in trials if trial.order == "dense") == 28
    assert {trial.seed for trial in trials if trial.data == "actor"} == set(range(10))
    assert {trial.aggregation for trial in trials if trial.data == "minesweeper"} == set(orders.AGGREGATIONS)
    assert len(list(recipes.plan("full"))) == 120


def test_the_cells_that_claims_read_are_planned_first():
    trials = list(orders.plan("full"))
    grid = next(index for index, trial in enumerate(trials) if trial.data == "grid-mines")
    metrics = dict.fromkeys(("test", "last_test", "last_train", "energy"), 0.7)
    metrics |= dict.fromkeys(("gradient_reach_start", "gradient_reach_end"), -2.0)
    fields = ("data", "order", "depth", "aggregation")
    records = [
        record("orders", trial.seed, metrics, **{name: getattr(trial, name) for name in fields})
        for trial in trials[:grid]
    ]
    tested = [claim.id for claim in CLAIMS if verdict([claim], claim.id, records) != Verdict.NOT_TESTED]
    names = ("learned-numbers", "channel-numbers", "degree-sums")
    causes = ("vanishing", "over-smoothing", "over-fitting")
    expected = {"orders-splits", *(f"{name}-splits" for name in names)}
    assert set(tested) == expected | {f"{cause}-{graphs}" for cause in causes for graphs in ("splits", "other")}
    read = {(trial.data, trial.order, trial.depth, trial.aggregation) for trial in trials[:grid]}
    for cell in read:  # without any of them, a claim is not tested
        fewer = [one for one in records if tuple(one.config[name] for name in fields) != cell]
        tested_now = [claim for claim in CLAIMS if verdict([claim], claim.id, fewer) != Verdict.NOT_TESTED]
        # The shallowest and the deepest stack of a cause are those that there are.
        assert len(tested_now) < len(tested) or cell[3] == orders.LEARNED


MISTAKES = [
    (lambda: replace(SMALL, schedule="cosin"), "did you mean 'cosine'"),
    (lambda: replace(SMALL, average=1.0), "average must be"),
    (lambda: replace(SMALL, input_dropout=1.0), "input_dropout must be"),
    (lambda: replace(SMALL, norm="layer"), "with BatchNorm"),
    (lambda: OfficialTrial(seed=0, scale="degre"), "did you mean 'degree'"),
    (lambda: OfficialTrial(seed=0, batch_size=1), "batch_size must be at least 2"),
]


@pytest.mark.parametrize(("call", "reason"), MISTAKES)
def test_invalid_configurations(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()


@pytest.fixture
def molecules(tmp_path, monkeypatch):
    stand_in_data("deepergcn", tmp_path, monkeypatch)
    return load_molhiv()


@pytest.mark.parametrize("scale", molhiv_official.SCALES)
def test_networks_on_fixed_batches_equal_the_published_network(molecules, scale, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    trials = [OfficialTrial(seed=seed, scale=scale, depth=3, dim=8, dropout=0.0, batch_size=4) for seed in range(2)]
    everything = torch.arange(len(molecules))
    orders_of_seeds = [everything, everything.flip(0)]
    room = rooms(molecules, 4)[-1]
    batches = lay_out(molecules, orders_of_seeds, 4, room)
    model = molhiv_official.networks(trials).double()
    for number, needed in enumerate(needed_rooms(molecules, orders_of_seeds, 4)):
        fixed = batches.at(number, needed if number else None)  # less room gives the same result
        logits = model(fixed, multi_hot(molecules))
        model.zero_grad()
        (F.binary_cross_entropy_with_logits(logits, fixed.y, reduction="none") * fixed.weight).sum().backward()
        for seed, order in enumerate(orders_of_seeds):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                reference = molhiv.build(trials[seed], scale=POSTDEG if scale == "degree" else None).double()
            batch = molecules.batch(order[4 * number : 4 * number + 4])
            inputs = (batch.x, batch.edge_index, batch.edge_attr, batch.batch)
            expected = reference(*inputs, num_graphs=batch.num_graphs)[:, 0]
            F.binary_cross_entropy_with_logits(expected, batch.y[:, 0].double()).backward()
            torch.testing.assert_close(logits[seed, : len(expected)], expected, rtol=1e-9, atol=1e-9)
            blocks = zip(model.convs, reference.blocks, strict=True)
            pairs = [(model.atoms.grad[seed], reference.embed.table.grad)]
            for conv, block in blocks:
                theirs = block.branch.conv
                pairs += [
                    (conv.linear.weight.grad[seed].t(), theirs.conv.mlp[0].weight.grad),
                    (conv.temperature.grad[seed], theirs.conv.aggr_module.t.grad[0]),
                    (conv.table.grad[seed], theirs.bonds.table.grad),
                ]
            for ours, theirs in pairs:
                torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)  # a mean of labels is in float32


def test_the_official_network_has_the_published_size():
    model = molhiv_official.networks([OfficialTrial(seed=seed) for seed in range(2)])
    assert sum(p.numel() for p in model.parameters()) == 2 * MOLHIV_PARAMETERS


def test_molecules_of_a_seed_do_not_depend_on_the_other_seeds(molecules):
    settings = {"depth": 2, "dim": 8, "epochs": 2, "batch_size": 4, "device": "cpu"}
    trials = [OfficialTrial(seed=0, scale="none", **settings), OfficialTrial(seed=1, scale="degree", **settings)]
    together, alone = molhiv_official.run_seeds(trials), molhiv_official.run(trials[1])
    assert together[1].series["temperature"] == pytest.approx(alone.series["temperature"], abs=1e-4)
    assert together[1].series["temperature"] != together[0].series["temperature"]
    assert together[1].series["temperature"] != [1.0, 1.0]
    best = alone.series["val"].index(max(alone.series["val"]))
    assert alone.metrics["best_epoch"] == 1 + best


def test_a_batch_without_room_is_an_error(molecules):
    with pytest.raises(UsageError, match="a batch needs room"):
        lay_out(molecules, [torch.arange(len(molecules))], 4, rooms(molecules, 4)[0]._replace(atoms=2))


def test_over_fitting_is_void_where_the_train_score_and_the_test_score_are_kept():
    def stack(order, depth, test, train, reach, energy):
        metrics = {"test": test, "last_test": test, "last_train": train, "energy": energy}
        metrics |= {f"gradient_reach_{when}": reach for when in ("start", "end")}
        fields = {"data": "grid-mines", "order": order, "depth": depth, "aggregation": "softmax learned"}
        return [
            record("orders", seed, {name: value + seed / 1e4 for name, value in metrics.items()}, **fields)
            for seed in range(5)
        ]

    residual = stack("res+", 3, 0.9, 0.92, 0.0, 0.2) + stack("res+", 16, 0.9, 0.95, 0.0, 0.2)
    fitted = residual + stack("plain", 3, 0.9, 0.92, 0.0, 0.2) + stack("plain", 16, 0.7, 0.95, -2.0, 0.01)
    failed = residual + stack("plain", 3, 0.9, 0.92, 0.0, 0.2) + stack("plain", 16, 0.7, 0.72, 0.3, 0.2)
    kept = residual + stack("plain", 3, 0.9, 0.92, 0.0, 0.2) + stack("plain", 16, 0.9, 0.95, 0.0, 0.2)
    for cause in ("vanishing", "over-smoothing", "over-fitting"):
        assert verdict(CLAIMS, f"{cause}-grid", fitted) == Verdict.REPRODUCED, cause
        assert verdict(CLAIMS, f"{cause}-grid", failed) == Verdict.NOT_REPRODUCED, cause
    assert verdict(CLAIMS, "over-fitting-grid", kept) == Verdict.VOID


def test_the_recipe_with_the_best_validation_score_counts():
    candidates = recipes.CANDIDATES["tolokers"]
    records = [
        record("recipes", seed, {"test": test, "val": val}, data="tolokers", **settings)
        for settings, test, val in zip(candidates, (0.9, 0.84, 0.9), (0.80, 0.84, 0.82), strict=True)
        for seed in range(10)
    ]
    assert verdict(CLAIMS, "recipe-tolokers", records) == Verdict.REPRODUCED
    low = [replace(one, metrics={**one.metrics, "test": one.metrics["test"] - 0.01}) for one in records]
    assert verdict(CLAIMS, "recipe-tolokers", low) == Verdict.NOT_REPRODUCED
    assert verdict(CLAIMS, "recipe-tolokers", []) == Verdict.NOT_TESTED
