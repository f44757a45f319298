"""``normplace demo``."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import textwrap
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normplace.cli.options import CORES, Folder, Jobs
from normplace.cli.program import program
from normplace.cli.report import report

if TYPE_CHECKING:
    from torch import Tensor, nn

    from normplace.lab.trials.engines import Engine
    from normplace.lab.trials.runner import Run

MODEL = "nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), 4)"
WIDTH = 100


def demo(*, out: Folder = Path("runs"), jobs: Jobs = CORES, json: bool = False) -> int:
    """Audit and move a model, run a part of each study, and write one page.

    It takes about three minutes on two cores. The trials belong to the studies at scale laptop and use their result
    files: rerun the command to resume after an interruption, and 'normplace study' computes the other trials only. The
    exit code is 1 if trials failed.

    Args:
        out: Folder of result files and of the page.
        jobs: Trials at once.
        json: Print JSON; the text goes to standard error.
    """
    from normplace._shared.output import check_writable

    page = out / "report.html"
    check_writable(page)
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        summary = {"model": _show_tools(), "studies": _run_studies(out, jobs)}
        files = [Path(study["file"]) for study in summary["studies"] if study["trials"] or study["failed"]]
        _heading("The report")
        code = report(*files, out=page)
        _print_next_steps(out, page)
    if json:
        print(dumps({**summary, "report": str(page.resolve())}, indent=1, ensure_ascii=False))
    return 1 if code or any(study["failed"] for study in summary["studies"]) else 0


def _heading(text: str) -> None:
    """Print a heading at once, also to a pipe: what follows can take a minute."""
    print(f"\n== {text}", flush=True)


def _paragraph(text: str, label: str) -> None:
    print(textwrap.fill(text, WIDTH, initial_indent=f"{label:>9}  ", subsequent_indent=" " * 11), flush=True)


def _show_tools() -> dict[str, Any]:
    """Audit a model of PyTorch and move its norms."""
    import normplace as npl

    _heading("Audit a model: where are its norms?")
    print(f"model = {MODEL}\nx = torch.randn(2, 16, 64)\nprint(npl.audit(model, x))\n", flush=True)
    model, x = encoder()
    audit = npl.audit(model, x)
    print(audit)
    _heading("Move its norms: compatible weights are kept, and the result is verified")
    print('moved = npl.move(model, x, to="peri")\nprint(npl.changes(moved))\n', flush=True)
    changes = npl.changes(npl.move(model, x, to="peri"))
    print(changes)
    return {"audit": audit.to_dict(), "changes": changes.to_dict()}


def encoder() -> tuple[nn.Module, Tensor]:
    """The model of :data:`MODEL` and its input, from a fixed seed."""
    import torch
    from torch import nn

    from normplace._shared.seeding import seeded

    with seeded(0):
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(2, 16, 64)


def _run_studies(out: Path, jobs: int) -> list[dict[str, Any]]:
    """Run the trials of the demo, study by study."""
    from normplace.lab.studies import STUDIES
    from normplace.lab.trials.engines import open_engine
    from normplace.lab.trials.runner import Run
    from normplace.lab.trials.study import named_study

    studies = [study for study in (named_study(name, STUDIES) for name in STUDIES) if study.demo]
    with contextlib.closing(open_engine("local", jobs)) as engine:
        return [
            _run_study(Run(study, "laptop"), out, engine, f"Study {number} of {len(studies)}")
            for number, study in enumerate(studies, start=1)
        ]


def _run_study(run: Run, out: Path, engine: Engine, number: str) -> dict[str, Any]:
    from normplace.lab.trials.claims import Verdict, judge_all
    from normplace.lab.trials.per_seed import SuccessfulRecords
    from normplace.lab.trials.progress import Progress
    from normplace.lab.trials.results import translate_study_errors
    from normplace.lab.trials.trial import failure_reasons
    from normplace.lab.trials.verdicts import verdicts_text

    study = run.study
    assert study.headline is not None
    _heading(f"{number}: {study.title} ({study.name})")
    _paragraph(study.headline.sentence, "paper")
    _paragraph(study.headline.published, "published")
    path = run.result_file(out)
    records = run.execute(out, engine, Progress(), demo=True)
    failed = failure_reasons(study, records)
    with translate_study_errors(path):
        judgements = judge_all(study.claims, records)
        measured = study.headline.measured(SuccessfulRecords(records))
    if records:
        _paragraph(measured or "not measured by the trials of the demo", "normplace")
        _paragraph(study.demo, "demo")
        _paragraph(verdicts_text(judgements), "claims")
    else:
        _paragraph("no trial of this study can run here", "normplace")
    for judgement in judgements:
        if judgement.verdict is not Verdict.NOT_TESTED:
            _paragraph(f"{judgement.verdict}: {judgement.claim.statement}", "-")
    for label, reason in failed.items():
        print(f"failed: {label}: {reason}")
    return {
        "study": study.name,
        "file": str(path),
        "trials": len(records) - len(failed),
        "failed": failed,
        "published": study.headline.published,
        "measured": measured,
        "claims": {judgement.claim.id: judgement.verdict.value for judgement in judgements},
    }


def _print_next_steps(out: Path, page: Path) -> None:
    opener = {"darwin": "open", "win32": "start"}.get(sys.platform, "xdg-open")
    if sys.platform == "win32" or shutil.which(opener):
        print(f"Open it with:  {opener} {shlex.quote(str(page))}")
    else:
        print(f"Open this address in a browser:  {page.resolve().as_uri()}")
    normplace, folder = program(), shlex.quote(str(out))
    print(f"""
Try next:
  {normplace} study extrapolation --out {folder}    all trials of a study at scale laptop; those of the demo are kept
  {normplace} verify {folder}    every claim, with its checks and intervals
  {normplace} compare pre post peri --text FILE    which placement is best on your text, in five minutes
  {normplace} --help    audit, move and train your own models""")
