"""Claims on looking up the characters after an n-gram."""

from __future__ import annotations

from normplace.lab.studies.causalrn.claims.conventions import COPIES, LEVEL
from normplace.lab.studies.causalrn.claims.recall import FIXED_STATE, MARGIN
from normplace.lab.studies.causalrn.lookup import PART, SEEDS, LookupTrial
from normplace.lab.studies.causalrn.networks import TITLES
from normplace.lab.studies.notes import OURS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import Bootstrap, TrialShare
from normplace.lab.trials.per_seed import Measure, metric

SOURCE = "Jelassi et al. 2024, arXiv 2402.01032"
_LAST = "n-gram last"
_EXACT = TrialShare(LookupTrial.exam)
_SETTING = (
    f"Packed strings of {LookupTrial.shortest} to {LookupTrial.longest} characters; the n-gram of {LookupTrial.ngram} "
    f"characters occurs once in its string and the answer has {LookupTrial.answer}. String accuracy is the share of "
    "correct answers for the longest trained strings, under teacher forcing. Networks have equal parameter counts; the "
    "Transformer has rotary positions, the others none. The thresholds are our choices. Pilots on a CPU, with a seed "
    "that is not reported, had strings of 6 to 10 characters and two layers: the Transformer gave 72% of the answers "
    "after 3,000 steps of 32 sequences, the pairwise form 4% after 1,750. The full size was not tried."
)


def _accuracy(network: str, task: str) -> Measure:
    return metric(PART.name, "string", network=network, task=task)


def _solves(network: str, task: str = "suffix", label: str = _LAST) -> Check:
    """Gate: the network solves the task."""
    name = f"string accuracy, {label}, {TITLES[network]}"
    return Check(name, _accuracy(network, task), at_least=COPIES, interval=_EXACT)


CLAIMS = (
    Claim(
        id="looks-up-like-a-transformer",
        paper=OURS,
        statement="CausalRN with pair norm looks up characters after an n-gram as well as a Transformer.",
        checks=tuple(
            Check(
                f"string accuracy, {label}, pairwise minus Transformer",
                _accuracy("pairwise", task) - _accuracy("transformer", task),
                at_least=LEVEL,
                interval=Bootstrap(),
                gates=(_solves("transformer", task, label),),
            )
            for task, label in (("suffix", _LAST), ("prefix", "n-gram first"))
        ),
        seeds=SEEDS["full"],
        note=_SETTING,
    ),
    Claim(
        id="look-up-needs-more-than-a-fixed-state",
        paper=SOURCE,
        statement="If the n-gram comes last, networks with a state of fixed size look up worse than the pairwise form.",
        checks=tuple(
            Check(
                f"string accuracy, {_LAST}, pairwise minus {TITLES[network]}",
                _accuracy("pairwise", "suffix") - _accuracy(network, "suffix"),
                at_least=MARGIN,
                interval=Bootstrap(),
            )
            for network in FIXED_STATE
        ),
        gates=(_solves("transformer"), _solves("pairwise")),
        seeds=SEEDS["full"],
        note=f"{_SETTING} The source compares state-space models and LSTMs with Transformers.",
    ),
    Claim(
        id="look-up-is-easier-with-the-key-first",
        paper=SOURCE,
        statement="Networks with a state of fixed size look up better if the n-gram comes first.",
        checks=tuple(
            Check(
                f"string accuracy, {TITLES[network]}, n-gram first minus n-gram last",
                _accuracy(network, "prefix") - _accuracy(network, "suffix"),
                at_least=MARGIN,
                interval=Bootstrap(),
            )
            for network in FIXED_STATE
        ),
        gates=(_solves("transformer"),),
        seeds=SEEDS["full"],
        note=f"{_SETTING} According to a summary of the source, its recurrent networks solve the task with the n-gram "
        "first and fail with the n-gram last.",
    ),
)
