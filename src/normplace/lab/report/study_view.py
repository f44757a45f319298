"""One study in the report: the results of all its files in one section, and its card on the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.comparison import Comparison, compare
from normplace.lab.report.figure import ChartView, FigureView, card_chart
from normplace.lab.report.notes import Note, fold
from normplace.lab.report.section import Section
from normplace.lab.report.text import first_sentence, slug
from normplace.lab.trials.claims import Judgement, State, Verdict, judge_all
from normplace.lab.trials.record import FUNCTIONAL_SCALE, SCALES
from normplace.lab.trials.results import translate_study_errors
from normplace.lab.trials.study import Figure, Study


class Anchors:
    """Ids in a page, made unique."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def __call__(self, *parts: str) -> str:
        """An id from these parts, with a number where it is taken."""
        base = "-".join(filter(None, map(slug, parts))) or "part"
        name, n = base, 1
        while name in self._used:
            n += 1
            name = f"{base}-{n}"
        self._used.add(name)
        return name


class Run:
    """The results of one file, judged.

    Args:
        section: The results.
        label: What distinguishes the run from the others of its study.
    """

    def __init__(self, section: Section, label: str) -> None:
        self.section, self.label = section, label
        with translate_study_errors(section.source):
            self.judgements = judge_all(section.study.claims, section.successful)
            self.figures: Sequence[Figure] = section.study.figures(section.successful) if section.successful else ()

    @property
    def measured(self) -> str | None:
        """The number of the study's headline; None if the results do not have it."""
        headline = self.section.study.headline
        with translate_study_errors(self.section.source):
            return headline.measured(self.section.successful) if headline else None


@dataclass(frozen=True)
class ClaimView:
    """A claim in the page.

    Args:
        anchor: Its id.
        judgement: From the largest scale that has results.
        run: Label of that run; empty without results.
        note: Its note, without the passages that several claims share.
        others: Judgements from other runs with results, by label.
    """

    anchor: str
    judgement: Judgement
    run: str
    note: Note
    others: dict[str, Judgement]


class StudyView:
    """What the templates show of one study.

    If some of the files come with the package and others do not, the section shows the verdicts of the others, and
    compares both.
    """

    def __init__(self, sections: Sequence[Section], anchors: Anchors, renderer: ChartRenderer) -> None:
        self.study: Study = sections[0].study
        self.own = self.study.source is not None
        self.anchor = anchors(self.study.name)
        self.compares = len({section.committed for section in sections}) > 1
        ordered = _ordered(sections)
        self.runs = [Run(*pair) for pair in zip(ordered, _labels(ordered, self.compares), strict=True)]
        self._leading = [run for run in self.runs if not (self.compares and run.section.committed)]
        self.shared_notes, notes = fold([claim.note for claim in self.study.claims])
        self.claims = self._claims(notes, anchors)
        self.figures = self._figures(anchors, renderer)
        self.card_chart = card_chart(self.figures[0].figure, f"{self.anchor}-card", renderer) if self.figures else None

    @cached_property
    def groups(self) -> dict[Verdict, list[ClaimView]]:
        """The claims by verdict."""
        groups = {verdict: [view for view in self.claims if view.judgement.verdict is verdict] for verdict in Verdict}
        return {verdict: claims for verdict, claims in groups.items() if claims}

    @property
    def totals(self) -> Counter[Verdict]:
        """Number of claims with each verdict."""
        return Counter(view.judgement.verdict for view in self.claims)

    @property
    def checks(self) -> Counter[State]:
        """Number of checks with each outcome, over all claims; those of claims that are not tested have none."""
        return sum((view.judgement.tested_counts for view in self.claims), Counter())

    @property
    def is_functional_check(self) -> bool:
        """Whether all results are of scale smoke, which has no verdicts."""
        return {run.section.scale for run in self.runs} == {FUNCTIONAL_SCALE}

    @property
    def sentence(self) -> str:
        """What the paper shows, or what the study tests."""
        return self.study.headline.sentence if self.study.headline else first_sentence(self.study.summary)

    @cached_property
    def measured(self) -> dict[str, str]:
        """The number of the headline by source: from the largest scale that has it, yours and committed."""
        numbers: dict[bool, tuple[str, str]] = {}
        for run in self.runs:
            if run.section.committed not in numbers and (text := run.measured) is not None:
                label = run.label.capitalize() if self.compares else f"normplace, {run.label}"
                numbers[run.section.committed] = (label, text)
        return dict(numbers.values())

    @cached_property
    def comparison(self) -> Comparison | None:
        """The user's results against those of the package, if both are in the report."""
        if not self.compares:
            return None
        yours = self.runs[0]
        other = next(run for run in self.runs if run.section.committed)
        return compare(
            (yours.section.scale, yours.judgements),
            (other.section.scale, other.judgements),
            [view.anchor for view in self.claims],
        )

    def _claims(self, notes: Sequence[Note], anchors: Anchors) -> list[ClaimView]:
        """The claims; each from the first run, which is that of the largest scale, that has results for it."""
        views = []
        for claim, note, *judgements in zip(
            self.study.claims, notes, *(run.judgements for run in self._leading), strict=True
        ):
            pairs = zip(self._leading, judgements, strict=True)
            measured = {run.label: judgement for run, judgement in pairs if judgement.measured}
            label = next(iter(measured), "")
            judgement = measured.pop(label, judgements[0])
            views.append(ClaimView(anchors(self.anchor, "claim", claim.id), judgement, label, note, measured))
        return views

    def _figures(self, anchors: Anchors, renderer: ChartRenderer) -> list[FigureView]:
        """The figures, that of the headline first; figures of one title from several runs are one."""
        titles = dict.fromkeys(figure.title for run in self.runs for figure in run.figures)
        if self.study.headline and (leading := self.study.headline.leading(titles)):
            titles = {leading: None, **titles}
        views = []
        for title in titles:
            anchor = anchors(self.anchor, "figure", title)
            drawn = [(run.label, figure) for run in self.runs for figure in run.figures if figure.title == title]
            charts = [
                ChartView(figure, f"{anchor}-{n}", renderer, label) for n, (label, figure) in enumerate(drawn, start=1)
            ]
            views.append(FigureView(anchor, charts))
        return views


def _ordered(sections: Sequence[Section]) -> list[Section]:
    """The user's results first, larger scales first; of the package's results first those of the user's scale."""
    by_scale = sorted(sections, key=lambda one: SCALES.index(one.scale) if one.scale else -1, reverse=True)
    yours = [section for section in by_scale if not section.committed]
    committed = [section for section in by_scale if section.committed]
    return yours + sorted(committed, key=lambda one: bool(yours) and one.scale != yours[0].scale)


def _labels(sections: Sequence[Section], compares: bool) -> list[str]:
    """The scale of each run, whose results they are where that differs, and the file where nothing else does."""
    labels = []
    for section in sections:
        owner = ("committed, " if section.committed else "yours, ") if compares else ""
        labels.append(owner + (section.scale or "no results"))
    repeated = {label for label, n in Counter(labels).items() if n > 1}
    pairs = zip(labels, sections, strict=True)
    return [f"{label}, {one.source}" if label in repeated else label for label, one in pairs]
