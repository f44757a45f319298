"""What is special to the extrapolation study: published sizes, growth with and without norms, and tabular data."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.lab.studies.support import stand_in_data

from normplace import UsageError
from normplace.lab.studies.extrapolation import STUDY, kernels, tabular, wide
from normplace.lab.studies.extrapolation.activations import ActivationTrial
from normplace.lab.studies.extrapolation.bounds import BoundTrial
from normplace.lab.studies.extrapolation.faces import FacesTrial
from normplace.lab.studies.extrapolation.networks import SequenceRegressor
from normplace.lab.studies.extrapolation.protein import LEARNERS, ProteinTrial
from normplace.lab.studies.extrapolation.published import FACES, PROTEIN
from normplace.lab.studies.extrapolation.random_networks import INPUTS, random_network, search_growth
from normplace.lab.studies.extrapolation.sequence import SequenceTrial
from normplace.lab.studies.extrapolation.toy import ToyTrial
from normplace.lab.studies.extrapolation.weak_faces import WeakFacesTrial


@pytest.fixture
def data(tmp_path, monkeypatch):
    stand_in_data("extrapolation", tmp_path, monkeypatch)


pytestmark = pytest.mark.usefixtures("one_thread")


def run(part: str, trial):
    return STUDY.part(part).run(trial)


def test_full_scale_has_the_published_settings():
    full = {part.name: list(part.plan("full")) for part in STUDY.parts}
    assert {trial.epochs for trial in full["protein"]} == {2500}
    assert {(trial.rows, trial.batch_size, trial.learning_rate) for trial in full["protein"]} == {(0, 0, 1e-3)}
    assert len(full["protein"]) == 10 * 5
    assert len(full["faces"]) == 250 * 4
    rates = {trial.norm_at: trial.learning_rate for trial in full["faces"]}
    assert rates == {"none": 1e-3, "first": 1e-3, "last": 3e-3, "every": 3e-3}


def test_batchnorm_grows_and_layernorm_does_not():
    trial = ToyTrial("linear", "every", 0, epochs=60)
    assert run("variants", trial).metrics["growth"] < 0.05
    assert run("variants", replace(trial, norm="batch")).metrics["growth"] > 0.9
    with pytest.raises(UsageError, match="unknown norm 'btach': did you mean 'batch'"):
        replace(trial, norm="btach")


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_smooth_activations(activation):
    trial = ToyTrial("quadratic", "none", 0, epochs=30, activation=activation)
    assert run("variants", trial).metrics["growth"] > 0.9
    assert run("variants", replace(trial, norm_at="first")).metrics["growth"] < 0.05


def test_the_transformer_is_causal():
    model = SequenceRegressor(16, 4, 2, True, torch.Generator().manual_seed(0))
    values = torch.randn(3, 9, generator=torch.Generator().manual_seed(1))
    changed = values.clone()
    changed[:, 6] += 1
    before, after = model(values), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])
    with pytest.raises(UsageError, match="16 is not a multiple of the 3 heads"):
        SequenceRegressor(16, 3, 2, True, torch.Generator())


def test_attention_equals_its_formula():
    from normplace.lab.studies.extrapolation.networks import CausalAttention

    attention = CausalAttention(6, 2, torch.Generator().manual_seed(0)).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    query, key, value = attention.read(x).split(6, dim=-1)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    heads = []
    for h in (slice(0, 3), slice(3, 6)):
        scores = query[..., h] @ key[..., h].mT / math.sqrt(3)
        heads.append(scores.masked_fill(~mask, -math.inf).softmax(-1) @ value[..., h])
    torch.testing.assert_close(attention(x), attention.write(torch.cat(heads, -1)))


def test_the_sequence_part_with_and_without_the_norm():
    trial = SequenceTrial("embedding", 0, sequences=32, epochs=3, batch_size=16)
    normed, bare = run("sequence", trial), run("sequence", replace(trial, norm_at="none"))
    assert normed.metrics["growth"] < 0.1
    assert bare.metrics["growth"] > 0.9
    assert len(normed.series["position"]) == len(normed.series["error"]) == 80
    with pytest.raises(UsageError, match="did you mean 'embedding'"):
        SequenceTrial("embeding", 0)


def test_an_overflowing_continuation_counts_as_large(monkeypatch):
    monkeypatch.setattr(
        "normplace.lab.studies.extrapolation.sequence.roll_out",
        lambda model, given, length: torch.full((len(given), length), math.nan),
    )
    trial = SequenceTrial("none", 0, sequences=8, epochs=1)
    assert run("sequence", trial).metrics["reach_decades"] > 29


@pytest.mark.parametrize("learner", LEARNERS)
def test_protein(learner, data):
    if learner == "xgboost":
        pytest.importorskip("xgboost")
    outcome = run("protein", ProteinTrial(learner, 0, epochs=100, learning_rate=1e-2, rounds=30))
    assert outcome.metrics["id_r2"] > 0.7
    assert outcome.metrics["ood_excess"] <= outcome.metrics["ood_largest"]
    assert outcome.metrics["ood_p999"] <= outcome.metrics["ood_largest"]
    assert sum(outcome.series["share"]) == pytest.approx(1, abs=1e-6)
    assert len(outcome.series["area"]) == len(outcome.series["error"])
    assert run("protein", ProteinTrial("none", 1, rows=50, epochs=3)) == run(
        "protein", ProteinTrial("none", 1, rows=50, epochs=3)
    )


def test_missing_xgboost(data, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "xgboost", None)
    part = STUDY.part("protein")
    assert part.unavailable_reason(ProteinTrial("first", 0)) is None
    assert part.unavailable_reason(ProteinTrial("xgboost", 0)) == tabular.xgboost_unavailable()
    assert "pip install 'normplace[trees]'" in str(tabular.xgboost_unavailable())
    with pytest.raises(UsageError, match="or xgboost-cpu"):
        part.run(ProteinTrial("xgboost", 0))


def test_faces(data):
    outcome = run("faces", FacesTrial("first", 0, epochs=30, batch_size=16, learning_rate=3e-3))
    assert outcome.metrics["id_r2"] > 0.5
    assert outcome.series["similarity"] == sorted(outcome.series["similarity"])


def test_missing_data():
    protein, faces = STUDY.part("protein"), STUDY.part("faces")
    assert "NORMPLACE_OFFLINE is set" in str(protein.unavailable_reason(ProteinTrial("none", 0)))
    assert "there is no file 'gone.csv'" in str(protein.unavailable_reason(ProteinTrial("none", 0, table="gone.csv")))
    assert "describe_folder" in str(faces.unavailable_reason(FacesTrial("none", 0)))


def test_bins():
    values = torch.tensor([-100.0, 0.5, 1.0, 99.0])
    assert tabular.histogram(values, [0.0, 1.0, 2.0]) == [0.5, 0.5]
    means = tabular.binned_mean(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0.0, 0.5, 1.5]), [0.0, 1.0, 2.0], fewest=2)
    assert means[0] == 2
    assert math.isnan(means[1])
    assert tabular.bin_centers([0.0, 1.0, 3.0]) == [0.5, 2.0]


def test_invalid_configurations():
    with pytest.raises(UsageError, match="unknown learner 'xgbost': did you mean 'xgboost'"):
        ProteinTrial("xgbost", 0)
    with pytest.raises(UsageError, match="rows must be at least 0"):
        ProteinTrial("none", 0, rows=-1)
    with pytest.raises(UsageError, match="epochs must be at least 1"):
        FacesTrial("none", 0, epochs=0)


def test_published_tables():
    assert PROTEIN["ood_r2"]["none"] == (0.31, 0.02)
    assert PROTEIN["id_r2"]["xgboost"] == (0.61, 0.01)
    assert {key: mean for key, (mean, _) in FACES["ood_r2"].items()} == {
        "none": 0.27, "first": 0.47, "last": 0.36, "every": 0.42,
    }  # fmt: skip


def test_kernel_trials_record_the_kernels_of_network_and_limit():
    outcome = kernels.run(kernels.KernelTrial("none", seed=0, width=2048))
    assert outcome.metrics["distance_to_infinite"] < 0.15
    assert outcome.metrics["diagonal_growth"] == pytest.approx(2, abs=0.1)
    assert len(outcome.series["kernel"]) == len(outcome.series["infinite"]) == kernels.POINTS * (kernels.POINTS + 1) / 2


def test_wide_networks_are_closer_to_the_prediction():
    near, far = (
        sum(wide.run(wide.WideTrial("first", width, seed, steps=40)).metrics["distance"] for seed in range(4))
        for width in (1024, 32)
    )
    assert near < 0.7 * far


def test_the_search_for_growth_measures_decades():
    linear = torch.nn.Linear(INPUTS, 1).double()
    normed = torch.nn.Sequential(torch.nn.Linear(INPUTS, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1)).double()
    generator = torch.Generator().manual_seed(0)
    # From 1e4 to 1e8 a linear output grows by four decades, less the unit that is added at 1e4.
    assert search_growth(linear, generator) == pytest.approx(4, abs=0.01)
    assert search_growth(normed, generator) < 0.1


def test_random_networks_are_reproducible_and_differ():
    one, two, other = random_network(3), random_network(3), random_network(4)
    x = torch.ones(2, INPUTS, dtype=torch.float64)
    assert torch.equal(one(x), two(x)) and not torch.equal(one(x), other(x))


def test_bounds_hold_and_the_search_finds_at_least_the_data():
    normed = run("bounds", BoundTrial("first", 32, 0, directions=8, rounds=2)).metrics
    # Predictions interpolate the targets, so the largest is at least the largest target, up to the jitter.
    assert normed["largest_normed"] > 0.99
    assert normed["over_norm_bound"] < 1 and normed["over_eigenvalue_bound"] < 1 and normed["over_crude_bound"] < 1
    # The recursion by hand, with S = T = 1 after the norm: S = 1.01 and T = 2.01, then S = 1.02 and T = 1.02 + 2.01.
    assert normed["diagonal_sup"] == pytest.approx(3.03, abs=1e-9)
    assert run("bounds", BoundTrial("none", 32, 0, directions=8, rounds=2)).metrics["largest"] > 100


def test_weaker_descriptors_are_projections(data):
    whole = run("weak-faces", WeakFacesTrial("none", 0, epochs=1, components=0))
    plain = run("faces", FacesTrial("none", 0, epochs=1))
    assert whole.metrics == plain.metrics
    assert run("weak-faces", WeakFacesTrial("none", 0, epochs=1, components=2)).metrics != whole.metrics


def test_the_degree_of_a_composition():
    metrics = run("activations", ActivationTrial("relu3", "none", 0, width=64)).metrics
    assert metrics["infinite_growth"] == pytest.approx(18, abs=0.1)
    assert abs(run("activations", ActivationTrial("relu3", "first", 0, width=64)).metrics["diagonal_growth"]) < 0.2
