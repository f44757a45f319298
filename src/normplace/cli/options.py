"""Option types and checks that several verbs share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from normplace._shared.resources import usable_cores
from normplace.errors import UsageError

if TYPE_CHECKING:
    from torch.nn import Module as Model

    from normplace.analysis.loading.models import Loaded
    from normplace.analysis.loading.targets import ConfigTarget, FactoryTarget

CORES = usable_cores()
VERDICTS = ("reproduced", "mixed", "partly", "not-reproduced", "undecided", "void", "not-tested")


def complete_studies(context: object) -> dict[str, str]:
    """Names and titles of the studies, for the shell."""
    from normplace.lab.studies import titles

    return titles()


def complete_topics(context: object) -> dict[str, str]:
    """What ``normplace list`` lists, for the shell."""
    return {"studies": "all studies", "placements": "all placements", "norms": "all norms", **complete_studies(context)}


def complete_placements(context: object) -> dict[str, str]:
    """Names and equations of the placements, for the shell."""
    from normplace.placement.presets import ALIASES, ALL_PRESETS, build_preset

    return {name: build_preset(name, {}).equation() for name in [*ALL_PRESETS, *ALIASES]}


Words = Annotated[tuple[str, ...], Parameter(consume_multiple=True)]
"""An option that takes one or more words, as in ``--set KEY=VALUE KEY=VALUE``."""
Assignments = Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=True, metavar="KEY=VALUE...")]
Studies = Annotated[tuple[str, ...], Parameter(name="--study", consume_multiple=True, metavar="FILE.py...")]
ListTopic = Annotated[str | None, Parameter(name="TOPIC", completer=complete_topics)]
Scale = Annotated[str, Parameter(choices=("smoke", "laptop", "full"), show_choices=False)]
StudyName = Annotated[str, Parameter(completer=complete_studies)]
StudyNames = Annotated[tuple[str, ...], Parameter(consume_multiple=True, completer=complete_studies)]
PlacementName = Annotated[str, Parameter(completer=complete_placements)]
VerdictWords = Annotated[tuple[str, ...], Parameter(consume_multiple=True, completer=lambda context: VERDICTS)]
Jobs = Annotated[int, Parameter(show_default=lambda cores: "one per core")]
Target = Annotated[str | None, Parameter(name="TARGET")]
HuggingFace = Annotated[Path | None, Parameter(metavar="FILE", show=False)]
"""The option that named a configuration before the argument TARGET did."""
Run = Annotated[Path, Parameter(name="RUN")]
"""The folder of a training run."""
File = Annotated[Path, Parameter(metavar="FILE")]
OUT_REMEDY = "choose another --out"
Folder = Annotated[Path, Parameter(metavar="FOLDER")]


def find_model(target: str | None, hf: Path | None) -> FactoryTarget | ConfigTarget:
    """Find the model that a command reads, named by its argument or by the older option ``--hf``.

    Raises:
        UsageError: If both or neither are set, or there is no such model.
    """
    if (target is None) == (hf is None):
        raise UsageError(
            "name one model: file.py:function, package.module:function, a config.json or its folder, or a model id."
        )
    from normplace.analysis.loading.targets import ConfigTarget, find_target

    return ConfigTarget(hf) if hf is not None else find_target(str(target))


def load_model(target: str | None, hf: Path | None, *, quiet: bool) -> Loaded:
    """Load the model that a command edits, with its weights and the arguments of a call.

    Raises:
        UsageError: If there is no such model, or it cannot be loaded.
    """
    source = find_model(target, hf)
    from normplace.analysis.loading.models import from_factory
    from normplace.analysis.loading.targets import FactoryTarget
    from normplace.edit.saving.pretrained import from_folder

    if isinstance(source, FactoryTarget):
        return from_factory(source.reference)
    loaded, weights = from_folder(source.path)
    if source.note is not None:
        print(source.note, file=sys.stderr)
    if not quiet:
        print(f"{type(loaded[0]).__name__} with {weights}")
    return loaded


def write_edited(model: Model, out: Path, json: bool, settings: Mapping[str, Any] | None = None) -> int:
    """Print the changes of an edited model, and write it to a folder."""
    from normplace.edit import changes
    from normplace.edit.saving.files import save

    if not json:
        print(changes(model))
    save(model, out, settings)
    folder = str(out.resolve())
    if json:
        print(dumps({**changes(model).to_dict(), "folder": folder}, indent=1))
    else:
        print_saved(folder)
    return 0


def print_saved(folder: str) -> None:
    """Print where an edited model is, and how to load it."""
    print(f"The weights and placement.json are in {folder}")
    print("To load them in Python: npl.edit.load(folder, model, *inputs), with the model before the edit.")
