"""``normplace list``."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Mapping, Sequence
from json import dumps
from typing import Any

from normplace.cli.options import ListTopic

HEADINGS = {
    "studies": "Studies: 'normplace list STUDY' prints the parts and trials of one",
    "placements": "Placements: --placement of train, --to of move. x is the stream, F a branch, N a norm,\n"
    "g a learned factor, l the layer counted from 1, L the depth.",
    "norms": "Norms: names for build_norm; --norm of train takes layer, rms, dyt or identity",
}
TOPICS = tuple(HEADINGS)


def list_names(topic: ListTopic = None, /, *, json: bool = False) -> int:
    """List the studies, placements and norms, or the parts and trials of a study.

    Args:
        topic: studies, placements, norms, or a study, by name or as file.py; everything but the parts by default.
        json: Print JSON.
    """
    if topic is not None and topic not in TOPICS:
        return _list_study(topic, json)
    entries = {name: _entries(name) for name in TOPICS if topic in (None, name)}
    if json:
        print(dumps(entries, indent=1, ensure_ascii=False))
        return 0
    print("\n\n".join(_table(HEADINGS[name], rows) for name, rows in entries.items()))
    return 0


def _entries(topic: str) -> list[dict[str, str]]:
    """Name and description of each object of a topic."""
    if topic == "studies":
        from normplace.lab.studies import titles

        return [{"name": name, "title": title} for name, title in titles().items()]
    if topic == "placements":
        from normplace.placement.presets import ALL_PRESETS, build_preset

        return [
            {"name": name, "equation": build_preset(name, {}).equation(), "description": _first_line(preset)}
            for name, preset in ALL_PRESETS.items()
        ]
    from normplace.norms import NORMS

    return [{"name": name, "description": _first_line(norm)} for name, norm in NORMS.items()]


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0].replace("``", "")


def _table(title: str, entries: Sequence[Mapping[str, str]]) -> str:
    """A title, and each name above or next to its description."""
    from normplace._shared.paint import painter
    from normplace._shared.terminal import table_width

    paint = painter(sys.stdout)
    width = max(len(entry["name"]) for entry in entries)
    columns = table_width(sys.stdout)
    lines = [paint(title, "heading")]
    for entry in entries:
        name, first, *texts = entry.values()
        first, *more = _wrapped(first, columns, width + 4)
        lines.append(f"  {paint(name.ljust(width), 'open')}  {first}")
        lines += [f"  {'':{width}}  {line}" for line in more]
        lines += [
            f"  {'':{width}}    {paint(line, 'faint')}" for text in texts for line in _wrapped(text, columns, width + 6)
        ]
    return "\n".join(lines)


def _wrapped(text: str, columns: int | None, indent: int) -> list[str]:
    """The lines of a text that follows an indent on a terminal."""
    if columns is None:
        return [text]
    return textwrap.wrap(text, max(columns - indent, len("description")), break_long_words=False)


def _list_study(name: str, json: bool) -> int:
    from normplace.errors import unknown
    from normplace.lab.studies import STUDIES
    from normplace.lab.trials.record import SCALES
    from normplace.lab.trials.study import load_study

    if ":" not in name and not name.endswith(".py") and name not in STUDIES:
        raise unknown("study or topic", name, [*TOPICS, *STUDIES])
    study = load_study(name, STUDIES)
    trials = {part.name: {scale: len(list(part.plan(scale))) for scale in SCALES} for part in study.parts}
    if json:
        about: dict[str, Any] = {"name": study.name, "title": study.title, "paper": study.paper}
        print(dumps({**about, "claims": len(study.claims), "scales": SCALES, "trials": trials}, indent=1))
        return 0
    from normplace._shared.paint import painter
    from normplace._shared.text_table import text_table

    paint = painter(sys.stdout)
    rows = [[part, *(str(counts[scale]) for scale in SCALES)] for part, counts in trials.items()]
    rows.append(["total", *(str(sum(counts[scale] for counts in trials.values())) for scale in SCALES)])
    heading, *body, total = text_table(["part", *SCALES], rows, right_from=1).splitlines()
    print(paint(f"{study.name}: {study.title}", "heading"))
    print(f"{study.paper}. {len(study.claims)} claims. Trials of each part by scale:\n")
    print("\n".join([paint(heading, "heading"), *body, paint(total, "heading")]))
    return 0
