"""Audit every model that can be built, and count crashes and hangs.

python scripts/sweep_audit.py --jobs 16 --out sweep.json               # every source that is installed
python scripts/sweep_audit.py --sources transformers --sample 40       # 40 model types, evenly spaced

Sources are `transformers` (each model type from a small configuration), `timm`, `diffusers` (its transformers),
`x-transformers` (each switch) and `truth` (the models of `scripts/audit_truth.py`). Each model runs in a process of
its own with a time limit. A model is *audited*, could *not be built* small or run by itself, was *refused* by the
audit with one sentence, or *crashed* it: an unexpected exception, a dead process or a process over the limit. The exit
code is 1 if one crashed. `--doubtful` prints the audits that a person should compare with the source: modules called
norm that ran without being found, no block, no name, something not understood, or a warning.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from audit_truth import CASES, build
from forked import declare_torchvision_operators, preload, run_forked
from sweep import hugging_face, libraries
from torch import nn

from normplace.analysis.results import Audit

MEMORY = 12 << 30
PREPARATION = 25  # seconds to build a model and to find inputs for it
BY_NAME = {case.name: case for case in CASES}


def prepare_truth(name: str) -> Any:
    """A model whose truth is known, or why the installed versions cannot build it."""
    try:
        return build(BY_NAME[name])
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


SOURCES: dict[str, tuple[str, Callable[[], list[str]], Callable[[str], Any]]] = {
    "transformers": ("transformers", hugging_face.names, hugging_face.prepare),
    "timm": ("timm", libraries.timm_names, libraries.prepare_timm),
    "diffusers": ("diffusers", libraries.diffusers_names, libraries.prepare_diffusers),
    "x-transformers": ("x_transformers", libraries.x_transformers_names, libraries.prepare_x_transformers),
    "truth": ("normplace", lambda: list(BY_NAME), prepare_truth),
}


class TooSlow(BaseException):
    """Raised while a model is prepared, past every handler of exceptions."""


def _prepare(source: str, name: str) -> Any:
    """A model with its inputs, or why there is none within the time for it."""

    def stop(*_: Any) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(PREPARATION)
    try:
        return SOURCES[source][2](name)
    except TooSlow:
        return f"it takes more than {PREPARATION} s by itself"
    finally:
        signal.alarm(0)


def examine(item: tuple[str, str]) -> dict[str, Any]:
    """Build one model and audit it."""
    import normplace as npl

    source, name = item
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    prepared = _prepare(source, name)
    if isinstance(prepared, str):
        return {"outcome": "not built", "message": prepared}
    model, inputs, kwargs = prepared
    calls = _calls_of_norms(model, inputs, kwargs)
    started = time.monotonic()
    try:
        audit = npl.audit(model, *inputs, **kwargs)
        str(audit), audit.to_json(), audit.to_html()
    except npl.UsageError as error:
        return {"outcome": "refused", "message": str(error), "lines": len(str(error).splitlines())}
    except Exception:
        return {"outcome": "crashed", "message": traceback.format_exc()}
    return {
        "outcome": "audited",
        "placement": audit.placement,
        "norms": len(audit.sites),
        "slots": Counter(site.slot for site in audit.sites),
        "operators": audit.operators,
        "doubts": _doubts(audit, calls),
        "seconds": round(time.monotonic() - started, 2),
    }


def _calls_of_norms(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The innermost modules whose class is called a norm and that one plain pass calls."""
    calls: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
        for name, module in model.named_modules()
        if name and "norm" in type(module).__name__.lower() and not any(module.children())
    ]
    with torch.no_grad():
        model(*inputs, **kwargs)
    for hook in hooks:
        hook.remove()
    return calls


def _doubts(audit: Audit, calls: list[str]) -> list[str]:
    """What a person should compare with the source of a model."""
    found = {site.module for site in audit.sites}
    doubts = [f"{name} is not found" for name in dict.fromkeys(calls) if name not in found]
    doubts += ["no block"] if not audit.blocks else ["no name"] if audit.placement is None else []
    doubts += [f"not understood: {unknown.operator} in {unknown.module}" for unknown in audit.unknown]
    rules = [f"{finding.severity}: {finding.rule}" for finding in audit.findings if finding.severity != "note"]
    return [*doubts, *rules]


def main() -> int:
    """Print the counts and write the outcomes; 1 if an audit crashed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="*", choices=list(SOURCES), default=list(SOURCES), help="default: all")
    parser.add_argument("--sample", type=int, help="so many models of each source, evenly spaced (default: all)")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--doubtful", action="store_true", help="print the audits to compare with the source")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=60, help="seconds for each audit (default: %(default)s)")
    parser.add_argument("--total", type=float, help="seconds after which no further model is started")
    parser.add_argument("--out", type=Path, help="write every outcome to this JSON file")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    started = time.monotonic()
    declare_torchvision_operators()
    missing = preload(dict.fromkeys(["normplace", *(SOURCES[source][0] for source in arguments.sources)]))
    if "transformers" not in missing:
        preload(["transformers.modeling_utils"])  # what `import transformers` leaves for later
    _quiet()
    items: list[tuple[str, str]] = []
    for source in arguments.sources:
        if SOURCES[source][0] in missing:
            print(f"{source} is not installed: {missing[SOURCES[source][0]]}")
            continue
        names = [name for name in SOURCES[source][1]() if arguments.only in name]
        step = max(1, len(names) // arguments.sample) if arguments.sample else 1
        items += [(source, name) for name in names[::step][: arguments.sample]]
    outcomes: dict[str, dict[str, dict[str, Any]]] = {source: {} for source, _ in items}
    pending = dict.fromkeys(items)
    for item, outcome, seconds in run_forked(
        examine, _until(items, started, arguments.total), jobs=arguments.jobs, limit=PREPARATION + arguments.limit
    ):
        source, name = item
        del pending[item]
        outcome = outcome or {"outcome": "crashed", "message": f"the process died or was killed after {seconds:.0f} s"}
        outcomes[source][name] = {**outcome, "wall": round(seconds, 2)}
        if outcome["outcome"] == "crashed":
            print(f"{source} {name}: {outcome['message'].strip().splitlines()[-1]}", flush=True)
        if arguments.doubtful and outcome.get("doubts"):
            print(f"{source} {name}: {'; '.join(outcome['doubts'])}", flush=True)
    for source, name in pending:
        outcomes[source][name] = {"outcome": "not reached"}
    counts = {source: Counter(outcome["outcome"] for outcome in its.values()) for source, its in outcomes.items()}
    print(json.dumps({"seconds": round(time.monotonic() - started), "counts": counts}, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps({"counts": counts, "outcomes": outcomes}, indent=1), encoding="utf-8")
    return 1 if any(count["crashed"] for count in counts.values()) else 0


def _until(items: list[tuple[str, str]], started: float, total: float | None):
    """The items, as long as there is time."""
    for item in items:
        if total is not None and time.monotonic() - started > total:
            return
        yield item


def _quiet() -> None:
    """Silence the advice that libraries log about small and untrained models."""
    import logging

    logging.disable(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
