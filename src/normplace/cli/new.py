"""``normplace new``."""

from __future__ import annotations

import importlib.util
import shlex
from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from normplace.cli.options import Folder
from normplace.cli.program import program
from normplace.errors import UsageError, expect_choice

TEMPLATE = Path(__file__).with_name("study_template.py")
KINDS = ("study",)


def new(
    kind: Annotated[str, Parameter(metavar="study")],
    name: str,
    /,
    *,
    out: Folder = Path(),
    json: bool = False,
) -> int:
    """Write the file of a new study, which runs at once and explains itself.

    Args:
        kind: What to write: study.
        name: Name of the study and of its file, in letters, digits and underscores.
        out: Folder of the file.
        json: Print JSON.
    """
    from normplace._shared.output import write_atomic
    from normplace.lab.studies import STUDIES

    expect_choice("kind of file", kind, KINDS)
    if not name.isidentifier() or not name.isascii():
        raise UsageError(f"a study's name has letters, digits and underscores, got {name!r}: choose another name.")
    if name in STUDIES or importlib.util.find_spec(name) is not None:
        raise UsageError(f"a study or Python module is called {name!r} already: choose another name.")
    path = out / f"{name}.py"
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists already: choose another name, or remove it.")
    title = name.replace("_", " ").strip().capitalize() or name
    write_atomic(path, TEMPLATE.read_text().replace("my_study", name).replace("My study", title))
    if json:
        print(dumps({"study": name, "file": str(path.resolve())}, indent=1))
        return 0
    normplace, file = program(), shlex.quote(str(path))
    print(f"""Wrote {path}. Run it, then change it:
  {normplace} study {file} --scale smoke    a quick functional check
  {normplace} study {file}                  about a minute, with verdicts
  {normplace} report runs --out runs/report.html""")
    return 0
