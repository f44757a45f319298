"""Claims on policies compared with classical methods on real graphs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from normplace.lab.studies.notes import OURS, SIGN
from normplace.lab.studies.postdeg.published import PAPER
from normplace.lab.studies.postdeg.topologies import ADAPTIVE, LEARNED, PART, titles
from normplace.lab.trials.claims import Check, Claim, sign_and_size
from normplace.lab.trials.intervals import Counted
from normplace.lab.trials.per_seed import PerSeed, Records, mean, measure, pick

_NOTE = "Our claim: the paper compares with its own backbone. Policies are trained on random graphs of up to 300 nodes."
_FLOAT32 = (
    "At full scale, recorded with scores in float32 and ties by node id, except for the policy with constant scores."
)
_FIVE = (
    "The verdict with three seeds was known when two more were planned, for every policy that decides a claim and "
    "whatever their results."
)
TASK_OF = {"spread": "influence", "AUC": "dismantling", "set": "independent-set"}


def _by_graph(records: Records, quantity: str, method: str, reference: str) -> Iterator[tuple[PerSeed, float]]:
    """A quantity of a policy, by seed, and of a classical method, mean over its seeds, for each graph."""
    policies, suffix = _records(records, quantity, method)
    classical, own_suffix = _records(records, quantity, reference)
    if not policies or not classical:
        return
    for graph in policies[0].config["graphs"]:
        key = f"{quantity}/{graph}"
        policy = PerSeed.of(policies, lambda record, key=key: record.metrics[key + suffix] or math.nan)
        values = [record.metrics[key + own_suffix] for record in classical if key + own_suffix in record.metrics]
        yield policy, mean([value or math.nan for value in values])


def _records(records: Records, quantity: str, method: str) -> tuple[Records, str]:
    """The records of a method for a quantity, and the ending of its metrics."""
    name, ending = method.removesuffix(ADAPTIVE), ADAPTIVE if method.endswith(ADAPTIVE) else ""
    selected = pick(records, PART.name, task=TASK_OF[quantity], method=name)
    # At full scale, the random order was recorded before it was also applied adaptively.
    return [record for record in selected if any(key.endswith(ending) for key in record.metrics)], ending


@measure
def mean_of_ratios(records: Records, quantity: str, method: str, reference: str) -> PerSeed:
    """Mean over graphs of the ratio to a classical method: every graph has the same weight."""
    return PerSeed.over((policy / base for policy, base in _by_graph(records, quantity, method, reference)), mean)


@measure
def ratio_of_means(records: Records, quantity: str, method: str, reference: str) -> PerSeed:
    """Mean over graphs divided by the mean of a classical method."""
    pairs = list(_by_graph(records, quantity, method, reference))
    return PerSeed.over([policy for policy, _ in pairs], sum) / sum(base for _, base in pairs)


MEANS = {"mean of ratios": mean_of_ratios, "ratio of means": ratio_of_means}
DECLARED = "mean of ratios"
_ADDED = "the first run used only the mean of ratios"
_DEGREE, _DEGREE_POSTDEG = "degree-input" + ADAPTIVE, "degree-postdeg" + ADAPTIVE

_OPPONENTS = {
    "AUC": Check(
        "AUC of CoreHD over a random order, mean of ratios",
        mean_of_ratios("AUC", "corehd", "random"),
        at_most=0.9,
        interval=Counted(),
    ),
    "spread": Check(
        "spread of RIS greedy over random seeds, mean of ratios",
        mean_of_ratios("spread", "ris", "random"),
        at_least=1.1,
        interval=Counted(),
    ),
    "set": Check(
        "set of the minimum degree over that of a random order, mean of ratios",
        mean_of_ratios("set", "min-degree", "random"),
        at_least=1.02,
        interval=Counted(),
    ),
}

CLAIMS = (
    Claim(
        id="constant-backbone-is-random-on-real-graphs",
        paper=OURS,
        statement="On real graphs, too, the LayerNorm backbone with a constant input orders nodes as at random.",
        checks=tuple(
            Check(
                f"{title} of {titles()[method]} over {titles()[reference]}, mean of ratios",
                mean_of_ratios(quantity, method, reference),
                at_least=0.85,
                at_most=1.15,
                gates=(_OPPONENTS[quantity],),
            )
            for quantity, title, method, reference in (
                ("AUC", "AUC", "ln", "random"),
                ("AUC", "AUC", "ln" + ADAPTIVE, "random" + ADAPTIVE),
                ("spread", "spread", "ln", "random"),
                ("spread", "spread", "ln" + ADAPTIVE, "random" + ADAPTIVE),
                ("set", "set", "ln", "random"),
            )
        ),
        seeds=5,
        note="An equivalence; rounding errors must not reach the order. With scores in float32, the spread of 50 seeds "
        "was 0.67 of RIS greedy's. An adaptive order leaves out nodes that have lost all edges, so it is compared with "
        "random scores used in the same way. The margin of 15% is our choice: whether a hub is among 50 random seeds "
        "changes their spread by more than a tenth. At full scale, dismantling is on the four smaller graphs, which "
        "was decided for its cost before the run; the part transfer ranks all nine once.",
    ),
    Claim(
        id="learned-dismantles-like-corehd",
        paper=f"{PAPER}, task of network dismantling",
        statement="On real graphs, an adaptive policy with degree input dismantles at least as fast as CoreHD.",
        checks=tuple(
            Check(
                f"AUC of {titles()[_DEGREE]} over CoreHD, {name}",
                summary("AUC", _DEGREE, "corehd"),
                at_most=1.0,
                added_after="" if name == DECLARED else _ADDED,
            )
            for name, summary in MEANS.items()
        ),
        gates=(_OPPONENTS["AUC"],),
        seeds=5,
        note=f"{_NOTE} {_FLOAT32} {_FIVE} Area under the robustness curve. A pilot on three of the graphs chose "
        "the policy. The first run used only the mean of ratios, which failed; the ratio of means, the usual summary, "
        "was added after it and does not count. The mean of ratios gives the two graphs that fall apart after a few "
        "hubs the same weight as the others.",
    ),
    Claim(
        id="learned-spreads-like-ris",
        paper=f"{PAPER}, task of influence maximization",
        statement="On real graphs, 50 seeds chosen by the policies reach as many nodes as those of RIS greedy.",
        checks=tuple(
            Check(
                f"spread of {titles()[method]} over RIS greedy, mean of ratios",
                mean_of_ratios("spread", method, "ris"),
                at_least=1.0,
            )
            for method in LEARNED
        ),
        gates=(_OPPONENTS["spread"],),
        seeds=5,
        note=f"{_NOTE} {_FLOAT32} {_FIVE} Weighted cascade. Policies choose a tenth of the nodes in training and "
        "50 here. The policy with constant input and LayerNorm scores all nodes equally, so it orders them at random.",
    ),
    Claim(
        id="postdeg-helps-on-real-graphs",
        paper=f"{PAPER}, scope of the claim",
        statement="On real graphs, PostDeg improves the dismantling policy with degree input.",
        checks=tuple(
            check
            for name, summary in MEANS.items()
            for check in sign_and_size(
                f"AUC with PostDeg over without, {name}",
                summary("AUC", _DEGREE_POSTDEG, "corehd") / summary("AUC", _DEGREE, "corehd"),
                no_effect=1,
                at_most=0.99,
                added_after="" if name == DECLARED else _ADDED,
            )
        ),
        gates=(
            Check(
                "AUC of the policy without PostDeg over a random order, mean of ratios",
                mean_of_ratios("AUC", _DEGREE, "random"),
                at_most=0.9,
            ),
        ),
        seeds=5,
        note=f"{_NOTE} {_FLOAT32} {_FIVE} Adaptive; the margin of 1% is our choice. The first run used only the "
        f"mean of ratios, which passed; the ratio of means, which fails, was added after it and does not count. {SIGN}",
    ),
)
