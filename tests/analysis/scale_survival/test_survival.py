"""The survival law against measurement, the false positive of ranks, and the survey of a model's norms."""

from __future__ import annotations

import json
import math
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from tests.analysis.architectures.decoders import DECODERS, EXPERTS
from tests.analysis.architectures.others import OTHERS
from torch import nn

import normplace as npl
from normplace import Scale, UsageError
from normplace.analysis import effect, law, survival, survival_table
from normplace.analysis.scale_survival.law import change, predicted, slope
from normplace.models import GraphStack

EPS = [10.0**k for k in range(-12, 1)]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def pyg():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyG's own, on import
        return pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")


@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 20.0])
@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("kind", [npl.LayerNorm, npl.RMSNorm, nn.LayerNorm], ids=lambda kind: kind.__module__)
def test_the_law_is_what_is_measured(kind, eps, scale):
    """Row by row: each with its own variance, at a scalar far from 1, to 1e-3 of the law itself."""
    norm, rows = kind(32, eps=eps).double(), draw(10, 32) + 0.5
    centred = rows - rows.mean(-1, keepdim=True) if kind is not npl.RMSNorm else rows
    variance = centred.square().mean(-1)
    share = law(torch.full_like(variance, scale), variance, eps)
    for row, expected in zip(rows, share, strict=True):
        measured = effect(norm, scale * row[None], "graph")
        # Twenty units in the last place of double precision, which is what a relative change below 1e-12 is made of.
        assert measured == pytest.approx(float(expected), rel=1e-3, abs=4e-15)
    assert effect(norm, scale * rows) == pytest.approx(
        predicted(scale * rows, eps, kind is not npl.RMSNorm), rel=1e-3, abs=4e-15
    )


def test_the_law_at_finite_changes():
    """The integral of the law: how far the length of a row moves when its scalar is multiplied by five."""
    x = draw(1, 64)
    norm = npl.LayerNorm(64, eps=0.1).double()
    steps = torch.linspace(0, torch.log(torch.tensor(5.0)).item(), 2001, dtype=torch.float64)
    share = law(steps.exp(), x.var(unbiased=False).expand_as(steps), 0.1)
    moved = torch.log(norm(5 * x).norm() / norm(x).norm())
    assert float(moved.detach()) == pytest.approx(float(torch.trapezoid(share, steps)), rel=1e-5)


def test_law_bounds():
    assert law(1.0, 1.0, 0.0) == 0
    assert law(1.0, 0.0, 1e-5) == 1
    assert law(2.0, 3.0, 4.0) == 4 / 16
    with pytest.raises(UsageError, match="zero or more"):
        law(1.0, 1.0, -1e-5)


