"""The command-line application: verbs, one-line errors and exit codes.

Exit codes: 0 success; 1 failed trials, an audit with errors, a wrong kernel or damaged result lines; 2 a usage error;
130 interrupted. Neither this module nor a verb's module imports torch before the arguments are parsed.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

from cyclopts import App, CoercionError, CycloptsError, Group, Parameter, Token, convert
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError, UnknownOptionError, UnusedCliTokensError
from rich.console import Console

from normplace._shared.fields import describe
from normplace._shared.terminal import complain, flush_output, prepared_streams
from normplace._startup import INTERRUPTED, end_imports
from normplace._version import __version__
from normplace.cli.audit import audit
from normplace.cli.bench import bench
from normplace.cli.compare import compare
from normplace.cli.config_file import apply_config_file
from normplace.cli.demo import demo
from normplace.cli.doctor import doctor
from normplace.cli.evaluate import evaluate
from normplace.cli.export import export
from normplace.cli.extrapolate import extrapolate, is_table
from normplace.cli.fold import fold
from normplace.cli.fuse import fuse
from normplace.cli.generate import generate
from normplace.cli.insert import insert
from normplace.cli.list import list_names
from normplace.cli.move import move
from normplace.cli.new import new
from normplace.cli.ogb import ogb
from normplace.cli.report import report
from normplace.cli.rerun import rerun
from normplace.cli.select import select
from normplace.cli.study import study
from normplace.cli.swap import swap
from normplace.cli.train import train
from normplace.cli.verify import verify
from normplace.errors import UsageError, quoted, unknown
from normplace.lab.studies import titles

GROUPS: dict[str, dict[str, Callable[..., int]]] = {
    "Read and edit a model": {
        "audit": audit,
        "move": move,
        "swap": swap,
        "fold": fold,
        "insert": insert,
        "fuse": fuse,
    },
    "Train and compare on your data": {
        "compare": compare,
        "select": select,
        "extrapolate": extrapolate,
        "ogb": ogb,
        "train": train,
        "generate": generate,
        "export": export,
        "evaluate": evaluate,
    },
    "Test the claims of papers": {
        "demo": demo,
        "study": study,
        "report": report,
        "verify": verify,
        "rerun": rerun,
        "bench": bench,
        "new": new,
    },
    "Look up": {
        "list": list_names,
        "doctor": doctor,
    },
}
"""The verbs under the headings of the help."""
VERBS = {name: verb for verbs in GROUPS.values() for name, verb in verbs.items()}
HELP = """Find, measure, move and study the normalization layers of PyTorch networks.

Begin with `normplace demo`, which takes minutes and needs no data, or audit a model of your own:
`normplace audit model.py:build`, where `build` returns the model and an input.
`normplace COMMAND --help` describes a command.
"""
WITHOUT_TORCH = (list_names, new)
"""Verbs that import PyTorch only if they need it."""
SECONDS_FOR_FIRST_PROCESS = 3.0
"""Under torchrun only the first process prints an error; the others wait, since torchrun ends it when one fails."""


def study_list() -> str:
    """The studies and their titles, for the end of the help of ``normplace study``."""
    return "\n".join(["Studies:", "", *(f"- **{name}**: {title}" for name, title in titles().items())])


AFTER_INTERRUPT = dict.fromkeys(
    ("compare", "demo", "ogb", "study"), "Progress is saved; rerun the command to resume."
) | {"train": "Rerun the command to resume from its newest checkpoint; without one it starts again."}
"""What an interrupted verb that can resume prints."""
EPILOGUES: dict[str, Callable[[], str | None]] = {"study": study_list}
"""The text below the options in the help of a verb."""


class HelpConsole(Console):
    """A console that raises on a closed pipe instead of ending the process with code 1."""

    def on_broken_pipe(self) -> None:
        """Let :func:`main` handle the closed pipe."""
        raise BrokenPipeError


def convert_exactly(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert the words of an option; a whole number is not rounded from a decimal one.

    Raises:
        CoercionError: If they cannot be converted.
    """
    if kind is not int:
        return convert(kind, tokens)
    try:
        return int(tokens[-1].value)
    except ValueError as error:
        raise CoercionError(token=tokens[-1], target_type=int) from error


def shown_default(value: Any) -> Any:
    """Return the default that the help shows; an unset flag, an empty text and an empty list have none."""
    if value is False or value in ((), ""):
        return None
    return " ".join(value) if isinstance(value, tuple) else value


