"""The command line: few verbs, each a plain function.

Exit codes: 0 all well, 1 some trials failed, an audit found an error or a benchmark a wrong kernel, 2 a mistake in what
was asked, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from normplace._shared.terminal import complain, flush_output, one_line, prepare_streams
from normplace._startup import INTERRUPTED, restore_interrupt
from normplace._version import __version__
from normplace.errors import UsageError, unknown

if TYPE_CHECKING:
    from normplace.lab.trials.claims import Claim, Judgement
    from normplace.lab.trials.results import TrialRecord
    from normplace.lab.trials.runner import RecordedRun

RUNS = Path("runs")
SHOWN = 10
"""Damaged lines of a file that are named one by one."""


class Parser(argparse.ArgumentParser):
    """Argument parser whose every complaint is one sentence with the nearest name suggested."""

    def error(self, message: str) -> NoReturn:
        """Turn the parser's own message into the project's."""
        raise UsageError(f"{message}; see '{self.prog} --help'.")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help; argparse's own method hides that standard output cannot be written."""
        (file or sys.stderr).write(message)

    def parse_strictly(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse all words, refusing those no option takes."""
        verbs = next(action for action in self._actions if isinstance(action, argparse._SubParsersAction)).choices
        verb = next((word for word in words if not word.startswith("-")), None)
        if verb is not None and verb not in verbs:
            raise unknown("command", verb, verbs)
        arguments, rest = self.parse_known_args(words)
        if rest:
            parser = verbs[verb] if verb else self
            if rest[0].startswith("-"):
                options = parser._option_string_actions
                raise unknown(f"option of '{parser.prog}':", rest[0].partition("=")[0], options)
            raise UsageError(f"nothing is known to do with {rest[0]!r}; see '{self.prog} {verb} --help'.")
        return arguments


def study(arguments: argparse.Namespace) -> int:
    """Run a study, or go on with one that was interrupted.

    Results go to a file in the output folder, a line per trial as it finishes. Run the same command again to continue
    after an interruption: recorded trials are kept, failed ones are tried again.
    """
    _need("lab", "rich", "scipy")
    from contextlib import closing

    from normplace.lab.studies import STUDIES
    from normplace.lab.trials.config import parse_overrides
    from normplace.lab.trials.engines import open_engine
    from normplace.lab.trials.progress import Progress
    from normplace.lab.trials.results import translate_study_errors
    from normplace.lab.trials.runner import Run, trial_label
    from normplace.lab.trials.study import load_study

    chosen = load_study(arguments.study, STUDIES)
    run = Run(chosen, arguments.scale, parse_overrides([part.config for part in chosen.parts], arguments.set))
    path = run.result_file(arguments.out)
    with closing(open_engine(arguments.engine, arguments.jobs, arguments.address)) as engine:
        lines = run.execute(arguments.out, engine, Progress(), arguments.part)
    failed = [line for line in lines if line.status == "failed"]
    with translate_study_errors(path):
        _print_verdicts(chosen.claims, lines)
    print(f"{len(lines) - len(failed)} trials recorded in {path}; 'normplace report {arguments.out}' makes the page.")
    for line in failed:
        reason = (line.error or "no message").strip().rpartition("\n")[2]
        print(f"failed: {trial_label(chosen, line.part, line.config)}: {reason}")
    return 1 if failed else 0


def report(arguments: argparse.Namespace) -> int:
    """Write the HTML report of result files: the claims first, then the figures.

    Takes result files or folders of them; without any, the results that come with the package.
    """
    _need("lab", "jinja2", "rich", "scipy")
    from normplace._shared.output import check_writable
    from normplace.lab.report import Section, write_report
    from normplace.lab.trials.runner import read_run

    check_writable(arguments.out)
    known = _known_studies(arguments.study)
    recorded = [read_run(path, known) for path in _result_files(arguments.results)]
    write_report(
        [Section(one.run.study, one.records, str(one.path), len(one.damaged)) for one in recorded], arguments.out
    )
    print(f"The report is at {arguments.out.resolve()}")
    return _report_damage(recorded)


def verify(arguments: argparse.Namespace) -> int:
    """Recompute every verdict from result files; nothing is trained.

    Takes result files or folders of them; without any, the results that come with the package.
    """
    _need("lab", "rich", "scipy")
    from normplace.lab.trials.claims import SuccessfulLines, judge
    from normplace.lab.trials.results import translate_study_errors
    from normplace.lab.trials.runner import read_run
    from normplace.lab.trials.verdicts import as_json, markdown, multiplicity

    known = _known_studies(arguments.study)
    recorded = [read_run(path, known) for path in _result_files(arguments.results)]
    if arguments.markdown:
        with translate_study_errors("these files"):
            print(markdown([(one.run.study, one.run.scale, one.records) for one in recorded]))
        return _report_damage(recorded)
    if arguments.json:
        judged: list[dict[str, Any]] = []
        for one in recorded:
            place = {"study": one.run.study.name, "scale": one.run.scale, "file": one.path.name}
            done = SuccessfulLines(one.records)
            with translate_study_errors(one.path):
                judged += [{**place, **as_json(judge(claim, done))} for claim in one.run.study.claims]
        print(json.dumps(judged, indent=1, ensure_ascii=False))
        return _report_damage(recorded)
    judgements: list[Judgement] = []
    for one in recorded:
        print(f"{one.run.study.name} at scale {one.run.scale}, {len(one.records)} trials in {one.path}")
        with translate_study_errors(one.path):
            judgements += _print_verdicts(one.run.study.claims, one.records, every_check=True)
    print(multiplicity(judgements))
    return _report_damage(recorded)


def audit(arguments: argparse.Namespace) -> int:
    """Find every norm of a model, say where it stands, and warn of what is wrong with that.

    Takes package.module:factory, a function without arguments that returns (model, input, ...), or a Hugging Face
    configuration, for which no weights are needed. The exit code is 1 when a finding is an error.
    """
    from normplace.analysis import audit as examine
    from normplace.analysis.loading.config_audit import audit_config
    from normplace.analysis.loading.models import from_factory

    if (arguments.factory is None) == (arguments.hf is None):
        raise UsageError("give either package.module:factory or --hf with a configuration.")
    if arguments.hf is None:
        model, inputs, kwargs = from_factory(arguments.factory)
        found = examine(model, *inputs, **kwargs)
    else:
        found, note = audit_config(arguments.hf)
        if note is not None:
            print(note, file=sys.stderr)
    print(found.to_json() if arguments.json else found)
    if arguments.html is not None:
        found.save_html(arguments.html)
        if not arguments.json:
            print(f"The page is at {arguments.html.resolve()}")
    return 1 if found.has_errors else 0


def move(arguments: argparse.Namespace) -> int:
    """Move the norms of a model to another placement, and write its weights and what was changed to a folder.

    Takes package.module:factory, a function without arguments that returns (model, input, ...), or a Hugging Face
    folder or configuration; without weights there, those it is initialised with.
    """
    from normplace.analysis.loading.models import from_factory
    from normplace.edit import changes
    from normplace.edit import move as moved
    from normplace.edit.files import save
    from normplace.edit.pretrained import from_folder

    if (arguments.factory is None) == (arguments.hf is None):
        raise UsageError("give either package.module:factory or --hf with a folder or a configuration.")
    if arguments.hf is None:
        model, inputs, kwargs = from_factory(arguments.factory)
    else:
        (model, inputs, kwargs), weights = from_folder(arguments.hf)
        print(f"{type(model).__name__} with {weights}")
    chosen = {name: getattr(arguments, name) for name in ("to", "scale", "qk", "norm")}
    result = moved(model, *inputs, **kwargs, **chosen)
    print(changes(result))
    save(result, arguments.out, chosen)
    print(f"The weights and placement.json are in {arguments.out.resolve()}")
    return 0


def bench(arguments: argparse.Namespace) -> int:
    """Measure speed and memory of the project's ops beside named peers, after checking that they are right.

    Prints times, and fractions of what the machine was measured to do, on a GPU; on a CPU ratios only. A wrong kernel
    is refused: nothing is reported of it and the exit code is 1. So it is when a figure differs by more than a tenth
    from the record it is held against.
    """
    if arguments.html is not None:
        _need("charts", "vl_convert")
    from normplace.lab.bench.command import Request, execute

    return execute(Request(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Request)}))


def train(arguments: argparse.Namespace) -> int:
    """Train a Transformer on text, or go on with a run that was interrupted.

    Shows loss and time left; writes a log, checkpoints and the result to a folder. The same command
    goes on from the newest checkpoint, with the numbers of a run that was never interrupted.
    Several processes share the work: torchrun --nproc-per-node 2 -m normplace train
    """
    from normplace.lab.train.command import execute
    from normplace.lab.train.config import NetworkConfig, TrainConfig
    from normplace.lab.trials.config import parse_overrides

    return execute(arguments, parse_overrides([NetworkConfig, TrainConfig], arguments.set))


def doctor(arguments: argparse.Namespace) -> int:
    """Say which backends are usable here, and why not where they are not."""
    from normplace.cli.doctor import examine

    print(f"normplace {__version__}")
    for finding in examine():
        mark = "yes" if finding.usable else "no "
        print(f"  {finding.name:8} {mark}  {finding.detail}  ({finding.serves})")
    return 0


def _print_verdicts(
    claims: Sequence[Claim], lines: Sequence[TrialRecord], every_check: bool = False
) -> list[Judgement]:
    """Print each claim with its verdict, and return the judgements."""
    from normplace.lab.trials.claims import SuccessfulLines, judge
    from normplace.lab.trials.verdicts import terminal_lines

    done = SuccessfulLines(lines)
    judgements = [judge(claim, done) for claim in claims]
    for judgement in judgements:
        print("\n".join(terminal_lines(judgement, every_check)))
    return judgements


def _report_damage(recorded: Sequence[RecordedRun]) -> int:
    """Name the lines that were left out; the exit code is 1 if there are any."""
    for one in recorded:
        for sentence in one.damaged[:SHOWN]:
            print(f"normplace: {one_line(sentence)}.", file=sys.stderr)
        if (more := len(one.damaged) - SHOWN) > 0:
            print(f"normplace: {one_line(str(one.path))} has {more} more damaged lines.", file=sys.stderr)
    return 1 if any(one.damaged for one in recorded) else 0


def _known_studies(references: Sequence[str]) -> dict[str, str]:
    """References by name: the package's studies, and those of the user's own that a result file may be of.

    A result file does not say where its study's code is: to read a file must never mean to import what it names.
    """
    from normplace.lab.studies import STUDIES
    from normplace.lab.trials.study import load_study

    return {**STUDIES, **{load_study(reference, STUDIES).name: reference for reference in references}}


def _result_files(paths: Sequence[Path]) -> list[Path]:
    """Result files among ``paths``, folders opened; those of the package when there are none."""
    from normplace.lab.studies import committed_results

    if not paths:
        return list(committed_results())
    found: list[Path] = []
    for path in paths:
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            raise UsageError(f"there is no {path}: run 'normplace study' first, or check the path.") from None
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}.") from error
        inside = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path} holds no result files: run 'normplace study --out {path}' first.")
        found += inside
    return found


def _need(extra: str, *modules: str) -> None:
    """Refuse with the remedy when an optional dependency is missing."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"this command needs {module!r}: pip install 'normplace[{extra}]'.")


def build_parser() -> Parser:
    """The parser of every verb; help texts are the functions' docstrings."""
    from normplace.lab.train.command import add_options

    parser = Parser(prog="normplace", description="Where should the normalization sit?", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(title="commands", dest="verb", required=True, metavar="command")

    def verb(function) -> argparse.ArgumentParser:
        text = inspect.cleandoc(function.__doc__)
        added = verbs.add_parser(
            function.__name__, help=text.splitlines()[0], description=text, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        added.set_defaults(function=function)
        return added

    options = verb(study)
    options.add_argument("study", help="its name, or module:attribute of your own")
    options.add_argument("--scale", default="laptop", help="smoke (seconds), laptop (minutes), full (the paper's size)")
    options.add_argument("--part", nargs="+", default=[], help="only these parts of the study")
    options.add_argument("--out", type=Path, default=RUNS, help="folder of result files (default: %(default)s)")
    options.add_argument("--engine", default="local", help="local, ray or dask (default: %(default)s)")
    options.add_argument("--address", help="the Ray or Dask cluster to join")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trials at once (default: %(default)s)")
    options.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="change settings of every trial, such as epochs=500"
    )
    for function in (report, verify):
        options = verb(function)
        options.add_argument("results", nargs="*", type=Path, help="result files, or folders of them")
        options.add_argument(
            "--study", nargs="+", default=[], metavar="MODULE:ATTRIBUTE", help="studies of your own among the results"
        )
        if function is verify:
            options.add_argument("--markdown", action="store_true", help="print one table for a document")
            options.add_argument("--json", action="store_true", help="print every claim and check as JSON")
        else:
            options.add_argument(
                "--out", type=Path, default=Path("report.html"), help="the page to write (default: %(default)s)"
            )
    options = verb(audit)
    options.add_argument("factory", nargs="?", help="package.module:function that returns (model, input, ...)")
    options.add_argument("--hf", type=Path, metavar="CONFIG", help="a config.json, or a folder that holds one")
    options.add_argument("--json", action="store_true", help="print the findings for a program")
    options.add_argument("--html", type=Path, metavar="FILE", help="write a page too")
    options = verb(move)
    options.add_argument("factory", nargs="?", help="package.module:function that returns (model, input, ...)")
    options.add_argument("--hf", type=Path, metavar="FOLDER", help="a Hugging Face folder, or a config.json")
    options.add_argument("--to", help="the placement, such as peri")
    options.add_argument("--scale", help="also layerscale or lns")
    options.add_argument("--qk", metavar="NORM", help="also norms of this kind on queries and keys")
    options.add_argument("--norm", help="the kind of new norms (default: the model's own)")
    options.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where to write")
    options = verb(bench)
    options.add_argument("op", nargs="*", help="what to measure, such as aggregate (default: every op)")
    options.add_argument("--quick", action="store_true", help="a few small cases: under two minutes on two cores")
    options.add_argument("--device", default="auto", help="auto, cpu or cuda (default: the GPU where there is one)")
    options.add_argument("--out", type=Path, metavar="FILE", help="write the figures with their environment as JSON")
    options.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts")
    options.add_argument("--show", type=Path, metavar="FILE", help="show what --out wrote instead of measuring")
    options.add_argument("--against", type=Path, metavar="FILE", help="compare with what --out wrote earlier")
    options.add_argument("--tune", action="store_true", help="try layouts of the GPU kernels instead")
    add_options(verb(train))
    verb(doctor)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    restore_interrupt()
    prepare_streams()
    return flush_output(_run(sys.argv[1:] if words is None else words))


def _run(words: Sequence[str]) -> int:
    """Parse the words and run the verb; an error of the user or of the system becomes one sentence."""
    try:
        arguments = build_parser().parse_strictly(words)
        return arguments.function(arguments)
    except UsageError as error:
        return complain(str(error), 2)
    except BrokenPipeError:
        return 0
    except OSError as error:
        where = "a file or standard output" if error.filename is None else error.filename
        return flush_output(0) or complain(f"cannot read or write {where}: {error.strerror or error}.", 2)
    except KeyboardInterrupt:
        return complain("interrupted; progress is saved, run the same command to resume.", INTERRUPTED)
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