def spearman(a, b):
    ranks = torch.stack([v.argsort().argsort().double() for v in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def test_a_rank_probe_finds_a_scalar_that_is_not_there():
    """LayerNorm leaves under a thousandth of the scalar, whose rank correlation with the output is still over 0.99."""
    s = (draw(2000, 1, seed=1)).exp()
    out = npl.LayerNorm(64, eps=1e-5).double()(s * draw(2000, 64)).detach()
    assert spearman(out.norm(dim=1), s[:, 0]) > 0.99
    assert effect(npl.LayerNorm(64, eps=1e-5).double(), s * draw(2000, 64)) < 1e-3
    # What a reader of the output could use: the whole spread of s, 1.0 in log, has become this.
    assert float(out.norm(dim=1).log().std()) < 1e-2


def test_directions():
    up = change((101,), "node")
    assert abs(float(up.sum())) == 1
    assert torch.equal(up.abs(), torch.ones(101, dtype=torch.float64))
    assert torch.equal(change((101,), "node"), up)
    assert not torch.equal(change((101,), "node", torch.Generator().manual_seed(1)), up)
    assert torch.equal(change((2, 3), "graph"), torch.ones(2, 3, dtype=torch.float64))
    with pytest.raises(UsageError, match="did you mean 'node'"):
        change((3,), "nodes")


def test_differences_stand_in_where_there_is_no_forward_derivative():
    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.exp()

    value, derivative, how = slope(lambda t: Opaque.apply(t.reshape(1)))
    assert how == "difference"
    assert float(value) == 1
    assert float(derivative) == pytest.approx(1, rel=1e-6)


def test_the_table_agrees_with_the_law_and_tells_the_norms_apart():
    table = survival_table(eps=(1e-12, 1e-5, 1e-2, 1.0), rows=64)
    for row in table.rows:
        if row.predicted is not None:
            assert row.measured == pytest.approx(row.predicted, abs=1e-3), row
        if row.slot == "after":
            assert row.measured == pytest.approx(1)
    at = {(row.norm, row.slot): row.measured for row in table.rows if row.eps in (1e-5, None)}
    for norm in ("layer", "rms", "msg"):
        assert at[norm, "before"] < 1e-4
        assert at[norm, "again"] < 1e-4
    for norm in ("batch", "graph", "pair", "none"):
        assert at[norm, "before"] > 0.8
    assert 0.1 < at["dyt", "before"] < 1
    assert all(0.05 < at[norm, "branch"] < 1 for norm in ("layer", "rms", "batch", "graph", "pair", "msg", "none"))
    assert json.loads(json.dumps(table.to_dict()))["direction"] == "node"
    assert "N(s N(x))" in str(table)
    assert len({len(line) for line in str(table).splitlines()}) == 1
    assert table.get("layer", "before", 1.0).measured > 0.4
    with pytest.raises(UsageError, match="unknown row"):
        table.get("layer", "before", 2.0)


def test_a_graph_wise_constant_survives_no_norm_with_a_statistic():
    table = survival_table(eps=(1e-5,), direction="graph", rows=64)
    for row in table.rows:
        if row.slot == "before" and row.norm not in ("none", "dyt"):
            assert row.measured < 1e-3, row


def test_the_tables_in_the_docs_are_what_is_measured():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "survival.md").read_text()
    printed = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for text, direction in zip(printed, ("node", "graph"), strict=True):
        _, *lines = text.splitlines()
        table = survival_table(direction=direction)
        for line in lines:
            norm, eps, *cells = re.split(r"\s{2,}", line.strip())
            rows = [row for row in table.rows if row.norm == norm and row.eps == (None if eps == "-" else float(eps))]
            assert rows or norm.startswith("PyG"), line
            for row, cell in zip(rows, cells, strict=bool(rows)):
                assert row.measured == pytest.approx(float(cell), rel=0.02, abs=1e-13), (line, row.slot)


def test_pyg_modes_differ(pyg):
    table = survival_table(eps=(1e-5,), rows=64)
    assert table.get("PyG layer (node)", "before", 1e-5).measured < 1e-4
    assert table.get("PyG layer (graph)", "before", 1e-5).measured > 0.8


def test_survival_of_a_plain_model():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.LayerNorm(16, eps=1e-3), nn.ReLU(), nn.Linear(16, 16), nn.BatchNorm1d(16)
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = npl.survival(model, torch.randn(50, 6))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    layer, batch = result.sites
    assert (layer.name, layer.kind, layer.eps, layer.calls) == ("1", "LayerNorm", 1e-3, 1)
    assert layer.kept == pytest.approx(layer.predicted, rel=0.2)
    assert layer.kept < 0.05 < layer.after
    assert batch.predicted is None
    assert batch.kept == pytest.approx(1, abs=0.01)  # evaluation mode: a fixed affine map
    assert batch.after == pytest.approx(1)
    assert {site.method for site in result.sites} == {"jvp"}
    assert "LayerNorm" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["sites"][0]["name"] == "1"
    with pytest.raises(AttributeError):
        result.sites = ()


def test_a_batch_in_training_erases_what_all_rows_share():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.5))
    x = torch.randn(50, 6)
    shared = survival(model, x, training=True, direction="graph").sites[0]
    own = survival(model, x, training=True, direction="node").sites[0]
    assert shared.kept < 1e-3
    assert own.kept > 0.5


def test_the_default_eps_of_rmsnorm_is_that_of_its_own_precision():
    site = survival(nn.Sequential(nn.RMSNorm(8)), torch.randn(20, 8)).sites[0]
    assert site.eps == torch.finfo(torch.float32).eps
    assert site.kept == pytest.approx(site.predicted, rel=0.05)


