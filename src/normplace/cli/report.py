"""``normplace report``."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from normplace.cli.options import File, Studies
from normplace.cli.result_files import read_results, report_damage

if TYPE_CHECKING:
    from normplace.lab.report import Section
    from normplace.lab.trials.runner import RecordedRun


def report(
    *results: Path,
    studies: Studies = (),
    committed: bool = False,
    out: File = Path("report.html"),
    json: bool = False,
) -> int:
    """Write the HTML report of result files: claims and figures.

    The exit code is 1 if result lines are damaged.

    Args:
        results: Result files, or folders of them; the package's own by default.
        studies: Your own studies among the results, if they moved or ran on another machine.
        committed: Compare your results with the package's own results of the same studies.
        out: The page to write.
        json: Print JSON.
    """
    from normplace._shared.output import check_writable
    from normplace.lab.report import CHARTS_MISSING, charts_installed, write_report
    from normplace.lab.trials.record import FUNCTIONAL_SCALE
    from normplace.lab.trials.verdicts import FUNCTIONAL_CHECK

    check_writable(out)
    recorded = read_results(results, studies)
    if committed:
        recorded += _committed_results(recorded)
    write_report([_section(result) for result in recorded], out)
    if json:
        print(dumps({"report": str(out.resolve()), "results": [str(result.path) for result in recorded]}, indent=1))
    else:
        if any(result.run.scale == FUNCTIONAL_SCALE for result in recorded):
            print(FUNCTIONAL_CHECK)
        if not charts_installed():
            print(CHARTS_MISSING)
        print(f"The report is at {out.resolve()}")
    return report_damage(recorded)


def _committed_results(recorded: list[RecordedRun]) -> list[RecordedRun]:
    """The package's own results of these studies that are not among them yet."""
    from normplace.lab.studies import committed_results

    names = {result.run.study.name for result in recorded}
    present = {result.path.resolve() for result in recorded}
    paths = [path for path in committed_results() if path.parent.parent.name in names and path.resolve() not in present]
    return read_results(paths, ()) if paths else []


def _section(one: RecordedRun) -> Section:
    from normplace.lab.report import Section
    from normplace.lab.studies import committed_results

    committed = one.path.resolve() in {path.resolve() for path in committed_results()}
    return Section(one.run.study, one.records, str(one.path), len(one.damaged), committed)