def build_app(first: str = "") -> App:
    """Return the application; help texts come from the docstrings of the verbs and of their settings.

    Args:
        first: The first word; if it is a verb, the application has no other.
    """
    app = App(
        name="normplace",
        help=HELP,
        version=__version__,
        help_format="markdown",
        group_commands=Group("The command itself", sort_key=len(GROUPS)),
        group_parameters=Group("Options", sort_key=0),
        default_parameter=Parameter(
            negative=(), allow_repeating=True, converter=convert_exactly, show_default=shown_default
        ),
    )
    for place, (heading, verbs) in enumerate(GROUPS.items()):
        group = Group(heading, sort_key=place)
        for order, (name, verb) in enumerate(verbs.items()):
            if first in VERBS and name != first:
                continue
            config = apply_config_file if verb is train else None
            epilogue = EPILOGUES.get(name, lambda: None)()
            app.command(verb, name=name, group=group, sort_key=order, help_epilogue=epilogue, config=config)
    app.register_install_completion_command(help="Install completion for this shell.")
    return app


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    with prepared_streams():
        return flush_output(_run(sys.argv[1:] if words is None else list(words)))


def _run(words: Sequence[str]) -> int:
    """Parse the words and run the verb; report an error of the user or the system in one line."""
    try:
        verb, arguments = parse(words)
        if verb in VERBS.values() and verb not in WITHOUT_TORCH:
            import torch  # noqa: F401 (slow, so Ctrl-C still ends the process at once)
        end_imports()
        return verb(*arguments.args, **arguments.kwargs) or 0
    except UsageError as error:
        if words[:1] == ["train"] and os.environ.get("RANK", "0") != "0":
            time.sleep(SECONDS_FOR_FIRST_PROCESS)
            return 2
        return complain(str(error), 2)
    except BrokenPipeError:
        return 0
    except OSError as error:
        where = "a file or standard output" if error.filename is None else error.filename
        return flush_output(0) or complain(f"cannot read or write {where}: {error.strerror or error}.", 2)
    except KeyboardInterrupt:
        return complain(f"Interrupted. {AFTER_INTERRUPT.get(''.join(words[:1]), '')}".strip(), INTERRUPTED)
    except SystemExit as stop:
        return int(stop.code or 0)


def parse(words: Sequence[str]) -> tuple[Callable[..., Any], Any]:
    """Return the function that the words call and its bound arguments.

    Raises:
        UsageError: If the words are not a valid command.
    """
    words = words or ("--help",)
    try:
        verb, arguments, _ = build_app(words[0]).parse_args(
            words, console=HelpConsole(), exit_on_error=False, print_error=False
        )
    except CycloptsError as error:
        raise explain(error) from error
    return verb, arguments


def explain(error: CycloptsError) -> UsageError:
    """Return the one-sentence form of a parsing error."""
    program = " ".join(["normplace", *(error.command_chain or ())])
    see_help = f"see '{program} --help'"
    match error:
        case UnknownOptionError():
            options = [name for argument in error.argument_collection for name in argument.names if name[0] == "-"]
            word = (error.token.keyword or error.token.value).partition("=")[0]
            return unknown(f"option of '{program}':", word, [*options, "--help"])
        case UnknownCommandError(unused_tokens=[word, *_]) if word.startswith("-"):
            return unknown("option of 'normplace':", word.partition("=")[0], ["--help", "--version"])
        case UnknownCommandError(unused_tokens=[word, *_]):
            return unknown("command", word, VERBS)
        case UnusedCliTokensError(unused_tokens=[word, *_]):
            return UsageError(f"unexpected argument {quoted(word)}; {see_help}.")
        case CoercionError(token=Token() as token, target_type=kind) if kind is not None:
            name = token.keyword or (error.argument.name if error.argument else "the argument")
            if get_origin(kind) is Literal:
                return unknown(name, token.value, get_args(kind))
            return UsageError(f"{name} takes {describe(kind)}, got {quoted(token.value)}; {see_help}.")
        case MissingArgumentError(argument=argument) if argument is not None:
            words = error.root_input_tokens or []
            if words[:1] == ["extrapolate"] and argument.name == "--data" and is_table(words[1:2]):
                return UsageError(
                    f"the first argument is the model (file.py:function), not the table: run '{program} --data "
                    f"{shlex.quote(words[1])}'."
                )
            missing = "a value" if argument.tokens or error.keyword else "the argument"
            return UsageError(f"{missing} {argument.name} is missing; {see_help}.")
    error.verbose = False
    return UsageError(f"{' '.join(str(error).split()).rstrip('.')}; {see_help}.")
