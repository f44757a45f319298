"""Estimate what one to eight GPUs give for a training run, from a measured throughput of one GPU.

Usage: python scripts/estimate_scaling.py [--dim 1024 --depth 24 …] [--bandwidth 300] [--run FOLDER]

The operations per second of one GPU come from committed measurements on an H200, or with --run from a finished run of
normplace train on one GPU. The number of operations and the bytes that FSDP2 sends follow from the network
(papers/scaling.py). The bandwidth is an assumption. No run on several GPUs has tested the estimate.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from papers.scaling_tables import BANDWIDTH, GPUS, Plan, describe, estimates, measured, scaling_table, throughputs

from normplace.errors import UsageError
from normplace.lab.train.run_folder import read_result


def speed_of(folder: Path) -> float:
    """Operations per second of one GPU in a run of ``normplace train``.

    Raises:
        UsageError: If the folder has no result, or the run took no step.
    """
    result = read_result(folder)
    if result is None or not result.get("mfu"):
        raise UsageError(f"{folder} has no result with a throughput: give the folder of a run of normplace train.")
    return result["mfu"] * result["peak_tflops"] * 1e12


def report(plan: Plan, gpus: list[int], bandwidth: float, run: Path | None) -> str:
    """The measurements, the estimate and the commands."""
    if run is None:
        sources, speeds = throughputs(), [one.flops_per_second for one in measured()]
    else:
        speeds = [speed_of(run)]
        sources = f"Measured in {run}: {speeds[0] / 1e12:.3g} TFLOP/s."
    table = scaling_table(plan, estimates(plan, speeds, gpus, bandwidth))
    return "\n\n".join((sources, describe(plan, bandwidth), table, *(plan.command(count) for count in gpus)))


def main(arguments: list[str] | None = None) -> int:
    """Print the estimate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Plan):
        name, kind = field.name.replace("_", "-"), type(field.default)
        parser.add_argument(f"--{name}", type=kind, default=field.default, help="(default: %(default)s)")
    parser.add_argument("--gpus", type=int, nargs="+", default=[*GPUS], help="numbers of GPUs (default: %(default)s)")
    parser.add_argument(
        "--bandwidth", type=float, default=BANDWIDTH / 1e9, help="GB/s that a GPU receives (default: %(default)s)"
    )
    parser.add_argument("--run", type=Path, help="folder of a run of normplace train on one GPU")
    chosen = parser.parse_args(arguments)
    plan = Plan(**{field.name: getattr(chosen, field.name) for field in dataclasses.fields(Plan)})
    try:
        print(report(plan, chosen.gpus, 1e9 * chosen.bandwidth, chosen.run))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
