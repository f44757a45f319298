"""Accuracy of fixed-length copying, by length and during training."""

from __future__ import annotations

from normplace.lab.report.specs import curves
from normplace.lab.studies.causalrn.copying_fixed import PART
from normplace.lab.studies.causalrn.figures.scores import SCORES, accuracy_at_lengths
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES
from normplace.lab.trials.per_seed import Records, config_values, mean, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw accuracy by length, and accuracy during training at the longest length."""
    lengths = config_values(records, PART.name, "length")
    return [_by_length(records, lengths), _during_training(records, lengths[-1])] if lengths else []


def _networks(records: Records) -> dict[str, dict[str, str]]:
    """Configuration fields of the recorded networks by display name."""
    networks = {TITLES[network]: {"network": network, "size": "equal"} for network in NETWORKS}
    networks[f"{TITLES['transformer']}, published size"] = {"network": "transformer", "size": "published"}
    return {name: fields for name, fields in networks.items() if pick(records, PART.name, **fields)}


def _by_length(records: Records, lengths: list[int]) -> Figure:
    return accuracy_at_lengths(
        {
            name: {length: pick(records, PART.name, length=length, **fields) for length in lengths}
            for name, fields in _networks(records).items()
        },
        dict(zip(SCORES, SCORES, strict=True)),
        title="Copying strings of one length: accuracy by length",
        caption="Share of correct strings and characters under teacher forcing, after training on that length; a "
        "string with a misplaced end has no correct character. Mean and range over seeds; equal parameter counts "
        "except for the published size.",
    )


def _during_training(records: Records, length: int) -> Figure:
    """Character accuracy during training; a seed that has stopped keeps its last value."""
    networks, rows = _networks(records), []
    for name, fields in networks.items():
        selected = pick(records, PART.name, length=length, **fields)
        by_seed = [dict(zip(record.series["step"], record.series["character"], strict=True)) for record in selected]
        latest = [0.0] * len(selected)
        for step in sorted({step for course in by_seed for step in course if step is not None}):
            for index, course in enumerate(by_seed):
                if (value := course.get(step)) is not None:
                    latest[index] = value
            rows.append({"network": name, "step": step, "character": mean(latest)})
    return Figure(
        title=f"Copying {length} characters: accuracy during training",
        caption="Character accuracy on new strings, mean over seeds. A seed that stopped because every string was "
        "correct keeps its last value.",
        rows=rows,
        spec=curves(
            x={"field": "step", "title": "steps"},
            y={"field": "character", "title": "character accuracy", "scale": {"domain": [0, 1]}},
            series="network",
            order=list(dict.fromkeys(row["network"] for row in rows)),
        ),
        alt="Character accuracy against training steps, one line for each network.",
    )
