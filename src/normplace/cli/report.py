"""``normplace report``."""

from __future__ import annotations

from json import dumps
from pathlib import Path

from normplace.cli.options import File, Studies
from normplace.cli.result_files import read_results, report_damage


def report(*results: Path, studies: Studies = (), out: File = Path("report.html"), json: bool = False) -> int:
    """Write the HTML report of result files: claims and figures.

    The exit code is 1 if result lines are damaged.

    Args:
        results: Result files, or folders of them; the package's own by default.
        studies: Your own studies among the results, if they moved or ran on another machine.
        out: The page to write.
        json: Print JSON.
    """
    from normplace._shared.output import check_writable
    from normplace.lab.report import Section, write_report
    from normplace.lab.trials.verdicts import FUNCTIONAL_CHECK

    check_writable(out)
    recorded = read_results(results, studies)
    write_report([Section(one.run.study, one.records, str(one.path), len(one.damaged)) for one in recorded], out)
    if json:
        print(dumps({"report": str(out.resolve()), "results": [str(one.path) for one in recorded]}, indent=1))
    else:
        if any(one.run.scale == "smoke" for one in recorded):
            print(FUNCTIONAL_CHECK)
        print(f"The report is at {out.resolve()}")
    return report_damage(recorded)
