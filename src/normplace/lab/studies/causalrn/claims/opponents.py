"""Claims on CausalRN against Transformers with several kinds of position and recurrent networks."""

from __future__ import annotations

from normplace.lab.studies.causalrn.claims.conventions import COPIES, EXACT, LEVEL
from normplace.lab.studies.causalrn.claims.published_copying import RULE
from normplace.lab.studies.causalrn.opponents import PAIRWISE, RECURRENT, TRANSFORMERS, WIDE, Opponent
from normplace.lab.studies.causalrn.published_measures import best_length, lead_at_equal_time, opponent_metric
from normplace.lab.studies.causalrn.published_size import SEEDS
from normplace.lab.studies.notes import OURS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import Bootstrap
from normplace.lab.trials.per_seed import Measure

_RULE = (
    f"{RULE} Strings of 128 characters. Every network has the better of two learning rates for its first seed. A "
    "comparison with a network that copies neither 32 nor 128 characters is void."
)
_CENSORED = "A network that does not copy in 6,000 steps counts with its steps, which favors it."


def _gate(opponent: Opponent) -> Check:
    """The network copies at some length."""
    label = f"string accuracy, {opponent.title}, best length"
    return Check(label, best_length(opponent), at_least=COPIES, interval=EXACT)


def _lead(opponent: Opponent) -> Measure:
    return opponent_metric("string_in_budget", PAIRWISE) - opponent_metric("string_in_budget", opponent)


def _faster(name: str, opponents: tuple[Opponent, ...]) -> tuple[Check, ...]:
    """The pairwise form copies after fewer steps or seconds than each network."""
    return tuple(
        Check(
            f"{name.replace('_', ' ')}, pairwise over {opponent.title}",
            opponent_metric(name, PAIRWISE) / opponent_metric(name, opponent),
            below=1,
            interval=Bootstrap(),
            gates=(_gate(opponent), _gate(PAIRWISE)),
        )
        for opponent in opponents
    )


CLAIMS = (
    Claim(
        id="published-matches-every-position",
        paper=OURS,
        statement="CausalRN copies as well as Transformers of equal size with any kind of position.",
        checks=tuple(
            Check(
                f"string accuracy, pairwise minus {opponent.title}",
                _lead(opponent),
                at_least=LEVEL,
                interval=Bootstrap(),
                gates=(_gate(opponent),),
            )
            for opponent in (*TRANSFORMERS, *WIDE)
        ),
        seeds=SEEDS,
        note=f"{_RULE} Positions are learned, rotary, ALiBi (arXiv 2108.12409), Hard-ALiBi (arXiv 2402.01032) or none; "
        "the last two checks are at equal width.",
    ),
    Claim(
        id="published-matches-at-equal-time",
        paper=OURS,
        statement="CausalRN copies as well as Transformers of equal size that train for the same time.",
        checks=tuple(
            Check(
                f"string accuracy, pairwise minus {opponent.title}, equal time",
                lead_at_equal_time(opponent),
                at_least=LEVEL,
                interval=Bootstrap(),
                gates=(_gate(opponent),),
            )
            for opponent in TRANSFORMERS
        ),
        seeds=SEEDS,
        note=f"{_RULE} The time is that of 2,000 steps of CausalRN, and at most 6,000 steps of a Transformer, without "
        "evaluations, on a GPU that runs one training.",
    ),
    Claim(
        id="published-converges-in-fewer-steps",
        paper="ICLR 2025 submission 13780, public reviews",
        statement="CausalRN learns to copy in fewer steps than a Transformer.",
        checks=_faster("steps_to_copy", TRANSFORMERS),
        seeds=SEEDS,
        note=f"{_RULE} {_CENSORED}",
    ),
    Claim(
        id="published-converges-in-less-time",
        paper=OURS,
        statement="CausalRN learns to copy in less time than a Transformer.",
        checks=_faster("seconds_to_copy", TRANSFORMERS),
        seeds=SEEDS,
        note=f"{_RULE} {_CENSORED} Times are without evaluations, on a GPU that runs one training.",
    ),
    Claim(
        id="published-recurrent-networks-copy-less",
        paper="arXiv 2402.01032",
        statement="Networks with a state of fixed size copy fewer strings than CausalRN of equal size.",
        checks=tuple(
            Check(
                f"string accuracy, pairwise minus {opponent.title}",
                _lead(opponent),
                above=0,
                interval=Bootstrap(),
                gates=(_gate(opponent),),
            )
            for opponent in RECURRENT
        ),
        seeds=SEEDS,
        note=_RULE,
    ),
)
