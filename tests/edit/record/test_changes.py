"""The printed record of an edit."""

from __future__ import annotations

from normplace.edit.record.changes import Change, Changes


def test_slots_of_any_length_share_a_column():
    sites = (
        Change("swapped", "embedding", "stem.1"),
        Change("swapped", "output", "layers.0.bn"),
        Change("swapped", "output", "layers.1.bn"),
    )
    lines = str(Changes("output", "output", ("x + N(F(x))",), sites)).splitlines()[2:]
    assert [line.split()[-1] for line in lines] == ["stem.1", "layers.*.bn"]  # a single norm keeps its name
    assert lines[0].index("stem") == lines[1].index("layers")
