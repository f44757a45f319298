"""A Hugging Face model family as a value: rules for its settings and a table of its weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from normplace.errors import UsageError, quoted
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
"""A key of Hugging Face, the keys here, and the layout."""


class Row(NamedTuple):
    """Modules with the same weights.

    Args:
        hf: Name of Hugging Face's module, with ``{}`` for the number of the layer; ``|`` separates the names of
            different versions of transformers.
        own: Names of the modules here, several if one of Hugging Face holds several. A row without a counterpart in
            the network is skipped.
        layout: How the weight of Hugging Face holds those here.
        when: Whether the row applies to a network; None for always.
        parameter: Whether ``hf`` is the name of a parameter, which holds the weights, instead of a module.
    """

    hf: str
    own: tuple[str, ...]
    layout: Layout = SAME
    when: Callable[[TransformerConfig], bool] | None = None
    parameter: bool = False


def rows(
    pairs: Mapping[str, str],
    hf: str = "",
    own: str = "",
    layout: Layout = SAME,
    when: Callable[[TransformerConfig], bool] | None = None,
    parameter: bool = False,
) -> tuple[Row, ...]:
    """Rows of a table.

    Args:
        pairs: From Hugging Face's name of a module to the name here; several names are separated by spaces.
        hf: Common start of Hugging Face's names.
        own: Common start of the names here.
        layout: How the weights of Hugging Face hold those here.
        when: Whether the rows apply to a network; None for always.
        parameter: Whether Hugging Face's names are those of parameters instead of modules.
    """
    return tuple(
        Row(hf + key, tuple(own + name for name in names.split()), layout, when, parameter)
        for key, names in pairs.items()
    )


@dataclass(frozen=True)
class Family:
    """A Hugging Face model family.

    Args:
        model: Name of its language model class.
        rules: The rules of its settings; later rules take precedence.
        weights: The table of its weights: rows, or functions of the Transformer's configuration that return some.
    """

    model: str
    rules: tuple[Rule, ...]
    weights: tuple[Row | Callable[[TransformerConfig], tuple[Row, ...]], ...]

    def read(self, config: Any) -> TransformerConfig:
        """Convert a configuration of Hugging Face to one of the Transformer.

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
        """Convert a configuration of the Transformer to settings of Hugging Face, as far as they can express it."""
        return {key: value for rule in self.rules for key, value in rule.write(config).items()}

    def links(
        self, config: TransformerConfig, state: Mapping[str, Tensor], hf_keys: Collection[str] = ()
    ) -> Iterator[Link]:
        """Which weights correspond.

        Args:
            config: The configuration of the Transformer.
            state: Its state dict; the tensors may be on the meta device.
            hf_keys: The keys of Hugging Face's state dict, if names differ between versions.
        """
        parts = ((entry,) if isinstance(entry, Row) else entry(config) for entry in self.weights)
        for row in (row for part in parts for row in part):
            if row.when is not None and not row.when(config):
                continue
            layers = max(config.depth, config.encoder_depth)
            for layer in range(layers) if "{}" in row.hf else (0,):
                for part in ("weight",) if row.parameter else ("weight", "bias"):
                    names = tuple(f"{name.format(layer)}.{part}" for name in row.own)
                    if all(name in state for name in names):
                        suffix = "" if row.parameter else f".{part}"
                        keys = [f"{name}{suffix}" for name in row.hf.format(layer).split("|")]
                        yield next((key for key in keys if key in hf_keys), keys[0]), names, row.layout


def _assembled(values: Mapping[str, Any]) -> TransformerConfig:
    """A configuration from its settings by dotted path."""
    fields: dict[str, Any] = {}
    for path, value in values.items():
        part, _, name = path.rpartition(".")
        (fields.setdefault(part, {}) if part else fields)[name] = value
    return TransformerConfig(
        **{name: PARTS[name](**value) if name in PARTS else value for name, value in fields.items()}
    )
