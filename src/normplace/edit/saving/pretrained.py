"""Save and load moved Hugging Face models.

``from_pretrained`` of transformers builds a model from ``config.json``, which does not describe moved norms. So the
folder of a moved model has its own ``model_type`` and another name for the weights: classes of transformers refuse it,
and the Auto classes load it through normplace with ``trust_remote_code=True``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn

from normplace._shared.seeding import seeded
from normplace.analysis.loading.models import Loaded, from_config, hf_inputs
from normplace.analysis.recording.passes import dtype_name
from normplace.edit.model.copying import require_memory
from normplace.edit.record.changes import changes
from normplace.edit.record.input_spec import random_inputs
from normplace.edit.saving.files import (
    RECORD,
    FolderDraft,
    load_moved,
    read_record,
    require_no_other_model,
    write_folder,
    write_model,
)
from normplace.errors import UsageError

MODEL_TYPE = "normplace_moved"
KEY = "normplace"
"""The field of ``config.json`` that names the original class."""
CODE, WEIGHTS, INDEX = "modeling_normplace", "normplace.safetensors", "model.safetensors.index.json"
SOURCE = '''"""Loads the model of this folder, whose norms normplace moved, for the Auto classes of transformers."""

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


def save_pretrained(model: nn.Module, folder: str | Path, state_dict: dict[str, Tensor] | None = None) -> None:
    """Write a moved Hugging Face model to a folder that :func:`from_pretrained` reads.

    Args:
        model: A model that :func:`normplace.move` returned.
        folder: The folder to write to; created if it does not exist.
        state_dict: The weights; by default the model's.

    Raises:
        UsageError: If the model is not a class of transformers, the inputs of its move cannot be described, or the
            folder cannot be written or holds another model.
    """
    import transformers

    kind = type(model)
    if getattr(transformers, kind.__name__, None) is not kind:
        raise UsageError(
            f"{kind.__name__} is not a class of transformers: save it with normplace.edit.save, and load it with "
            "normplace.edit.load."
        )
    if changes(model).call is None:
        raise UsageError(
            "the model was moved on inputs that a file cannot describe, so loading could not repeat the move: move it "
            "on tensors, or use normplace.edit.save."
        )
    require_no_other_model(Path(folder), WEIGHTS)
    with write_folder(Path(folder)) as draft:
        write_model(model, draft, WEIGHTS, state_dict)
        if re.fullmatch(r"checkpoint-\d+", Path(folder).name):  # a Trainer's
            _write_index(draft)
        _write_config(model, draft)
        draft.write_text(f"{CODE}.py", SOURCE)
        generation = getattr(model, "generation_config", None)
        if generation is not None:
            draft.write_text("generation_config.json", generation.to_json_string())


def _write_index(draft: FolderDraft) -> None:
    """Write the index by which a Trainer of transformers finds the weights of a checkpoint.

    A Trainer reads the names of the weights alone. ``from_pretrained`` also reads the field ``metadata``, which is left
    out so that it raises an error instead of building the model with its norms in the original places.
    """
    with safe_open(draft.folder / WEIGHTS, framework="pt") as file:
        names = list(file.keys())
    note = "The norms of this model were moved: load it with normplace.edit.from_pretrained."
    draft.write_text(INDEX, json.dumps({"note": note, "weight_map": dict.fromkeys(names, WEIGHTS)}, indent=1))


def _write_config(model: Any, draft: FolderDraft) -> None:
    config = json.loads(model.config.to_json_string(use_diff=False))
    config[KEY] = {"model_type": config.get("model_type"), "class": type(model).__name__}
    config["model_type"], config["architectures"] = MODEL_TYPE, ["MovedModel"]
    config["dtype"] = dtype_name(model.dtype)  # which .to(dtype) does not change
    auto_classes = dict.fromkeys(sorted(_auto_classes(model)), f"{CODE}.MovedModel")
    config["auto_map"] = {"AutoConfig": f"{CODE}.MovedConfig"} | auto_classes
    draft.write_text("config.json", json.dumps(config, indent=1))


def _auto_classes(model: Any) -> set[str]:
    """The Auto classes of transformers that build models of this class."""
    import transformers

    names = {"AutoModel"}
    for name in dir(transformers):
        mapping = getattr(getattr(transformers, name), "_model_mapping", None) if name.startswith("AutoModel") else None
        if mapping is not None and type(model.config) in mapping.keys():  # noqa: SIM118 (lazy, without a fast test)
            kinds = mapping[type(model.config)]
            if type(model) in (kinds if isinstance(kinds, tuple) else (kinds,)):
                names.add(name)
    return names


def is_moved(folder: Path) -> bool:
    """Whether a folder holds a moved Hugging Face model."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("model_type") == MODEL_TYPE


