"""Verdicts as text, Markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.lab.trials.claim_cases import CLEAR, FAR, HIGH, LOW, OPEN, SIGN, claim, measure, records_of

from normplace.lab.trials.claims import Check, State, judge
from normplace.lab.trials.intervals import OrderStatistics
from normplace.lab.trials.verdict_totals import totals_table
from normplace.lab.trials.verdicts import as_json, counts_text, markdown, multiplicity, terminal_lines

GATE = Check("baseline", measure("value"), at_least=50)


def test_no_summary_hides_a_failed_check(sample_study):
    later = replace(FAR, added_after="it looked interesting")
    judgement = judge(claim(HIGH, LOW, SIGN, replace(HIGH, gates=(GATE,)), later), records_of(CLEAR))
    counts = "2 passed, 0 open, 1 failed, 1 void (1 passed without gates) (added later, not counted: 1 failed)"
    assert counts_text(judgement) == counts
    text = "\n".join(terminal_lines(judgement))
    assert f"  mixed: statement\n    {counts} (paper)" in text
    assert "    gate failed: baseline: 2 [1.91, 2.09], n=5; needs ≥ 50" in text
    assert "    failed: low: 2 [1.91, 2.09], n=5; needs ≤ 1" in text
    assert "    void (passed without its gates): high" in text
    assert "not counted: it looked interesting" in text
    assert "passed: sign" not in text
    assert "    passed: sign" in "\n".join(terminal_lines(judgement, every_check=True))
    table = markdown([(replace(sample_study, claims=(judgement.claim,)), "full", records_of(CLEAR))])
    assert f"| **mixed** | {counts} | full |" in table
    assert "1 claims: 1 mixed." in table
    found = json.loads(json.dumps(as_json(judgement), allow_nan=False))
    assert found["counts"] == {"passed": 2, "open": 0, "failed": 1, "void": 1, "not tested": 0}
    assert found["verdict"] == "mixed"
    assert [check["state"] for check in found["checks"]] == ["passed", "failed", "passed", "void", "failed"]


def test_the_markdown_has_a_table_for_each_study_and_folds_claims_without_a_verdict(sample_study):
    other = replace(sample_study, name="other", title="Another sample", claims=(claim(LOW),))
    both = replace(sample_study, claims=(claim(HIGH), replace(claim(LOW), id="few", seeds=100)))
    text = markdown([(both, "full", records_of(CLEAR)), (other, "full", records_of(CLEAR))])
    first, second = text.split("### ")[1:]
    assert first.startswith(f"{sample_study.title}\n\n2 claims: 1 reproduced, 1 not tested.")
    assert first.count("| statement |") == 2
    assert "<summary>Claims that are not tested: 1</summary>" in first
    assert second.startswith("Another sample\n\n1 claims: 1 not reproduced.")
    assert "<details" not in second


def test_scale_smoke_has_no_verdict_with_any_number_of_seeds():
    gated = replace(HIGH, gates=(GATE,))
    judgement = judge(claim(HIGH, LOW, gated), records_of(CLEAR, scale="smoke"))
    assert judgement.verdict == "not tested"
    assert counts_text(judgement) == "0 passed, 0 open, 0 failed, 3 not tested"
    found = as_json(judgement)
    assert {check["state"] for check in found["checks"]} == {"not tested"}
    assert {check["without_gates"] for check in found["checks"]} == {"not tested"}
    assert [check["estimate"] for check in found["checks"]] == [2.0, 2.0, 2.0]  # the numbers are shown


def test_an_open_check_tells_how_many_seeds_would_decide_it():
    (needed,) = [measured.seeds_to_decide for measured in judge(claim(HIGH), records_of(OPEN)).measurements]
    assert f"open: high: 1.46 [0.101, 2.82], n=5; needs ≥ 1; about {needed} seeds would decide it" in "\n".join(
        terminal_lines(judge(claim(HIGH), records_of(OPEN)))
    )
    median = Check("median", measure("value"), at_least=1.0, interval=OrderStatistics())
    text = "\n".join(terminal_lines(judge(claim(median), records_of(CLEAR))))
    assert "open: median: 2, n=5 (median; order statistics); needs ≥ 1; 6 seeds are the fewest" in text
    assert as_json(judge(claim(median), records_of(CLEAR)))["checks"][0]["low"] is None


def test_multiplicity_counts_the_checks_of_tested_claims():
    judged = [judge(claim(HIGH, LOW, replace(HIGH, gates=(GATE,))), records_of(CLEAR))] * 40
    judged.append(judge(claim(HIGH), []))
    text = multiplicity(judged)
    assert text.startswith(
        "120 checks of 40 tested claims: 40 passed, 0 open, 40 failed, 40 void. "
        "Without their gates, the void checks are 40 passed, 0 open, 0 failed."
    )
    assert "each of the 80 checks that are not void" in text
    assert text.endswith("2 would pass by chance.")


def test_totals_leave_out_the_checks_of_a_claim_that_lacks_seeds(sample_study):
    few = judge(claim(HIGH, LOW), records_of(CLEAR[:3]))
    assert few.verdict == "not tested"
    assert few.counts == {State.PASSED: 1, State.FAILED: 1}  # shown with the claim
    assert few.tested_counts == {State.UNTESTED: 2}
    assert totals_table([(sample_study, "full", [few])]).splitlines()[-1].split()[-1] == "0/0/0/0"
