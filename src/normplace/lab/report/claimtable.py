"""The claim table: what each paper says, what was measured, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from normplace.lab.report.markup import Html, cite, escape, join, number, tag
from normplace.lab.report.notes import Note, fold
from normplace.lab.report.section import Section
from normplace.lab.trials.claims import Judgement, Measurement, State, Verdict, judge
from normplace.lab.trials.verdicts import counts_text, decision_text, multiplicity

_LOOKS = {
    Verdict.REPRODUCED: ("good", "✓"),
    Verdict.MIXED: ("half", "±"),
    Verdict.PARTLY: ("half", "◐"),
    Verdict.NOT_REPRODUCED: ("bad", "✗"),
    Verdict.UNDECIDED: ("none", "?"),
    Verdict.VOID: ("none", "∅"),
    Verdict.NOT_TESTED: ("none", "○"),
}
_STATES = {
    State.HELD: ("yes", "✓ held"),
    State.FAILED: ("no", "✗ failed"),
    State.OPEN: ("none", "? open"),
    State.VOID: ("none", "∅ void"),
    State.UNTESTED: ("none", "○ not measured"),
}
_COLUMNS = ("Claim", "Verdict", "Measured", "Estimate and 95% interval", "n", "Needed", "Outcome")


def judgements(section: Section) -> list[Judgement]:
    """The verdict on each claim of the section's study."""
    return [judge(claim, section.done) for claim in section.study.claims]


def totals(judged: Sequence[Sequence[Judgement]]) -> Html:
    """How many claims have each verdict; the empty kinds are left out."""
    found = [judgement.verdict for judgements in judged for judgement in judgements]
    items = [tag("li", badge(verdict, found.count(verdict))) for verdict in Verdict if verdict in found]
    return join(
        [
            tag("ul", *items, class_="totals", role="list", aria_label="Claims by verdict"),
            tag("p", multiplicity([judgement for judgements in judged for judgement in judgements]), class_="note"),
        ]
    )


def badge(verdict: Verdict, n: int | None = None) -> Html:
    """A verdict, told by sign, word and colour."""
    kind, sign = _LOOKS[verdict]
    text = verdict.value if n is None else join([tag("b", n), " ", verdict.value])
    return tag("span", tag("span", sign, aria_hidden="true"), " ", text, class_=f"badge {kind}")


def claim_table(sections: Sequence[Section], judged: Sequence[Sequence[Judgement]]) -> Html:
    """The table over all sections.

    A phone shows it as cards, for which its parts stop being table parts to the browser; the explicit roles keep them
    table parts for a screen reader.

    Args:
        sections: The studies.
        judged: The verdicts of each.
    """
    head = tag("tr", *(tag("th", name, scope="col", role="columnheader") for name in _COLUMNS), role="row")
    bodies: list[Html] = []
    for n, (section, judgements) in enumerate(zip(sections, judged, strict=True), start=1):
        anchor = f"study-{n}"
        shared, notes = fold([judgement.claim.note for judgement in judgements])
        bodies.append(_study_rows(section, shared, anchor))
        bodies += [_claim_rows(judgement, note, anchor) for judgement, note in zip(judgements, notes, strict=True)]
    return tag(
        "table",
        tag("caption", "Claims, what was measured, and the verdict", class_="unseen-text"),
        tag("thead", head, role="rowgroup"),
        *bodies,
        class_="claims",
        role="table",
    )


def _study_rows(section: Section, shared: Mapping[str, int], anchor: str) -> Html:
    """What stands above a study's claims: what makes them, how long it takes and on what, and the notes they share."""
    commands = join((tag("code", command) for command in section.commands), " ")
    cost = join([section.time, *section.machines], " · ") if section.lines else "no results yet"
    cell = tag(
        "th",
        tag("a", section.study.title, href=f"#{anchor}"),
        tag("span", commands, class_="command"),
        tag("span", cost, class_="cost"),
        colspan=len(_COLUMNS),
        scope="rowgroup",
        role="rowheader",
    )
    rows = [tag("tr", cell, role="row")]
    if shared:
        rows.append(tag("tr", tag("td", _shared_notes(shared, anchor), colspan=len(_COLUMNS), role="cell"), role="row"))
    return tag("tbody", *rows, class_="study", role="rowgroup")


def _shared_notes(shared: Mapping[str, int], anchor: str) -> Html:
    items = [
        tag("li", cite(passage), f" (of {claims} claims)", id=f"{anchor}-note-{n}")
        for n, (passage, claims) in enumerate(shared.items(), start=1)
    ]
    return tag("ol", *items, class_="shared-notes", role="list", aria_label="Notes that several claims share")


def _note(note: Note, anchor: str) -> Html:
    """The claim's own words, and where to find those it shares."""
    links = [tag("a", f"note\N{NO-BREAK SPACE}{n}", href=f"#{anchor}-note-{n}") for n in note.shared]
    pointer = join(["See ", join(links, ", "), "."]) if links else ""
    return tag("span", join((part for part in (cite(note.own), pointer) if part), " "), class_="note")


def _claim_rows(judgement: Judgement, note: Note, anchor: str) -> Html:
    claim = judgement.claim
    gates = judgement.gates
    span = len(gates) + len(judgement.measurements)
    statement = tag(
        "th",
        tag("span", claim.statement, class_="statement"),
        tag("span", cite(claim.paper), class_="paper"),
        _note(note, anchor) if claim.note else "",
        rowspan=span,
        scope="rowgroup",
        role="rowheader",
    )
    counts = tag("span", counts_text(judgement), class_="note")
    verdict = tag("td", badge(judgement.verdict), counts, rowspan=span, role="cell", class_="verdict")
    cells = [*(_check_cells(gate, "Gate: ") for gate in gates), *map(_check_cells, judgement.measurements)]
    rows = [tag("tr", *([statement, verdict] if n == 0 else []), *each, role="row") for n, each in enumerate(cells)]
    return tag("tbody", *rows, role="rowgroup", class_="claim")


def _check_cells(measured: Measurement, prefix: str = "") -> list[Html]:
    held = _STATES[measured.state]
    remarks = [decision_text(measured)]
    if measured.state is State.VOID:
        remarks.append(f"{measured.ungated} without its gates")
    if measured.check.added_after:
        remarks.append(f"added later, not counted: {measured.check.added_after}")
    remark = "; ".join(filter(None, remarks))
    cells = [
        ("label", f"{prefix}{measured.check.label}"),
        ("mean", _estimate(measured)),
        ("n", tag("span", "n = ", class_="phone") + escape(measured.n)),
        ("needed", tag("span", "needs ", class_="phone") + escape(measured.check.threshold)),
        (f"held {held[0]}", join([held[1], tag("span", remark, class_="note")]) if remark else held[1]),
    ]
    return [
        tag("td", Html(text) if name in {"n", "needed"} else text, class_=name, role="cell") for name, text in cells
    ]


def _estimate(measured: Measurement) -> str | Html:
    if measured.n == 0:
        return "no results"
    if not math.isfinite(measured.estimate):
        return "not finite"
    kind = measured.kind
    estimate = number(float(measured.estimate), 3)
    if measured.n < kind.least:
        few = "one seed" if measured.n == 1 else f"{measured.n} seeds"
        return f"{estimate} ({few}: no interval)"
    interval = f"[{number(float(measured.low), 3)}, {number(float(measured.high), 3)}]"
    parts = [tag("b", estimate), " ", tag("span", interval, class_="interval")]
    if kind.name != "Student":
        parts.append(tag("span", f"{kind.statistic}; {kind}", class_="note"))
    return join(parts)
