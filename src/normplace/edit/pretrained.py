"""Moved Hugging Face models in folders that plain ``from_pretrained`` cannot mistake for the original.

``from_pretrained`` builds a model from ``config.json``, which does not describe moved norms. So the folder of a moved
model has a ``model_type`` of its own and keeps its weights under another name: classes of transformers refuse it, and
the Auto classes load it through normplace with ``trust_remote_code=True``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from normplace.edit.changes import changes
from normplace.edit.input_spec import like
from normplace.errors import UsageError

if TYPE_CHECKING:
    from normplace.edit.files import Drafts

MODEL_TYPE = "normplace_moved"
KEY, CODE, WEIGHTS = "normplace", "modeling_normplace", "normplace.safetensors"
SOURCE = '''"""Loads this folder's model, whose norms were moved by normplace, for the Auto classes of transformers."""

from normplace.edit import from_pretrained as load
from transformers import PretrainedConfig


class MovedConfig(PretrainedConfig):
    model_type = "normplace_moved"


class MovedModel:
    config_class = MovedConfig

    @classmethod
    def register_for_auto_class(cls, auto_class="AutoModel"):
        pass

    @classmethod
    def from_pretrained(cls, folder, *args, **kwargs):
        return load(folder)
'''


class GuardedSave:
    """``save_pretrained`` of one moved model, which hides that of its class.

    Args:
        model: The moved model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(
        self,
        save_directory: str | Path,
        is_main_process: bool = True,
        state_dict: dict[str, torch.Tensor] | None = None,
        push_to_hub: bool = False,
        **_: Any,
    ) -> None:
        """Write the model to a folder; :func:`from_pretrained` reads it.

        Args:
            save_directory: The folder.
            is_main_process: Whether this process writes.
            state_dict: The weights; by default the model's.
            push_to_hub: Not possible for a moved model.

        Raises:
            UsageError: If the model cannot be saved.
        """
        if push_to_hub:
            raise UsageError("a moved model cannot be pushed by save_pretrained: save it, and upload the folder.")
        if is_main_process:
            save_pretrained(self.model, save_directory, state_dict)


def guard(model: nn.Module) -> None:
    """Make ``save_pretrained`` of a moved Hugging Face model write what is needed to load it as it is."""
    if callable(getattr(type(model), "save_pretrained", None)) and hasattr(model, "config"):
        cast(Any, model).save_pretrained = GuardedSave(model)


def save_pretrained(model: nn.Module, folder: str | Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
    """Write a moved Hugging Face model to a folder that :func:`from_pretrained` reads.

    Args:
        model: What :func:`normplace.move` returned.
        folder: Where to; made if it is not there.
        state_dict: The weights; by default the model's.

    Raises:
        UsageError: If the model is not one of transformers, was moved on inputs that cannot be repeated, or the folder
            cannot be written.
    """
    import transformers

    from normplace.edit.files import drafts, write_model

    kind = type(model)
    if getattr(transformers, kind.__name__, None) is not kind:
        raise UsageError(
            f"{kind.__name__} is not a class of transformers, so a folder cannot name it: use normplace.edit.save, "
            "and load with normplace.edit.load."
        )
    if changes(model).call is None:
        raise UsageError(
            "the model was moved on inputs that a file cannot describe, so the move cannot be repeated: move it on "
            "tensors, or use normplace.edit.save."
        )
    with drafts(Path(folder)) as draft:
        write_model(model, draft, WEIGHTS, state_dict)
        _write_config(model, draft)
        draft.text(f"{CODE}.py", SOURCE)
        generation = getattr(model, "generation_config", None)
        if generation is not None:
            draft.text("generation_config.json", generation.to_json_string())


def _write_config(model: Any, draft: Drafts) -> None:
    import transformers

    said = json.loads(model.config.to_json_string(use_diff=False))
    said[KEY] = {"model_type": said.get("model_type"), "class": type(model).__name__}
    autos = {"AutoModel"}
    for name in dir(transformers):
        mapping = getattr(getattr(transformers, name), "_model_mapping", None) if name.startswith("AutoModel") else None
        if mapping is not None and type(model.config) in mapping.keys():  # noqa: SIM118 (lazy, without a fast test)
            kinds = mapping[type(model.config)]
            if type(model) in (kinds if isinstance(kinds, tuple) else (kinds,)):
                autos.add(name)
    said["model_type"], said["architectures"] = MODEL_TYPE, ["MovedModel"]
    said["auto_map"] = {"AutoConfig": f"{CODE}.MovedConfig"} | dict.fromkeys(sorted(autos), f"{CODE}.MovedModel")
    draft.text("config.json", json.dumps(said, indent=1))


def is_moved(folder: Path) -> bool:
    """Whether a folder holds a moved Hugging Face model."""
    try:
        said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and said.get("model_type") == MODEL_TYPE


def from_pretrained(folder: str | Path) -> nn.Module:
    """The model that ``save_pretrained`` of a moved model wrote, in evaluation mode.

    The class is built from its configuration, its norms are moved again, and the weights are read.

    Args:
        folder: The folder.

    Raises:
        UsageError: If there is no moved model, or its files are damaged.
    """
    import transformers

    from normplace.edit.files import load_moved, read_record

    folder = Path(folder)
    if not is_moved(folder):
        raise UsageError(f"there is no moved Hugging Face model in {folder}: load it with its own from_pretrained.")
    record = read_record(folder, WEIGHTS)
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    original = said.pop(KEY, None)
    kind: Any = getattr(transformers, str(original["class"]), None) if isinstance(original, dict) else None
    if kind is None or not isinstance(original, dict):
        raise UsageError(f"{folder}/config.json does not name a class of transformers: save the model again.")
    said = {name: value for name, value in said.items() if name not in ("auto_map", "architectures", "model_type")}
    try:
        config = transformers.AutoConfig.for_model(str(original["model_type"]), **said)
        with torch.random.fork_rng(devices=[]):
            model = kind._from_config(config).eval()
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"transformers cannot build {original['class']} from {folder} ({str(error).splitlines()[0]})."
        ) from error
    inputs, kwargs = like(record["changes"]["call"], torch.Generator().manual_seed(0))
    return load_moved(folder, WEIGHTS, record, model, inputs, kwargs)
