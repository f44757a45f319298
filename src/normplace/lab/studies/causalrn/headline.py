"""Accuracy of copying; the paper's own numbers are not known to us."""

from __future__ import annotations

from normplace.lab.studies.causalrn.claims.conventions import ACCURACY
from normplace.lab.studies.causalrn.measures import FIXED, at_worst_length, copying_accuracy
from normplace.lab.studies.estimates import estimate_text, seeds_text
from normplace.lab.trials.per_seed import Records, config_values
from normplace.lab.trials.study import Headline


def measured(records: Records) -> str | None:
    """String accuracy at the worst length; of the scan at its best length; of a Transformer at both ends."""
    lengths = config_values(records, FIXED, "length")
    pairwise = at_worst_length(copying_accuracy(network="pairwise"))(records)
    scan, transformer = (
        [copying_accuracy(**fields)(length)(records) for length in lengths]
        for fields in ({"network": "scan"}, {"network": "transformer", "size": "published"})
    )
    if not pairwise or not all(scan) or not all(transformer):
        return None
    return (
        f"string accuracy {estimate_text(pairwise, interval=ACCURACY)} at the worst of {len(lengths)} lengths "
        f"({seeds_text(pairwise)}), at most {max(scores.mean() for scores in scan):.2f} without the pair norm; "
        f"Transformer of equal width {transformer[0].mean():.2f} at {lengths[0]} and {transformer[-1].mean():.2f} at "
        f"{lengths[-1]} characters"
    )


HEADLINE = Headline(
    figure=("Copying 300 characters: accuracy during training", "Copying 10 characters: accuracy during training"),
    sentence="A norm of each pair of tokens before the exponential turns a relation network into a memory that copies "
    "strings as a Transformer does.",
    published="No number is known to us: only the abstract was available, which states that CausalRN matches "
    "Transformers on copying",
    measured=measured,
    conditions="The paper's task and initial weights, with 4 blocks of width 128 instead of 12 of width 192 and a "
    "fifth of its training strings; at laptop scale far smaller networks and strings of 6 and 10 characters. At full "
    "scale our Transformers did not learn the longest strings, so the comparison with them is void there.",
)
