"""Passages that several notes share are printed once."""

from __future__ import annotations

import dataclasses
import re

from hypothesis import given
from hypothesis import strategies as st

from normplace.lab.report import Section
from normplace.lab.report.notes import SHORTEST, fold
from normplace.lab.report.page import render_report

LONG = "The thresholds are ours and were set before any run, after pilots of one seed that chose the learning rate."
ALSO = "One run of the laptop scale then took too long, so that its strings went from twelve characters to ten of them."
SHORT = "Paired by seed."


def words(*texts: str) -> list[str]:
    return sorted(" ".join(texts).split())


def test_a_shared_passage_is_removed_from_each_note():
    shared, notes = fold([f"{LONG} Only here.", "", f"First. {LONG}", LONG])
    assert shared == {LONG: 3}
    assert [(note.own, note.shared) for note in notes] == [("Only here.", (1,)), ("", ()), ("First.", (1,)), ("", (1,))]


def test_sentences_of_the_same_claims_form_one_passage():
    shared, notes = fold([f"{LONG} {ALSO}", f"{LONG} {ALSO}"])
    assert shared == {f"{LONG} {ALSO}": 2}
    shared, notes = fold([f"{LONG} {ALSO}", f"{LONG} {ALSO}", LONG])
    assert shared == {LONG: 3, ALSO: 2}
    assert [note.shared for note in notes] == [(1, 2), (1, 2), (1,)]


def test_a_short_passage_is_repeated():
    assert len(SHORT) < SHORTEST <= len(LONG)
    shared, notes = fold([f"{SHORT} {LONG}", SHORT, LONG])
    assert shared == {LONG: 2}
    assert [note.own for note in notes] == [SHORT, SHORT, ""]


def test_a_repetition_within_one_note_is_not_shared():
    shared, notes = fold([f"{LONG} Between. {LONG}", "Other."])
    assert shared == {} and notes[0].own == f"{LONG} Between. {LONG}"


def test_an_abbreviation_does_not_end_a_sentence():
    text = f"The task is that of Jelassi et al. 2024, arXiv 2402.01032, e.g. with strings. {LONG}"
    shared, _ = fold([text, text])
    assert shared == {text: 2}


@given(st.lists(st.lists(st.sampled_from([LONG, ALSO, SHORT, "Other.", "Third."]), unique=True), max_size=5))
def test_no_word_is_lost_or_added(claims):
    notes = [" ".join(sentences) for sentences in claims]
    shared, folded = fold(notes)
    for note, left in zip(notes, folded, strict=True):
        assert words(left.own, *(list(shared)[n - 1] for n in left.shared)) == words(note)
    for n, (passage, claims_of_it) in enumerate(shared.items(), start=1):
        assert claims_of_it == sum(n in left.shared for left in folded) >= 2
        assert len(passage) >= SHORTEST


def test_the_page_prints_a_shared_note_once_per_study_and_links_to_it(sections, hostile):
    passage = f"{hostile} {LONG} See arXiv 2505.14512."
    study = sections[0].study
    claims = tuple(dataclasses.replace(claim, note=f"{passage} Of {claim.id}.") for claim in study.claims)
    first = dataclasses.replace(study, claims=claims, figures=lambda records: [])
    page = render_report([Section(one, [], "r.jsonl") for one in (first, dataclasses.replace(first, name="second"))])
    assert page.count("<script") == 1 and page.count("&lt;script&gt;alert(1)&lt;/script&gt; &amp; “co”") == 2
    for anchor in ("extrapolation", "second"):
        (note,) = re.findall(rf'<li id="{anchor}-note-1">(.*?)</li>', page)
        assert LONG in note and 'href="https://arxiv.org/abs/2505.14512"' in note
        assert note.endswith(f"(of {len(claims)} claims)")
        assert page.count(f'href="#{anchor}-note-1"') == len(claims)
    assert page.count(LONG) == 2
    assert all(page.count(f"Of {claim.id}. See") == 2 for claim in claims)


def test_a_study_without_shared_notes_has_no_list(sections):
    study = dataclasses.replace(sections[0].study, claims=sections[0].study.claims[:3])
    page = render_report([Section(study, [], "r.jsonl")])
    assert "shared-notes" not in page.split("</style>")[1]
    assert all(claim.note in page for claim in study.claims)