def from_pretrained(folder: str | Path) -> nn.Module:
    """Load a moved Hugging Face model, in evaluation mode.

    The class is built from its configuration, the moves are repeated, and the weights are read.

    Args:
        folder: A folder that ``save_pretrained`` of a moved model wrote.

    Raises:
        UsageError: If the folder holds no moved model, or its files are damaged.
    """
    import transformers

    folder = Path(folder)
    if not is_moved(folder):
        remedy = "load it with its own from_pretrained"
        if not folder.is_dir():
            remedy = "check the path"
        elif (folder / RECORD).is_file():
            remedy = "load it with normplace.edit.load, which takes the model before the edit"
        raise UsageError(f"there is no moved Hugging Face model in {folder}: {remedy}.")
    record = read_record(folder, WEIGHTS)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    original = config.pop(KEY, None)
    kind: Any = getattr(transformers, str(original["class"]), None) if isinstance(original, dict) else None
    if kind is None or not isinstance(original, dict):
        raise UsageError(f"{folder}/config.json does not name a class of transformers: save the model again.")
    config = {name: value for name, value in config.items() if name not in ("auto_map", "architectures", "model_type")}
    try:
        built = transformers.AutoConfig.for_model(str(original["model_type"]), **config)
        with torch.random.fork_rng(devices=[]):
            model = kind._from_config(built).eval()
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"transformers cannot build {original['class']} from {folder} ({str(error).splitlines()[0]})."
        ) from error
    inputs, kwargs = random_inputs(record["changes"]["call"], torch.Generator().manual_seed(0))
    moved = load_moved(folder, WEIGHTS, record, model, inputs, kwargs)
    _restore_dtypes(moved, folder / WEIGHTS)
    return moved


def _restore_dtypes(model: nn.Module, weights: Path) -> None:
    """Give a model whose layers have several dtypes those of the file, which were rounded to the first when read."""
    with safe_open(weights, framework="pt") as file:
        saved = set(file.keys())
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name in saved and (original := file.get_tensor(name)).dtype != tensor.dtype:
                tensor.data = original


def from_folder(path: Path) -> tuple[Loaded, str]:
    """Load a Hugging Face model with random inputs that fit it, and describe the origin of its weights.

    Random inputs are enough to find the norms, but measure the gains of new norms poorly.

    Args:
        path: A folder with a configuration and weights, or a ``config.json`` whose model is then initialized.

    Raises:
        UsageError: If transformers is not installed or cannot load the model, or the model does not fit into memory.
    """
    if path.is_dir() and is_moved(path):
        model = cast(Any, from_pretrained(path))
        return _with_random_inputs(model, model.config), "the folder's weights"
    sketch, _, _ = from_config(path)
    config, kind = sketch.config, cast(Any, type(sketch))
    require_memory(sketch, "use a larger machine, or shrink the configuration (fewer layers, dtype bfloat16)")
    has_weights = path.is_dir() and any([*path.glob("*.safetensors"), *path.glob("*.bin")])
    if has_weights:
        try:
            model = kind.from_pretrained(str(path), local_files_only=True, trust_remote_code=False, weights_only=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(f"the weights in {path} cannot be read ({str(error).splitlines()[0]}).") from None
    else:
        with seeded(0):
            model = kind._from_config(config)
    return _with_random_inputs(model, config), "the folder's weights" if has_weights else "initial weights, seed 0"


def _with_random_inputs(model: Any, config: Any) -> Loaded:
    generator = torch.Generator().manual_seed(0)
    inputs = {
        name: _random_like(value, getattr(config, "vocab_size", 2), generator)
        for name, value in hf_inputs(model, config).items()
    }
    return model.eval(), (), inputs


def _random_like(tensor: Tensor, below: int, generator: torch.Generator) -> Tensor:
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, generator=generator)
    return torch.randint(below, tensor.shape, generator=generator)
