"""What the built-in graph tasks share: their settings, their network and the description of both."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from normplace._shared.fields import check_types
from normplace._shared.references import importable_reference
from normplace._shared.seeding import seeded
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.compare.statistics import Better
from normplace.lab.compare.task import Task, task_reference
from normplace.lab.compare.tasks.graph_model import model_factory
from normplace.models.policy import FEATURES

LEARNING_RATE = 3e-3


@dataclass(frozen=True, kw_only=True)
class GraphTaskConfig:
    """Settings of a graph task.

    Args:
        model: ``file.py:make`` of a function from numbers of inputs and outputs to a PyG model; empty for a GAT.
        width: Width of the GAT.
        depth: Number of its layers.

    Raises:
        UsageError: If a value has the wrong type, is out of range or is an unknown name.
    """

    model: str = ""
    width: int = 32
    depth: int = 3

    def __post_init__(self) -> None:
        check_types(self)
        expect_ranges(self, "width", "depth", least=1)


@dataclass(frozen=True, kw_only=True)
class RandomGraphsConfig(GraphTaskConfig):
    """Settings of a task on random graphs, in addition to those of :class:`GraphTaskConfig`.

    Args:
        features: Node features: ``constant`` (ones), ``degree`` (its logarithm) or ``random``.
        train_graphs: Number of training graphs.
        held_out: Graphs of each held-out split.
        batch: Graphs per step.
    """

    features: str = "constant"
    train_graphs: int
    held_out: int
    batch: int

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "train_graphs", "held_out", "batch", least=1)
        expect_choice("features", self.features, FEATURES)


class GraphTask(Task):
    """A task whose model is a graph network: a GAT of PyG, or the user's model.

    Args:
        **settings: The fields of :attr:`config_class`.

    Attributes:
        config_class: The class of the settings.
        measure_name: Name of the measure on held-out data.
        pools: Whether the network returns one row per graph.

    Raises:
        UsageError: If a setting is wrong, or a package is missing.
    """

    better: Better = "larger"
    learning_rate = LEARNING_RATE
    config_class: ClassVar[type[GraphTaskConfig]]
    measure_name: str
    pools: ClassVar[bool] = False

    def __init__(self, **settings: Any) -> None:
        model = settings.get("model", "")
        self.config: Any = self.config_class(**{**settings, "model": importable_reference(model) if model else ""})
        self.reference = task_reference(type(self), dataclasses.asdict(self.config))
        self.code = (self.config.model,) if self.config.model else ()
        self.make_model = model_factory(self.config.model, self.config.width, self.config.depth, self.pools)

    def new_model(self, seed: int, inputs: int, outputs: int) -> nn.Module:
        """The network with the initial weights of a seed."""
        with seeded(seed):
            return self.make_model(inputs, outputs)

    def describe(self) -> dict[str, Any]:
        """The measure and the settings."""
        return {**super().describe(), "measure": self.measure_name, "settings": dataclasses.asdict(self.config)}
