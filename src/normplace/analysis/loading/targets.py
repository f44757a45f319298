"""What a command audits or edits: a factory, a configuration here, or a configuration on the Hugging Face Hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from normplace.analysis.loading.hub import fetch_config, is_hub_id
from normplace.errors import UsageError, expect_installed, quoted

FORMS = (
    "file.py:function, package.module:function, a config.json or its folder, or a model id such as google/gemma-2-2b"
)


@dataclass(frozen=True)
class FactoryTarget:
    """A function that returns a model and its inputs.

    Args:
        reference: ``package.module:function`` or ``file.py:function``.
    """

    reference: str


@dataclass(frozen=True)
class ConfigTarget:
    """A Hugging Face configuration.

    Args:
        path: The file, or its folder.
        note: A sentence for the user on where the file is from, or None.
    """

    path: Path
    note: str | None = None


def find_target(target: str) -> FactoryTarget | ConfigTarget:
    """Find what a word on the command line names; a file or folder that exists comes first.

    Args:
        target: ``file.py:function``, ``package.module:function``, a configuration file, a folder with ``config.json``,
            or the id of a model on the Hub, whose configuration is downloaded.

    Raises:
        UsageError: If it names none of them, or the download fails.
    """
    path = Path(target)
    if target and _exists(path):
        if path.suffix == ".py":
            raise _needs_function(target)
        if path.is_dir() and not (path / "config.json").is_file():
            if (path / "placement.json").is_file():
                raise UsageError(
                    f"the folder {quoted(target)} holds the weights of an edited model without its code: write a "
                    f"function that returns (npl.edit.load({target!r}, model, *inputs), *inputs), and pass "
                    "file.py:function."
                )
            raise UsageError(f"the folder {quoted(target)} has no config.json: pass {FORMS}.")
        return ConfigTarget(path)
    if ":" in target:
        return FactoryTarget(target)
    if target and _exists(Path(f"{target.replace('.', '/')}.py")):
        raise _needs_function(target)
    if is_hub_id(target) and path.suffix not in (".py", ".json"):
        expect_installed("a Hugging Face configuration", "transformers", "hf")
        return ConfigTarget(*fetch_config(target))
    raise UsageError(f"there is no file or folder {quoted(target)}: pass {FORMS}.")


def _needs_function(target: str) -> UsageError:
    return UsageError(f"{target} needs the name of a function that returns (model, inputs): {target}:function.")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, a loop of links, a null byte
        return False
