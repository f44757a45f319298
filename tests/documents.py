"""Runs what a page of the documentation shows: Python blocks, console commands, and the output printed below them."""

from __future__ import annotations

import linecache
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from normplace.cli import main

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "console", "text", "toml", "yaml", "json", "bibtex"}
"""Every fenced block has one of these, so that no code hides behind another word."""

FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
COMMAND_ON_ITS_OWN_LINE = re.compile(r"^    ((?:normplace|python|torchrun) .*)$", re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")
LINKED_FILE = re.compile(r"\]\(([^)#:]+\.(?:safetensors|py|json|csv))\)")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
RELATIVE_TOLERANCE = 0.05
"""Printed numbers may differ this much between machines; the text around them may not."""

NOT_RUN = {
    "pip install": "needs the network",
}
"""Commands, by their first words, that no test runs, with the reason."""


@dataclass(frozen=True)
class Block:
    """A fenced block, with the output that the page shows directly below it."""

    language: str
    title: str | None
    body: str
    output: str | None = None


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page; a ``text`` block directly after a Python block is its output."""
    text = page.read_text()
    result: list[Block] = []
    end_of_last = -1
    for match in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match[3])
        block = Block(match[2], title and title[1], textwrap.dedent(match[4]))
        follows = result and end_of_last >= 0 and not text[end_of_last : match.start()].strip()
        if block.language == "text" and follows and result[-1].language == "python":
            result[-1] = Block("python", result[-1].title, result[-1].body, block.body)
        else:
            result.append(block)
        end_of_last = match.end()
    return result


def printed_by_comments(code: str) -> str | None:
    """The output that comments promise, if every ``print`` of the code has one: ``print(1 + 1)  # 2``."""
    prints = [line for line in code.splitlines() if line.startswith("print(")]
    return "\n".join(line.partition("  # ")[2] for line in prints) if all("  # " in line for line in prints) else None


def commands_of(block: Block) -> Iterator[tuple[str, str | None]]:
    """The commands of a console block, each with the output shown below it."""
    for part in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command = command[:-1] + more.strip()
        yield command, output if output.strip() else None


def mentioned_commands(page: Path) -> Iterator[str]:
    """The commands in the text of a page, outside fenced blocks."""
    text = FENCE.sub("", page.read_text())
    for code in [*COMMAND_ON_ITS_OWN_LINE.findall(text), *INLINE.findall(text)]:
        words = " ".join(code.split())
        if words.startswith("normplace ") and "…" not in words:
            yield words


def why_not_run(command: str) -> str | None:
    """The first words under which a command is exempt, or None."""
    return next((words for words in NOT_RUN if command == words or command.startswith(f"{words} ")), None)


def same_output(shown: str, printed: str) -> bool:
    r"""Whether the shown output is the printed one: numbers within tolerance, ``…`` for any text or lines.

    Examples:
        >>> same_output("loss 1.23", "loss 1.24"), same_output("loss 1.23", "loss 1.4"), same_output("a", "b")
        (True, False, False)
        >>> same_output("first\n…\ntook … s", "first\nsecond\nthird\ntook 3 s")
        True
    """
    shown, printed = (_trimmed(text) for text in (shown, printed))
    pattern = "".join(
        "(?:.*)" if part == "…" else r"(\S+)" if NUMBER.fullmatch(part) else re.escape(part)
        for part in re.split(rf"(…|{NUMBER.pattern})", shown)
    )
    match = re.fullmatch(pattern, printed, re.DOTALL)
    return match is not None and all(
        _close(number, other) for number, other in zip(NUMBER.findall(shown), match.groups(), strict=True)
    )


def _trimmed(text: str) -> str:
    """Without spaces at the ends of lines and with single spaces inside, since numbers shift columns."""
    return "\n".join(re.sub(r"(?<=\S) +", " ", line).rstrip() for line in text.strip("\n").splitlines()).strip()


def _close(shown: str, printed: str) -> bool:
    try:
        expected, value = (float(text.replace(",", "")) for text in (shown, printed))
    except ValueError:
        return False
    if re.fullmatch(r"\d+", shown):
        return value == expected
    last_digit = 10.0 ** -len(shown.partition("e")[0].partition(".")[2]) * 10.0 ** float(shown.partition("e")[2] or 0)
    return abs(value - expected) <= RELATIVE_TOLERANCE * abs(expected) + last_digit


class PageRunner:
    """Runs the blocks of one page in order, in one folder and one namespace, as a reader does.

    A block with ``title="name.py"`` is written to that file instead. A file that the page links to is copied there
    first, as if the reader had downloaded it. Of a study that an earlier page ran, the results are copied.
    """

    studies: ClassVar[dict[str, Path]] = {}
    """Folders with the results of studies, by their command."""

    def __init__(self, page: Path, folder: Path, read_output: Callable[[], str]) -> None:
        self.page, self.folder, self.read_output = page, folder, read_output
        self.module = types.ModuleType("example")

    def run(self) -> None:
        """Run everything that the page shows."""
        for target in LINKED_FILE.findall(self.page.read_text()):
            (self.folder / Path(target).name).write_bytes((self.page.parent / target).read_bytes())
        for block in blocks_of(self.page):
            if block.title and block.language != "text":
                (self.folder / block.title).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / block.title).write_text(block.body)
            elif block.language == "python":
                self._run_python(block)
            elif block.language == "console":
                self._run_console(block)

    def _run_python(self, block: Block) -> None:
        name = f"{self.page.name} example {hash(block.body)}"
        linecache.cache[name] = (
            len(block.body),
            None,
            block.body.splitlines(keepends=True),
            name,
        )  # read by edits of code
        exec(compile(block.body, name, "exec"), self.module.__dict__)
        self.check_output(block.body, block.output or printed_by_comments(block.body), self.read_output())

    def _run_console(self, block: Block) -> None:
        code, commands = 0, list(commands_of(block))
        for index, (command, output) in enumerate(commands):
            if command == "echo $?":
                assert output is not None and int(output) == code, f"{self.page.name}: {command} prints {code}"
                continue
            if why_not_run(command):
                continue
            code, printed = self._run_command(command)
            expected_to_fail = index + 1 < len(commands) and commands[index + 1][0] == "echo $?"
            assert code == 0 or expected_to_fail, f"{self.page.name}: {command} exits with {code}\n{printed}"
            self.check_output(command, output, printed)

    def _run_command(self, command: str) -> tuple[int, str]:
        program, *arguments = shlex.split(command.replace(".venv/bin/", ""))
        if program == "normplace":
            self.read_output()
            if command in self.studies:
                shutil.copytree(self.studies[command] / "runs", self.folder / "runs", dirs_exist_ok=True)
                return 0, ""
            code = main(arguments)
            if arguments[0] == "study" and code == 0 and (self.folder / "runs").exists():
                self.studies[command] = self.folder
            return code, self.read_output()
        folder = self.folder
        if program == "make":  # a target may run this test again, so only its recipe is checked; CI runs the targets
            arguments, folder = ["--dry-run", *arguments], ROOT
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            [program, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def check_output(self, code: str, shown: str | None, printed: str) -> None:
        """Compare the output that the page shows, if any, with the printed one."""
        if shown:
            assert same_output(shown, printed), f"{self.page.name} shows another output than:\n{code}\n{printed}"
