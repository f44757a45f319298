"""The edits of the word ``scales``."""

from __future__ import annotations

import pytest
from tests.lab.compare.tasks.entry import edited
from tests.lab.compare.tiny_task import make
from torch import nn

from normplace.edit import insertions
from normplace.errors import UsageError
from normplace.lab.compare.factory import FactoryTask
from normplace.lab.compare.scales import POWERS, SCALARS, scale_edits, with_scales
from normplace.lab.compare.tasks import graph_task


@pytest.fixture(scope="module")
def task():
    return graph_task("grid-mines", side=12, width=4, depth=2)


def test_every_slot_scalar_and_power_is_an_edit_that_applies(task):
    names = scale_edits(task)
    assert len(names) == 1 + len(SCALARS) * len(POWERS)  # norms whose names differ only in numbers are one slot
    assert names[:3] == ["as-is", "degree^-1@norms.*", "degree^-0.5@norms.*"]
    for name in names[1 :: len(POWERS)]:
        _, model = edited(task, name)
        assert [site.name for site in insertions(model).sites] == ["norms.0", "norms.1"]


def test_norms_that_are_not_called_are_no_part_of_a_slot():
    def net(inputs: int, outputs: int) -> nn.Module:
        from torch_geometric.nn import GAT

        return GAT(inputs, 8, 2, out_channels=outputs, norm="LayerNorm", norm_kwargs={"mode": "node"})

    task = graph_task("grid-mines", side=12)
    task.make_model = net  # two norms, of which the last layer does not call its own
    assert "degree^-1@norms.*" in scale_edits(task)
    _, model = edited(task, "degree^-1@norms.*")
    assert [site.name for site in insertions(model).sites] == ["norms.0"]
    with pytest.raises(UsageError, match=r"uses no norm called 'layers\.\*'"):
        edited(task, "degree^-1@layers.*")


def test_the_word_is_replaced_once(task):
    listed = with_scales("as-is scales degree^2", task)
    assert listed[0] == "as-is"
    assert listed.count("as-is") == 1
    assert listed[-1] == "degree^2"
    assert with_scales({"mine": "scales"}, task) == {"mine": "scales"}


def test_a_model_without_such_a_slot_is_an_error():
    with pytest.raises(UsageError, match="scales need a graph network"):
        scale_edits(FactoryTask(make))
