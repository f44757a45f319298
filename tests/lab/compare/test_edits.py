"""Edits are written as short names, and start as in a new model or close to the given weights."""

from __future__ import annotations

import pytest
import torch
from tests.lab.compare.tiny_task import TinyNet, data, draw, halve
from torch import nn

import normplace as npl
from normplace.errors import UsageError
from normplace.lab.compare.edits import DRAWN, FRESH_LAYERSCALE, importable_name, parse_edit, parse_edits
from normplace.placement.presets import ALL_PRESETS


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return TinyNet()


INPUTS = ((data()[0],), {})


@pytest.mark.parametrize(
    ("name", "equation"),
    [("as-is", "x + F(N(x))"), ("post", "N(x + F(x))"), ("peri", "x + N(F(N(x)))"), ("layerscale", "x + g F(N(x))"),
     ("output+layerscale", "x + g N(F(x))")],
)  # fmt: skip
def test_names_change_the_placement(model, name, equation):
    edited = parse_edit(name).apply(model, INPUTS)
    assert npl.audit(edited, *INPUTS[0]).equations == (equation,)
    assert npl.audit(model, *INPUTS[0]).equations == ("x + F(N(x))",)


def test_new_norms_of_a_fresh_model_have_gain_one(model):
    fresh = parse_edit("peri", "fresh").apply(model, INPUTS)
    kept = parse_edit("peri", "weights").apply(model, INPUTS)
    added = [change.name for change in npl.changes(fresh).sites if change.action == "added"]
    assert len(added) == 2
    for name in added:
        assert torch.equal(fresh.get_submodule(name).weight, torch.ones(6))
        assert not torch.equal(kept.get_submodule(name).weight, torch.ones(6))


@pytest.mark.parametrize("name", DRAWN)
def test_published_initial_weights_are_drawn_for_every_seed_of_a_fresh_start(model, name):
    drawn = []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        edited = parse_edit(name).apply(model, INPUTS)
        # A branch of one matrix has its input norm before its output.
        assert npl.audit(edited, *INPUTS[0]).placement == {"deepnorm": "deepnorm", "sub": "pre"}[name]
        drawn.append(edited.blocks[0].branch[0].weight)
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], model.blocks[0].branch[0].weight)


@pytest.mark.parametrize("name", DRAWN)
def test_a_start_from_weights_needs_a_choice_of_initial_weights(model, name):
    with pytest.raises(UsageError, match=f"write {name}:kept to keep them, or {name}:published to draw"):
        parse_edit(name, "weights")
    kept, again = (parse_edit(f"{name}:{init}", "weights").apply(model, INPUTS) for init in ("kept", "published"))
    assert torch.equal(kept.blocks[0].branch[0].weight, model.blocks[0].branch[0].weight)
    assert not torch.equal(again.blocks[0].branch[0].weight, model.blocks[0].branch[0].weight)
    assert parse_edit(f"{name}:kept", "weights").code == ()


def test_every_placement_with_published_weights_can_be_drawn():
    gains = {name: [spec.init_gain for spec in npl.Placement.named(name).all_specs] for name in ALL_PRESETS}
    assert {name for name, of in gains.items() if any(gain != 1 for gain in of)} == set(DRAWN)


def test_new_scales_of_a_fresh_model_are_small(model):
    gains = {}
    for start in ("fresh", "weights"):
        edited = parse_edit("layerscale", start).apply(model, INPUTS)
        names = [change.name for change in npl.changes(edited).sites if change.slot == "scale"]
        gains[start] = [edited.get_submodule(name).weight.mean().item() for name in names]
    assert gains == {"fresh": pytest.approx([FRESH_LAYERSCALE] * 2), "weights": [1.0, 1.0]}


def test_rezero_of_a_fresh_model_starts_at_zero(model):
    for start, expected in (("fresh", 0.0), ("weights", 1.0)):
        edited = parse_edit("rezero", start).apply(model, INPUTS)
        names = [change.name for change in npl.changes(edited).sites if change.slot == "scale"]
        assert [edited.get_submodule(name).weight.item() for name in names] == [expected] * 2


