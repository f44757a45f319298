"""Audit models whose norms were placed by hand from their source code, and count what the audit gets wrong.

python scripts/audit_truth.py                    # the score of each model and in total; exit code 1 if one is wrong
python scripts/audit_truth.py --check            # do not audit: check that the truth names norms that run
python scripts/audit_truth.py --only Flux --json # some models, as JSON

The truth is in `scripts/truth`. Models of packages that are not installed (diffusers, x-transformers,
torch-geometric, timm) are listed and left out of the score.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from forked import declare_torchvision_operators, preload, run_forked
from truth import language, libraries, senses
from truth.case import Case, Slots

CASES = [*language.CASES, *senses.CASES, *libraries.CASES]
PACKAGES = ("transformers.modeling_utils", "diffusers", "x_transformers", "torch_geometric.nn", "timm")
LIMIT = 120.0


def expression(pattern: str) -> re.Pattern[str]:
    """A pattern of module names, ``*`` within one component."""
    return re.compile(re.escape(pattern.removesuffix(":")).replace(r"\*", "[^.]*"))


def matching(truth: Mapping[str, Slots], module: str) -> str | None:
    """The first pattern that a module matches."""
    return next((pattern for pattern in truth if expression(pattern).fullmatch(module)), None)


def build(case: Case) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model in evaluation mode, with its inputs."""
    torch.manual_seed(0)
    model = case.build().eval()
    inputs = case.inputs()
    return (model, inputs, {}) if isinstance(inputs, tuple) else (model, (), dict(inputs))


def expected(case: Case, model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, list[str]]:
    """The slots of the norms of each module in the order of use, by the truth and the calls of one plain pass."""
    calls: Counter[str] = Counter()
    matched = {
        name: pattern
        for name, module in model.named_modules()
        if not isinstance(module, nn.Identity) and (pattern := matching(case.truth, name)) is not None
    }
    outer = {
        name
        for name, pattern in matched.items()
        if not pattern.endswith(":") and any(other.startswith(f"{name}.") for other in matched)
    }
    hooks = [
        module.register_forward_hook(lambda *_, name=name: calls.update([name]))
        for name, module in model.named_modules()
        if name in matched and name not in outer
    ]
    with torch.no_grad():
        model(*inputs, **kwargs)
    for hook in hooks:
        hook.remove()
    slots = {}
    for name, count in calls.items():
        slot = case.truth[matched[name]]
        cycle = (slot,) if isinstance(slot, str) else slot
        uses = count * len(cycle) if matched[name].endswith(":") else count
        slots[name] = [cycle[use % len(cycle)] for use in range(uses)]
    return slots


def unused(case: Case, slots: Iterable[str]) -> list[str]:
    """Patterns of the truth that no norm in use matches."""
    seen = {matching(case.truth, name) for name in slots}
    return [pattern for pattern in case.truth if pattern not in seen]


def check(case: Case) -> dict[str, Any]:
    """Whether the truth of a case fits the modules that run."""
    try:
        model, inputs, kwargs = build(case)
        slots = expected(case, model, inputs, kwargs)
    except Exception:
        return {"failure": traceback.format_exc()}
    return {"norms": sum(map(len, slots.values())), "unused": unused(case, slots)}


def score(case: Case) -> dict[str, Any]:
    """The audit of a case against its truth."""
    import normplace as npl

    try:
        model, inputs, kwargs = build(case)
        slots = expected(case, model, inputs, kwargs)
        audit = npl.audit(model, *inputs, **kwargs)
    except Exception:
        return {"failure": traceback.format_exc()}
    found: defaultdict[str, list[str]] = defaultdict(list)
    for site in audit.sites:
        found[site.module].append(site.slot)
    wrong = []
    for module in {**slots, **found}:
        truth, audited = slots.get(module, []), found.get(module, [])
        length = max(len(truth), len(audited))
        pairs = zip(truth + [None] * (length - len(truth)), audited + [None] * (length - len(audited)), strict=True)
        wrong += [{"module": module, "truth": slot, "audit": other} for slot, other in pairs if slot != other]
    norms = sum(map(len, slots.values())) + sum(difference["truth"] is None for difference in wrong)
    return {"norms": norms, "wrong": wrong, "placement": audit.placement, "unused": unused(case, slots)}


def report(case: Case, outcome: dict[str, Any] | None) -> str:
    """One line for a case, and one for each kind of disagreement."""
    if outcome is None:
        return f"{case.name}: killed after {LIMIT:.0f} s, or died"
    if "failure" in outcome:
        return f"{case.name}: failed: {outcome['failure'].strip().splitlines()[-1]}"
    lines = [f"{case.name}: {outcome['norms'] - len(outcome.get('wrong', ()))} of {outcome['norms']} norms"]
    lines += [f"  no norm matches {pattern}" for pattern in outcome["unused"]]
    kinds = Counter(
        (re.sub(r"(?<![^.])\d+(?![^.])", "*", item["module"]), item["truth"], item["audit"])
        for item in outcome.get("wrong", ())
    )
    lines += [
        f"  {name or '(model)'}: {truth}, audited as {audit} ({n} x)" for (name, truth, audit), n in kinds.items()
    ]
    return "\n".join(lines)


def main() -> int:
    """Print the score; 1 if a model is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="check the truth against the modules that run")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (default: %(default)s)")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    declare_torchvision_operators()
    missing = preload(PACKAGES)
    cases = [case for case in CASES if arguments.only in case.name]
    by_name = {case.name: case for case in cases}
    assert len(by_name) == len(cases), "two cases have one name"
    outcomes: dict[str, dict[str, Any] | None] = {}
    absent = []
    run = check if arguments.check else score
    for name, outcome, _ in run_forked(lambda name: run(by_name[name]), by_name, jobs=arguments.jobs, limit=LIMIT):
        if outcome and any(f"named '{package.split('.')[0]}'" in outcome.get("failure", "") for package in missing):
            absent.append(name)
            continue
        outcomes[name] = outcome
        if not arguments.json:
            print(report(by_name[name], outcome), flush=True)
    right = [name for name, outcome in outcomes.items() if outcome and not outcome.get("wrong") and "norms" in outcome]
    scored = [outcome for outcome in outcomes.values() if outcome and "norms" in outcome]
    norms = sum(outcome["norms"] for outcome in scored)
    totals = {
        "models": len(outcomes),
        "models_right": len(right),
        "norms": norms,
        "norms_right": norms - sum(len(outcome.get("wrong", ())) for outcome in scored),
        "failed": sorted(set(outcomes) - {name for name, outcome in outcomes.items() if outcome in scored}),
        "not_installed": absent,
    }
    if arguments.json:
        print(json.dumps({**totals, "outcomes": outcomes}, indent=1))
    else:
        print(json.dumps(totals, indent=1))
    return 0 if len(right) == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
