"""Values as text."""

from __future__ import annotations

from normplace.lab.report.text import cite, duration, number


def test_citations_link_to_arxiv():
    assert cite("see arXiv 2505.14512, <b>").count('href="https://arxiv.org/abs/2505.14512"') == 1
    assert "&lt;b&gt;" in cite("see arXiv 2505.14512, <b>")


def test_formatted_numbers():
    assert [number(v) for v in (0.123456, 1234567, -1e-9, None, float("inf"), "a")] == [
        "0.1235",
        "1234567",
        "-1e-09",
        "–",
        "not finite",
        "a",
    ]


def test_durations_have_the_unit_that_suits_them():
    seconds = (0, 0.005, 1, 9.99, 59.4, 90, 599, 6000, 500_000)
    assert [duration(one) for one in seconds] == [
        "under 1 s",
        "under 1 s",
        "1 s",
        "10 s",
        "59 s",
        "1.5 min",
        "10 min",
        "1.7 h",
        "139 h",
    ]
