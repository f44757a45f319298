"""A Hugging Face model family as a value: rules for its settings and a table of its weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from normplace._shared.fields import quoted
from normplace.errors import UsageError
from normplace.models.transformer.config import PARTS, TransformerConfig
from normplace.models.transformer.families.layouts import SAME, Layout
from normplace.models.transformer.families.rules import Rule

BOOKKEEPING = frozenset({
    "architectures", "auto_map", "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label",
    "initializer_range", "label2id", "model_type", "output_attentions", "output_hidden_states", "pad_token_id",
    "problem_type", "return_dict", "task_specific_params", "tokenizer_class", "torch_dtype", "transformers_version",
    "use_cache", "use_return_dict",
})  # fmt: skip
"""Keys of every configuration that do not change the function."""
SWITCHES = frozenset({"add_cross_attention", "is_decoder", "is_encoder_decoder", "tie_encoder_decoder"})
"""Keys of every configuration that are supported at False, unless a rule of the family translates them."""

Link = tuple[str, tuple[str, ...], Layout]
"""Their key, our keys, and the layout."""


class Row(NamedTuple):
    """Modules with the same weights.

    Args:
        theirs: Name of their module; ``{}`` stands for the number of the layer, and ``|`` separates the names of
            different versions of transformers.
        ours: Names of ours, several if theirs holds several. A row without a counterpart in the network is skipped.
        layout: How theirs holds ours.
        when: Whether the row applies to a network; None for always.
        parameter: Whether ``theirs`` is the name of a parameter, which holds our weights, instead of a module.
    """

    theirs: str
    ours: tuple[str, ...]
    layout: Layout = SAME
    when: Callable[[TransformerConfig], bool] | None = None
    parameter: bool = False


def rows(
    pairs: Mapping[str, str],
    theirs: str = "",
    ours: str = "",
    layout: Layout = SAME,
    when: Callable[[TransformerConfig], bool] | None = None,
    parameter: bool = False,
) -> tuple[Row, ...]:
    """Rows of a table; ``pairs`` maps their modules to ours, several of ours separated by spaces.

    Args:
        pairs: Names of the modules.
        theirs: Common start of their names.
        ours: Common start of our names.
        layout: How theirs hold ours.
        when: Whether the rows apply to a network; None for always.
        parameter: Whether theirs are names of parameters instead of modules.
    """
    return tuple(
        Row(theirs + key, tuple(ours + name for name in names.split()), layout, when, parameter)
        for key, names in pairs.items()
    )


@dataclass(frozen=True)
class Family:
    """A Hugging Face model family.

    Args:
        model: Name of its language model class.
        rules: The rules of its settings; later rules take precedence.
        weights: The table of its weights: rows, or functions of our configuration that return some.
    """

    model: str
    rules: tuple[Rule, ...]
    weights: tuple[Row | Callable[[TransformerConfig], tuple[Row, ...]], ...]

    def read(self, config: Any) -> TransformerConfig:
        """Convert their configuration to ours.

        Raises:
            UsageError: If a setting is not supported.
        """
        settings = config.to_dict()
        known = {key for rule in self.rules for key in rule.keys}
        for key, value in settings.items():
            harmless = key in BOOKKEEPING or key.startswith("_") or value is None or (key in SWITCHES and not value)
            if key not in known and not harmless:
                raise UsageError(f"the setting {key}={quoted(value)} of a {self.model} is not supported: leave it out.")
        values: dict[str, Any] = {}
        for rule in self.rules:
            values.update(rule.read(settings))
        return _assembled(values)

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """Convert our configuration to settings of theirs, as far as they can express it."""
        return {key: value for rule in self.rules for key, value in rule.write(config).items()}

    def links(
        self, config: TransformerConfig, state: Mapping[str, Tensor], theirs: Collection[str] = ()
    ) -> Iterator[Link]:
        """Which weights correspond.

        Args:
            config: Our configuration.
            state: Our state dict; its tensors may be on the meta device.
            theirs: The keys of their state dict, if names differ between versions.
        """
        parts = ((entry,) if isinstance(entry, Row) else entry(config) for entry in self.weights)
        for row in (row for part in parts for row in part):
            if row.when is not None and not row.when(config):
                continue
            layers = max(config.depth, config.encoder_depth)
            for layer in range(layers) if "{}" in row.theirs else (0,):
                for part in ("weight",) if row.parameter else ("weight", "bias"):
                    names = tuple(f"{name.format(layer)}.{part}" for name in row.ours)
                    if all(name in state for name in names):
                        suffix = "" if row.parameter else f".{part}"
                        keys = [f"{name}{suffix}" for name in row.theirs.format(layer).split("|")]
                        yield next((key for key in keys if key in theirs), keys[0]), names, row.layout


def _assembled(values: Mapping[str, Any]) -> TransformerConfig:
    """A configuration from its settings by dotted path."""
    fields: dict[str, Any] = {}
    for path, value in values.items():
        part, _, name = path.rpartition(".")
        (fields.setdefault(part, {}) if part else fields)[name] = value
    return TransformerConfig(
        **{name: PARTS[name](**value) if name in PARTS else value for name, value in fields.items()}
    )
