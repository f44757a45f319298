"""Settings of ``normplace train`` from a TOML file; an option on the command line has priority."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, get_type_hints

from cyclopts import App, ArgumentCollection
from cyclopts.config import Dict

from normplace._shared.fields import check_type
from normplace.errors import UsageError, expect_choice, quoted
from normplace.lab.train.config import OLD_NAMES, NetworkConfig, TrainConfig

TABLES = ("network", "training")
SIGNALS = "signals"
OPTION = "--config"
WORDS = str | tuple[str, ...]
OPTIONS: dict[str, Any] = {"text": WORDS, "tokenizer": str, "out": str, "log": WORDS, SIGNALS: WORDS}
"""Keys besides the settings of network and training, and their types."""


def apply_config_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Set the arguments of ``train`` that are in its configuration file and not on the command line.

    Raises:
        UsageError: If the file cannot be read, or a key or value is wrong.
    """
    tokens = arguments.match(OPTION)[0].tokens
    if tokens:
        path = Path(tokens[-1].value)
        Dict(read_config_file(path), source=str(path), use_commands_as_keys=False)(app, commands, arguments)


def read_config_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML file: options by name, at the top or in the tables ``network`` and ``training``.

    Raises:
        UsageError: If the file cannot be read, or a key or value is wrong.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {quoted(str(path))}: {error.strerror or error}.") from error
    except ValueError as error:  # also text that is not UTF-8, and a null byte in the path
        raise UsageError(f"{quoted(str(path))} is not a TOML file ({error}): correct it.") from error
    settings: dict[str, Any] = {}
    for key, value in content.items():
        pairs = value.items() if key in TABLES and isinstance(value, dict) else [(key, value)]
        for name, setting in pairs:
            name = name.replace("-", "_")
            settings[OLD_NAMES.get(name, name)] = setting
    types = {**OPTIONS, **get_type_hints(NetworkConfig), **get_type_hints(TrainConfig)}
    for name, value in settings.items():
        expect_choice(f"key of {path}:", name, types)
        if isinstance(value, list):
            settings[name] = value = tuple(value)
        if name == SIGNALS and isinstance(value, dict):
            settings[name] = value = tuple(f"{key}={setting}" for key, setting in value.items())
        check_type(f"{name} in {path}", value, types[name])
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