def test_norms_that_are_shared_unused_or_named_by_the_user():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.spare, self.mix = nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x, *, double_it=False):
            return {"logits": self.norm(input=self.mix(self.norm(x))), "count": 2}

    torch.manual_seed(0)
    model, x = Model(), torch.randn(2, 9, 8)
    result = survival(model, x, double_it=True)
    assert [site.calls for site in result.sites] == [2]
    assert result.unused == ("spare",)
    assert "not used: spare" in str(result)
    assert [site.name for site in survival(model, x, norms=["mix"]).sites] == ["mix"]
    assert [site.name for site in survival(model, x, norms=[model.norm]).sites] == ["norm"]
    with pytest.raises(UsageError, match="did you mean 'norm'"):
        survival(model, x, norms=["nrm"])
    with pytest.raises(UsageError, match="not part of the model"):
        survival(model, x, norms=[nn.LayerNorm(8)])
    with pytest.raises(UsageError, match="used none"):
        survival(model, x, norms=["spare"])


def test_what_cannot_be_measured_is_said():
    with pytest.raises(UsageError, match="has no norm"):
        survival(nn.Linear(3, 3), torch.randn(4, 3))
    with pytest.raises(UsageError, match="zero everywhere"):
        survival(nn.Sequential(nn.LayerNorm(3)), torch.zeros(4, 3))
    for exact in (True, False):
        with pytest.raises(UsageError, match="the output is not finite"):
            survival(nn.Sequential(nn.LayerNorm(3)), torch.full((4, 3), math.nan), exact=exact)
    single = survival(nn.Sequential(nn.LayerNorm(3)), torch.randn(4, 3), double=False)
    assert single.sites[0].after == pytest.approx(1, rel=1e-4)


class SumConv(nn.Linear):
    def forward(self, x, edge_index):
        return super().forward(x.index_add(0, edge_index[1], x[edge_index[0]]))


def edges(n=40, seed=0):
    half = torch.randint(n, (2, 3 * n), generator=torch.Generator().manual_seed(seed))
    return torch.cat([half, half.flip(0)], 1)


def test_postdeg_is_heard_and_its_mirror_image_is_not():
    x, graph = draw(40, 5), edges()
    reach = {}
    for where in ("before", "after"):
        torch.manual_seed(0)
        scale = Scale("degree", power=-1, where=where)
        net = GraphStack(SumConv, 5, 16, 1, 1, placement="post", scale=scale, dtype=torch.float64)
        signs = change((40,), "node")
        value, derivative, _ = slope(lambda t, net=net, signs=signs: net(x, graph, values=(t * signs).exp()))
        reach[where] = float(derivative.norm() / value.norm())
    assert reach["before"] < 1e-3
    assert reach["after"] > 0.3


def test_survival_names_every_norm_of_a_stack():
    torch.manual_seed(0)
    net = GraphStack(SumConv, 5, 16, 2, 3, placement="peri", norm={"input": "layer", "output": "msg", "final": "rms"})
    result = survival(net, draw(40, 5).float(), edges())
    assert [site.name for site in result.sites] == [
        *[f"blocks.{k}.{slot}_norm" for k in range(3) for slot in ("input", "output")],
        "final_norm",
    ]
    assert all(site.kept < 1e-2 for site in result.sites)


def test_survival_of_a_three_layer_gat_with_layernorm(pyg):
    class GAT(nn.Module):
        def __init__(self, mode):
            super().__init__()
            self.convs = nn.ModuleList(pyg.GATConv(16 if k else 5, 16) for k in range(3))
            self.norms = nn.ModuleList(pyg.LayerNorm(16, mode=mode) for _ in range(3))
            self.head = nn.Linear(16, 1)

        def forward(self, x, edge_index, batch=None):
            for conv, norm in zip(self.convs, self.norms, strict=True):
                x = torch.relu(norm(conv(x, edge_index), batch))
            return self.head(x)

    torch.manual_seed(0)
    x, graph = torch.randn(40, 5), edges()
    node, whole = survival(GAT("node"), x, graph), survival(GAT("graph"), x, graph)
    for result in (node, whole):
        assert [site.name for site in result.sites] == ["norms.0", "norms.1", "norms.2"]
        assert all(site.after > 0.01 for site in result.sites)
    for site in node.sites:
        assert site.kept < 1e-2
        assert site.kept == pytest.approx(site.predicted, rel=0.5)
    for site in whole.sites:
        assert site.kept > 0.3
        assert site.predicted is None


