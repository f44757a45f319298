"""The user's results against those that come with the package, check by check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normplace.lab.trials.claims import Judgement, Measurement


@dataclass(frozen=True)
class ComparedCheck:
    """One check in both results.

    Args:
        yours: Measured by the user.
        committed: Measured in the results of the package.
    """

    yours: Measurement
    committed: Measurement

    @property
    def overlap(self) -> bool | None:
        """Whether the 95% confidence intervals overlap; None if one of the results has no interval."""
        both = (self.yours, self.committed)
        if any(estimate.n < estimate.kind.least for estimate in both):
            return None
        return self.yours.low <= self.committed.high and self.committed.low <= self.yours.high


@dataclass(frozen=True)
class ComparedClaim:
    """One claim in both results.

    Args:
        anchor: Id of the claim in the page.
        yours: The user's verdict.
        committed: The verdict of the package's results.
        checks: The checks that both measured.
    """

    anchor: str
    yours: Judgement
    committed: Judgement
    checks: tuple[ComparedCheck, ...]

    @property
    def agree(self) -> bool:
        """Whether both verdicts are the same."""
        return self.yours.verdict is self.committed.verdict


@dataclass(frozen=True)
class Comparison:
    """Two results of one study.

    Args:
        yours: Scale of the user's run.
        committed: Scale of the package's run.
        claims: The claims that both measured.
    """

    yours: str
    committed: str
    claims: tuple[ComparedClaim, ...]

    @property
    def agreeing(self) -> int:
        """Number of claims with the same verdict."""
        return sum(claim.agree for claim in self.claims)

    @property
    def overlaps(self) -> list[bool]:
        """Whether the intervals overlap, for each check with two intervals."""
        return [check.overlap for claim in self.claims for check in claim.checks if check.overlap is not None]


Run = tuple[str, Sequence[Judgement]]


def compare(yours: Run, committed: Run, anchors: Sequence[str]) -> Comparison:
    """Compare the claims and checks that both runs measured.

    Args:
        yours: Scale and judgements of the user's run, one per claim of the study.
        committed: The same of the package's run.
        anchors: Ids of the claims in the page.
    """
    claims = []
    for anchor, mine, other in zip(anchors, yours[1], committed[1], strict=True):
        pairs = zip(mine.measurements, other.measurements, strict=True)
        checks = tuple(ComparedCheck(a, b) for a, b in pairs if a.n and b.n)
        if checks:
            claims.append(ComparedClaim(anchor, mine, other, checks))
    return Comparison(yours[0], committed[0], tuple(claims))