@pytest.mark.parametrize("kind", ["dyt", "identity"])
def test_norms_without_statistics_of_a_fresh_model_are_not_fitted(model, kind):
    fresh = parse_edit(f"norm:{kind}", "fresh").apply(model, INPUTS)
    kept = parse_edit(f"norm:{kind}", "weights").apply(model, INPUTS)
    for name in [change.name for change in npl.changes(fresh).sites]:
        norm = fresh.get_submodule(name)
        assert torch.equal(norm.weight, torch.ones(6)) and not norm.bias.any()
        assert not torch.equal(kept.get_submodule(name).weight, norm.weight)
        assert kind == "identity" or norm.alpha.item() == 0.5


def test_another_kind_of_norm(model):
    sites = npl.audit(parse_edit("post+norm:rms").apply(model, INPUTS), *INPUTS[0]).sites
    assert {(site.slot, site.kind) for site in sites} == {("stream", "rms")}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        x_ = self.norm(x)
        q, k, v = (layer(x_).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("name", ["qk", "qk:layer", "post+qk"])
def test_qk_norm(name):
    x = torch.randn(2, 3, 8)
    edited = parse_edit(name).apply(Attention(), ((x,), {}))
    assert {site.slot for site in npl.audit(edited, x).sites} >= {"inner.q", "inner.k"}


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x, edge_index):
        return self.head(self.norm(x))


@pytest.mark.parametrize(
    ("name", "equation"),
    [("degree^-1", "degree^-1 N(x)"), ("degree@norm", "degree N(x)"), ("k-core^0.5@before:norm", "N(k-core^0.5 x)")],
)
def test_topology_scales(name, equation):
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    edited = parse_edit(name).apply(GraphNet(), ((torch.randn(3, 4), edges), {}))
    assert [site.equation.replace(" * ", " ") for site in npl.edit.insertions(edited).sites] == [equation]


def test_own_functions_by_reference_and_as_objects(model):
    reference = "tests.lab.compare.tiny_task:halve"
    by_name, by_object = parse_edits([reference, halve])
    assert (by_name.name, by_object.name) == (reference, "halve")
    assert by_name.recipe == by_object.recipe == reference == by_name.code[0]
    weight = model.head.weight.detach().clone()
    assert torch.equal(by_object.apply(model, INPUTS).head.weight, weight / 2)


def test_a_function_of_a_file_is_named_as_written_and_imported_as_a_module(tmp_path, model, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)  # restores the path of imports
    (tmp_path / "my_edits.py").write_text("def same(model):\n    return model\n")
    edit = parse_edit(f"post+{tmp_path}/my_edits.py:same")
    assert (edit.name, edit.recipe) == (f"post+{tmp_path}/my_edits.py:same", "post+my_edits:same")
    assert edit.code == ("my_edits:same",)
    assert npl.audit(edit.apply(model, INPUTS), *INPUTS[0]).placement == "post"


def test_own_functions_may_take_the_inputs(model):
    shapes = []

    def edit(model, x):
        shapes.append(tuple(x.shape))
        return model

    (parsed,) = parse_edits({"mine": edit})
    assert parsed.apply(model, INPUTS) is model
    assert (parsed.name, parsed.recipe, shapes) == ("mine", None, [(64, 2)])


def test_an_own_function_must_return_a_model(model):
    (edit,) = parse_edits({"nothing": lambda model: None})
    with pytest.raises(UsageError, match="the edit 'nothing' returned NoneType"):
        edit.apply(model, INPUTS)


def test_a_mapping_renames_edits():
    first, second = parse_edits({"a": "as-is", "b": "as-is"})
    assert (first.name, first.recipe, second.name, second.recipe) == ("a", "as-is", "b", "as-is")


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (["perri"], "unknown edit 'perri': did you mean 'peri'?"),
        (["as-is", "as-is"], "the edit 'as-is' is listed twice"),
        ([], "there is no edit to compare"),
        ([3], "an edit is a name or a function of a model, got int"),
        (["degree^x"], "the power of 'degree^x' is not a number"),
        (["degree@under:norm"], "unknown side of a norm 'under'"),
        (["nowhere:edit"], "cannot import 'nowhere'"),
        (["tests.lab.compare.tiny_task:SIZE"], "is not a function"),
    ],
)
def test_unknown_edits_are_refused(edits, message):
    with pytest.raises(UsageError) as error:
        parse_edits(edits)
    assert message in str(error.value)


def test_an_unknown_start_is_refused():
    with pytest.raises(UsageError, match="unknown start 'warm'"):
        parse_edits(["as-is"], "warm")


def test_only_functions_of_modules_can_be_imported_again():
    assert importable_name(draw) == "tests.lab.compare.tiny_task:draw"
    assert importable_name(lambda model: model) is None