def test_pyg_norms_are_known_by_name(pyg):
    class Message(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.outer = pyg.MessageNorm(), pyg.BatchNorm(8)

        def forward(self, x):
            return self.outer(x + self.norm(x, msg=x.flip(0)))

    result = survival(Message(), torch.randn(20, 8))
    assert [site.kind for site in result.sites] == ["MessageNorm", "BatchNorm"]
    assert result.sites[0].kept < 1e-6  # the message takes the length of its receiver
    assert result.sites[1].eps == 1e-5


class CodeNorms(nn.Module):
    """Six norms that are no modules, written in three ways, and one that is a module."""

    def __init__(self):
        super().__init__()
        self.maps, self.norm = nn.ModuleList(nn.Linear(8, 8) for _ in range(6)), nn.LayerNorm(8)
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, x):
        for at, linear in enumerate(self.maps):
            if at % 3 == 0:
                read = nn.functional.rms_norm(x, (8,), eps=1e-3)
            elif at % 3 == 1:
                read = nn.functional.normalize(x, dim=-1)
            else:
                read = self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3))
            x = x + linear(read)
        return self.norm(x)


def test_norms_in_code_are_measured_too():
    torch.manual_seed(0)
    model, x = CodeNorms(), torch.randn(4, 5, 8)
    exact, estimated = survival(model, x, exact=True), survival(model, x)
    names = [site.name for site in npl.audit(model, x).sites]
    assert [site.name for site in exact.sites] == [site.name for site in estimated.sites] == names
    assert {site.method for site in exact.sites} == {"jvp"}
    assert {site.method for site in estimated.sites} == {"probes"}
    assert "4 random projections" in str(estimated)
    for one, other in zip(exact.sites, estimated.sites, strict=True):
        if one.kind != "l2":
            assert 1 / 3 < other.kept / one.kept < 3
            assert one.kept == pytest.approx(one.predicted, rel=0.5)
        # Four projections have a standard error of 35%.
        assert 1 / 3 < other.after / one.after < 3


def test_the_estimate_is_unbiased(monkeypatch):
    monkeypatch.setattr(sys.modules["normplace.analysis.scale_survival.measure"], "PROBES", 400)
    torch.manual_seed(0)
    model, x = CodeNorms(), torch.randn(4, 5, 8)
    for one, other in zip(survival(model, x, exact=True).sites, survival(model, x).sites, strict=True):
        assert other.after == pytest.approx(one.after, rel=0.15)  # four standard errors of 1 / sqrt(800)


@pytest.mark.parametrize("blocks", [4, 16])
def test_the_number_of_passes_does_not_grow_with_that_of_norms(blocks, monkeypatch):
    class Counted(nn.Sequential):
        passes = 0

        def forward(self, x):
            Counted.passes += 1
            return super().forward(x)

    backward, calls = torch.autograd.grad, []
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **kwargs: calls.append(1) or backward(*args, **kwargs))
    layers = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(2 * blocks)]
    assert len(survival(Counted(*layers), torch.randn(5, 8)).sites) == 2 * blocks
    assert (Counted.passes, len(calls)) == (2, 4)


@pytest.mark.filterwarnings("ignore")  # some models warn of what their own code does
@pytest.mark.parametrize("part", range(4))
def test_every_norm_of_the_audit_is_measured(part):
    pytest.importorskip("transformers", reason="the architectures are Hugging Face's: pip install 'normplace[hf]'")
    for case in [*DECODERS, *EXPERTS, *OTHERS][part::4]:
        model = case.build().eval()
        found = survival(model, **case.inputs, exact=False)
        names = {site.name for site in found.sites}
        inside = tuple(f"{name}." for name in names)
        missing = {
            site.name
            for site in npl.audit(model, **case.inputs).sites
            if site.name not in names and not f"{site.module}.".startswith(inside)
        }
        assert (case.name, missing, found.unmeasured) == (case.name, set(), ())


def test_a_norm_that_cannot_be_reached_is_listed():
    class Similar(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.map = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x):
            x = self.norm(x)
            return nn.functional.cosine_similarity(x, self.map(x), dim=-1)

    found = survival(Similar(), torch.randn(5, 8))
    assert [site.name for site in found.sites] == ["norm"]
    assert found.unmeasured != ()
    assert "not measured: " in str(found)


