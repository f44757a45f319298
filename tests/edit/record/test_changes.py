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


def test_norms_with_other_readers_have_their_own_line():
    sites = (
        Change("folded", "input", "layers.0.norm", note="into up"),
        Change("folded", "input", "layers.1.norm", note="into router, up"),
        Change("folded", "input", "layers.2.norm", note="into up"),
        Change("added", "output", "layers.0.placed.out", note="measured gain 0.25"),
        Change("added", "output", "layers.1.placed.out", note="measured gain 1e-03"),
    )
    lines = str(Changes("pre", "pre", ("x + F(N(x))",), sites)).splitlines()[2:]
    assert [" ".join(line.split()) for line in lines] == [
        "added 2 x output layers.*.placed.out (measured gain 0.25 … 1e-03)",
        "folded 2 x input layers.*.norm (into up)",
        "folded 1 x input layers.1.norm (into router, up)",
    ]


def test_reasons_that_differ_only_in_the_numbers_of_names_share_a_line():
    refused = (*(f"'layers.{layer}.q' stays, because of 'layers.{layer}'." for layer in range(3)), "'1.x' stays.")
    sites = (Change("folded", "input", "norm"),)
    lines = str(Changes("pre", "pre", ("x + F(N(x))",), sites, refused=refused)).splitlines()[3:]
    assert lines == [
        "  refused 3 x: 'layers.*.q' stays, because of 'layers.*'.",
        "  refused: '1.x' stays.",
    ]


def test_a_record_without_changes_names_the_placement_or_the_slots():
    sites = (Change("kept", "input", "norm"),)
    assert str(Changes("pre", "pre", ("x + F(N(x))",), sites)) == "nothing changed: the placement is pre already"
    unnamed = Changes(None, None, ("x + g F(N(x))",), sites)
    assert str(unnamed) == "nothing changed: the norms are in these slots already"
