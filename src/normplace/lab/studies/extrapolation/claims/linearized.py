"""Claims on networks that follow their own tangent kernel, and stay bounded at every width."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.linearized import PART
from normplace.lab.studies.extrapolation.networks import NAMES
from normplace.lab.studies.extrapolation.published import PAPER
from normplace.lab.studies.extrapolation.wide import COMPARED
from normplace.lab.trials.claims import Check, Claim, sign_and_size
from normplace.lab.trials.per_seed import PerSeed, Records, config_values, measure, metric


@measure
def _at_width(records: Records, part: str, name: str, norm_at: str, place: int) -> PerSeed:
    """A metric at the narrowest (0) or widest (-1) width."""
    widths = config_values(records, part, "width", norm_at=norm_at)
    if len(widths) < 2:
        return PerSeed()
    return metric(part, name, norm_at=norm_at, width=widths[place])(records)


def shrinking(part: str, distance: str) -> tuple[Check, ...]:
    """The distance to a kernel's prediction shrinks from the narrowest to the widest networks."""
    return tuple(
        check
        for norm_at in COMPARED
        for check in sign_and_size(
            f"distance to the prediction, widest over narrowest, {NAMES[norm_at]}",
            _at_width(part, distance, norm_at, -1) / _at_width(part, distance, norm_at, 0),
            no_effect=1,
            at_most=0.5,
        )
    )


def _explodes(place: int) -> Check:
    return Check(
        f"largest |prediction| over largest |target|, {_WIDTHS[place]}, {NAMES['none']}",
        _at_width(PART.name, "reach", "none", place),
        at_least=50,
    )


_WIDTHS = {0: "narrowest", -1: "widest"}

CLAIMS = (
    Claim(
        id="networks-follow-their-own-kernel",
        paper=f"{PAPER}, Section 2, after Lee et al. 2019, arXiv 1902.06720",
        statement="As the width grows, trained networks approach the prediction of their own kernel at initialization.",
        checks=shrinking(PART.name, "own_distance"),
        seeds=5,
        note="RMS distance on three times the range of the data, over the RMS of the targets, after 200 gradient steps "
        "in float64; 8 seeds, widths 64 to 1024. Data, biases and threshold are those of the claim on the "
        "infinite-width kernel.",
    ),
    Claim(
        id="bounded-at-every-width",
        paper=f"{PAPER}, Theorem 3.3",
        statement="A trained network with one LayerNorm stays bounded, from narrow to wide.",
        checks=tuple(
            Check(
                f"largest |prediction| over largest |target|, {_WIDTHS[place]}, {NAMES['first']}",
                _at_width(PART.name, "reach", "first", place),
                at_most=5,
                gates=(_explodes(place),),
            )
            for place in _WIDTHS
        ),
        seeds=5,
        note="Up to a thousand times the range of the data. Void if the network without LayerNorm does not reach fifty "
        "times the largest target there. Thresholds are ours.",
    ),
)