class PixelNorm(nn.Module):
    """Over the channels of a feature map (Karras et al. 2018, arXiv 1710.10196)."""

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-8)


class PermutedNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("norm", [PixelNorm(), PermutedNorm(4)])
@pytest.mark.parametrize("chosen", [None, ["1"]])
def test_norms_over_the_channels_of_feature_maps(norm, chosen):
    model = nn.Sequential(nn.Conv2d(2, 4, 1), norm, nn.Conv2d(4, 2, 1))
    (site,) = npl.survival(model, torch.randn(2, 2, 3, 4), norms=chosen).sites
    assert site.kept < 1e-3 < site.after
    assert site.predicted == pytest.approx(site.kept, rel=0.2) or site.predicted is None


@pytest.mark.parametrize("under_root", [True, False])
def test_the_law_is_that_of_an_eps_under_the_root(under_root):
    class RMS(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            square = x.square().mean(-1, keepdim=True)
            return self.head(x / ((square + 1e-3).sqrt() if under_root else square.sqrt() + 1e-3))

    x = 0.05 * torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    (site,) = npl.survival(RMS(), x, double=True).sites
    assert site.kept == pytest.approx(0.3 if under_root else 0.02, rel=0.3)
    assert site.predicted == (pytest.approx(site.kept, rel=0.2) if under_root else None)
    # A root of 0.01 is larger than the eps that is added to it, its square is not.
    warned = "eps too large" in {finding.rule for finding in npl.audit(RMS(), 0.25 * x).findings}
    assert warned == under_root


def test_the_default_eps_of_rms_norm_in_half_precision():
    model, x = nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 2)).bfloat16(), torch.randn(6, 8, dtype=torch.bfloat16)
    assert npl.survival(model, x).sites[0].eps == torch.finfo(torch.float32).eps


def test_a_norm_that_is_called_with_matrices_and_with_sequences():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.map, self.head = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            rows = self.norm(x[:, 0])
            return self.head(self.norm(self.map(x))).sum(1) + self.head(rows)

    (site,) = survival(Pooled(), torch.randn(4, 5, 8)).sites
    assert site.calls == 2
    assert site.kept < 1e-3


class FlattenedNorm(nn.Module):
    def forward(self, x):
        scale = torch.rsqrt(x.flatten(0, 1).square().mean(1, keepdim=True) + 1e-6)
        return x * scale.view(*x.shape[:2], 1)


@pytest.mark.parametrize("in_code", [False, True])
def test_a_norm_whose_statistic_is_over_rows_of_a_matrix(in_code):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.map, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
            self.norm = None if in_code else FlattenedNorm()

        def forward(self, x):
            x = self.map(x)
            return self.head(FlattenedNorm.forward(self, x) if self.norm is None else self.norm(x))

    (site,) = survival(Network(), torch.randn(4, 5, 8)).sites
    assert site.kept < 1e-3


def test_a_group_norm_in_code_is_measured_as_its_module():
    class Network(nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.map, self.norm, self.head = nn.Conv2d(3, 8, 1), norm, nn.Conv2d(8, 2, 1)

        def forward(self, x):
            x = self.map(x)
            return self.head(nn.functional.group_norm(x, 2) if self.norm is None else self.norm(x))

    module, code = Network(nn.GroupNorm(2, 8, affine=False)), Network(None)
    code.load_state_dict(module.state_dict())
    x, sites = torch.randn(4, 3, 5, 6), []
    for model in (module, code):
        torch.manual_seed(0)
        sites += survival(model, x).sites
    assert sites[1].before == pytest.approx(sites[0].before)
    assert sites[1].after == pytest.approx(sites[0].after)


def test_named_norms_of_a_model_with_a_part_that_cannot_be_recorded():
    class Padded(nn.Module):
        def forward(self, x):
            return torch.nested.as_nested_tensor([x[:2], x[2:]]).to_padded_tensor(0).flatten(0, 1)

    model, x = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), Padded()), torch.randn(4, 8)
    (site,) = survival(model, x, norms=["0"]).sites
    assert site.kept == pytest.approx(survival(model[:2], x).sites[0].kept)
    with pytest.raises(UsageError, match="the forward pass failed"):
        survival(model, x[:, :3], norms=["0"])
