"""``normplace.compare``: which edit of a model is best on the user's data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from normplace._shared.resources import usable_cores
from normplace.errors import UsageError, expect_whole
from normplace.lab.compare.as_task import TaskLike, as_task
from normplace.lab.compare.budget import Budget
from normplace.lab.compare.checks import Checked, check_batches, check_task, edit_identity, task_identity
from normplace.lab.compare.config import FINAL, SPEED, STUDY_NAME
from normplace.lab.compare.edits import AS_IS, Edit, parse_edit, parse_edits
from normplace.lab.compare.identity import Identity
from normplace.lab.compare.lengths import LONGEST, make_plan
from normplace.lab.compare.plan import Plan
from normplace.lab.compare.result import Comparison
from normplace.lab.compare.rng import preserved_random_state
from normplace.lab.compare.scales import with_scales
from normplace.lab.compare.search import checked_rates, default_rates
from normplace.lab.compare.stages import Stages
from normplace.lab.compare.study import ComparisonCode
from normplace.lab.compare.task import Better, Task
from normplace.lab.compare.trial_runner import TrialRunner, run_here
from normplace.lab.trials.engines import Engine, InProcessEngine, check_engine, open_engine
from normplace.lab.trials.results import ResultFile, TrialRecord, read_records

DEFAULT_EDITS = (AS_IS, "peri")
PLAN_FILE, RESULT_FILE = "plan.json", "compare.jsonl"


def compare(
    task: TaskLike,
    edits: Iterable[Any] | Mapping[str, Any] | str = DEFAULT_EDITS,
    *,
    rates: Sequence[float] | None = None,
    seeds: int = 5,
    budget: str | int = "30m",
    start: str = "fresh",
    better: Better | None = None,
    baseline: str | None = None,
    engine: str = "local",
    address: str | None = None,
    jobs: int | None = None,
    files: Sequence[str] = (),
    out: str | Path | None = None,
    dry_run: bool = False,
    on_trial: Callable[[TrialRecord], None] | None = None,
    began: float | None = None,
) -> Comparison | Plan:
    """Train every edit of a model on the user's data, and rank them with confidence intervals.

    Learning rates are searched within each edit: short trainings try all of them, longer ones the best two, each with a
    complete schedule, and the range grows until the best is inside it. The best is trained with several seeds. All
    edits have the same weights, data order and dropout per seed, as far as they share them. One held-out split chooses
    the learning rate, another one is reported.

    The task and all edits are checked first, and a step of each is timed. Results are appended to a file as trainings
    finish. The same call resumes an interrupted comparison. With more seeds or edits, it adds them to a finished one.
    The caller's random state does not change.

    Args:
        task: A function ``make(seed) -> (model, batches, loss)``, optionally with ``validate`` as a fourth element, its
            name such as ``my_gnn.py:make``, a ``Trainer`` of transformers, a tuple of a Lightning module and its data
            module, or a :class:`~normplace.lab.compare.task.Task` such as
            :class:`~normplace.lab.compare.tasks.TextTask`. See :class:`~normplace.lab.compare.factory.FactoryTask`. A
            function or object that other processes cannot import, such as one of a notebook, is trained in this
            process.
        edits: What is compared: names as in :mod:`normplace.lab.compare.edits`, such as ``"peri"`` and ``"qk"``,
            functions from a model to a model, or a mapping from other names to these; ``"scales"`` are the edits of
            :mod:`normplace.lab.compare.scales`.
        rates: Learning rates tried first; by default five, half a decade apart. A single one is not searched.
        seeds: Number of seeds of the reported trainings.
        budget: Wall time of the comparison such as ``"30m"``, or steps of each reported training such as ``2000``.
        start: ``fresh`` to train new weights; ``weights`` to continue from those of the task's model.
        better: Whether a ``smaller`` or ``larger`` measure is better, for a function; ``smaller`` by default.
        baseline: The edit that the others are compared with; by default ``as-is``, or the first.
        engine: ``local``, ``ray`` or ``dask``.
        address: Address of the Ray or Dask cluster.
        jobs: Trainings at once; by default one per core, or one per GPU if the model is on a GPU.
        files: Files that the task reads, relative to its folder, to be sent to workers on other machines.
        out: Folder of the plan and the results; by default one below ``runs/compare`` for these arguments.
        dry_run: Return the plan and its cost, and train nothing.
        on_trial: Called with the record of each finished training.
        began: When a time budget begins, by ``time.monotonic``; at the call by default.

    Returns:
        The comparison, or with ``dry_run`` the plan.

    Raises:
        UsageError: If the task, an edit or another argument cannot be used, or trainings fail.

    Examples:
        >>> def make(seed):
        ...     torch.manual_seed(seed)
        ...     layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        ...     batches = list(torch.randn(128, 3, 8).split(8))
        ...     return layer, batches, lambda model, x: (model(x) - x.cumsum(1)).square().mean()
        >>> result = compare(make, ["as-is", "pre"], budget=20, seeds=2, rates=[1e-2], out="comparison")
        >>> sorted(row.edit for row in result.rows), result.baseline
        (['as-is', 'pre'], 'as-is')
    """
    with preserved_random_state():  # rich draws a random number when it is imported
        from normplace.lab.trials.progress import Progress

    began = time.monotonic() if began is None else began
    expect_whole(1, seeds=seeds)
    Budget.parse(budget)
    check_engine(engine, address)
    chosen = as_task(task, better, start)
    parsed = parse_edits(with_scales(edits, chosen), start)
    grid = default_rates(chosen.learning_rate) if rates is None else checked_rates(rates)
    identity = task_identity(chosen)
    folder = default_folder(chosen, start, grid, budget, identity) if out is None else Path(out)
    saved = Plan.load(folder / PLAN_FILE) if (folder / PLAN_FILE).exists() else None
    if saved is not None:
        saved.require_same(folder, rates=grid, budget=str(budget), start=start)
        saved.require_same_task(folder, chosen, identity)
        parsed = _with_recorded(saved, parsed, start, folder)
    new = [edit for edit in parsed if saved is None or edit.name not in saved.edits]
    checked = check_task(chosen, new, start) if new else None
    identities = {edit.name: edit_identity(chosen, edit) for edit in parsed if edit.recipe is None or edit.code}
    if saved is not None:
        saved.require_same_edits(folder, identities)
    in_process = _runs_in_process(chosen, parsed, engine, jobs)
    on_gpu = checked.on_gpu if checked is not None else saved is not None and saved.on_gpu
    gpus = torch.cuda.device_count() if on_gpu else 0
    slots = jobs or (1 if in_process else gpus or usable_cores())
    if on_gpu and checked is not None:
        shared = {name: cost.on_shared_gpu(slots / gpus) for name, cost in checked.costs.items()}
        checked = dataclasses.replace(checked, costs=shared)
    if saved is not None:
        plan = _extended(saved, new, checked, seeds, _finished_seeds(saved, folder))
    else:
        assert checked is not None
        plan = make_plan(
            chosen,
            parsed,
            checked.costs,
            rates=grid,
            seeds=seeds,
            start=start,
            budget=str(budget),
            identity=identity,
            jobs=slots,
            spent=time.monotonic() - began,
            on_gpu=on_gpu,
            notes=checked.notes,
        )
        check_batches(chosen, plan.final_steps or round(LONGEST * plan.steps))
    plan = dataclasses.replace(plan, identities=identities)
    if dry_run:
        return plan
    progress = Progress()
    progress.console.print(plan.describe(slots), markup=False, highlight=False, soft_wrap=True)
    for note in plan.notes:
        progress.note(note)
    plan.save(folder / PLAN_FILE)
    references = [*chosen.code, *(reference for edit in parsed for reference in edit.code)]
    share = min(1.0, gpus / slots)
    workers: Engine = InProcessEngine() if in_process else open_engine(engine, slots, address, share)
    with closing(workers):
        started_in = "" if in_process else str(Path.cwd())
        code = ComparisonCode.collect(references, workers.remote, tuple(files), started_in)
        runner = TrialRunner(workers, code, progress, run_here(chosen, parsed) if in_process else None, on_trial)
        with ResultFile(folder / RESULT_FILE, (STUDY_NAME,)) as results:
            stages = Stages(plan, folder / PLAN_FILE, results, runner, slots)
            records = stages.run(began, is_new=saved is None)
    return _evaluated(stages.plan, records, baseline)


def load_comparison(folder: str | Path, baseline: str | None = None) -> Comparison:
    """Evaluate the finished trainings of a comparison again, also on another machine; nothing is trained.

    Args:
        folder: The folder of its plan and results.
        baseline: The edit that the others are compared with; by default ``as-is``, or the first.

    Raises:
        UsageError: If the folder has no comparison, or no reported training is finished.
    """
    plan = Plan.load(Path(folder) / PLAN_FILE)
    records = [record for record in read_records(Path(folder) / RESULT_FILE) if record.part != SPEED]
    return _evaluated(plan, records, baseline)


def _evaluated(plan: Plan, records: Iterable[TrialRecord], baseline: str | None) -> Comparison:
    return Comparison.from_records(
        records,
        better=plan.task["better"],
        measure=plan.task.get("measure"),
        baseline=baseline,
        notes=plan.notes,
        tokens_per_step=plan.tokens_per_step,
    )


def _with_recorded(saved: Plan, edits: list[Edit], start: str, folder: Path) -> list[Edit]:
    """The edits of an earlier run and those that are added, in this order.

    Raises:
        UsageError: If an edit differs from the recorded one of the same name, or is a function that is not passed.
    """
    by_name = {edit.name: edit for edit in edits}
    for name, recipe in saved.edits.items():
        if name not in by_name and recipe is None:
            raise UsageError(f"{folder} compares the function {name!r} too: pass it again, or choose another --out.")
        edit = by_name.setdefault(name, dataclasses.replace(parse_edit(recipe or AS_IS, start), name=name))
        if edit.recipe != recipe:
            raise UsageError(f"{folder} has another edit called {name!r} ({recipe}): choose another --out.")
    return [by_name[name] for name in dict.fromkeys([*saved.edits, *by_name])]


def _finished_seeds(saved: Plan, folder: Path) -> int:
    """The number of seeds of an earlier result; 0 if some of its trainings are missing."""
    path = folder / RESULT_FILE
    records = read_records(path) if path.exists() else []
    final = [record for record in records if record.part == FINAL and record.status == "ok"]
    return saved.seeds if len({record.hash for record in final}) >= saved.seeds * len(saved.edits) else 0


def _extended(saved: Plan, new: list[Edit], checked: Checked | None, seeds: int, finished: int) -> Plan:
    """The plan of an earlier run with added edits and seeds."""
    if 0 < finished < seeds:
        note = (
            f"Seeds were added to a result of {finished} seeds: if a comparison is looked at more than once, it "
            "separates equal edits in more than 5% of cases."
        )
        saved = dataclasses.replace(saved, notes=(*saved.notes, note))
    if checked is not None:
        saved = dataclasses.replace(
            saved,
            edits={**saved.edits, **{edit.name: edit.recipe for edit in new}},
            costs={**saved.costs, **checked.costs},
            notes=tuple(dict.fromkeys([*saved.notes, *checked.notes])),
        )
    return dataclasses.replace(saved, seeds=max(saved.seeds, seeds))


def _runs_in_process(task: Task, edits: Sequence[Edit], engine: str, jobs: int | None) -> bool:
    """Whether workers cannot import the task or an edit, so that trainings run in this process.

    Raises:
        UsageError: If other processes were asked for.
    """
    local = [task.name] * (task.reference is None) + [edit.name for edit in edits if edit.recipe is None]
    if local and (engine != "local" or (jobs or 1) > 1):
        raise UsageError(
            f"other processes cannot import {local[0]!r}, which is defined in a notebook, a script or another "
            "function: move it to a module, or leave engine and jobs out."
        )
    return bool(local)


def default_folder(task: Task, start: str, rates: Sequence[float], budget: str | int, identity: Identity) -> Path:
    """A folder for these arguments, so that the same call resumes and another one does not interfere."""
    parts = [task.reference or task.name, start, list(rates), str(budget)]
    if task.reference is None:
        parts.append(dict(identity))
    text = json.dumps(parts)
    name = re.sub(r"[^\w-]+", "-", task.name).strip("-")[:40]
    return Path("runs", "compare", f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}")
