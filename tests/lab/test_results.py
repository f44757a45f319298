"""Result files: torn lines, foreign files, two writers."""

from __future__ import annotations

import dataclasses
import gzip
import json

import pytest

from normplace import UsageError
from normplace.lab.results import FORMAT, Line, ResultFile, finite, latest, read_lines


def line(number: int, status: str = "ok", **more) -> Line:
    config = {"seed": number}
    return Line("sample", "lines", "smoke", f"hash{number}", config, number, status, {"value": number / 3}, **more)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "deep" / "results.jsonl"
    with ResultFile(file) as results:
        for number in range(3):
            results.append(line(number))
    return file


def test_lines_come_back_equal(path):
    assert read_lines(path) == [line(number) for number in range(3)]


def test_a_file_cut_at_any_byte_recovers_every_whole_line(path):
    whole = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = sum(end - 1 <= cut for end in ends)  # a line that only lacks its line end is complete
        assert len(read_lines(path)) == complete
        with ResultFile(path) as results:
            results.append(line(9))
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        assert [entry["hash"] for entry in lines] == [f"hash{n}" for n in range(complete)] + ["hash9"]


def test_a_torn_fragment_is_kept_aside(path):
    path.write_bytes(path.read_bytes() + b'{"study": "sam')
    with ResultFile(path) as results:
        assert results.recovered.read_bytes() == b'{"study": "sam\n'
        assert len(results.lines) == 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("hello\nworld\n", r"results.jsonl:1 is not a result line"),
        ("[1]\n", "a file that a normplace study wrote"),
        (json.dumps({"format": FORMAT + 1}) + "\n", f"format {FORMAT + 1}, this version reads format {FORMAT}"),
        (json.dumps({"format": FORMAT, "study": "x"}) + "\n", "lacks 'config'"),
    ],
)
def test_a_foreign_file_is_refused_and_left_alone(path, content, reason):
    path.write_text(content)
    with pytest.raises(UsageError, match=reason):
        ResultFile(path)
    assert path.read_text() == content


def test_a_torn_line_in_the_middle_is_no_recovery_case(path):
    good = path.read_text().splitlines()
    path.write_text("\n".join([good[0], good[1][:20], good[2]]) + "\n")
    with pytest.raises(UsageError, match=r":2 is not a result line"):
        ResultFile(path)


def test_one_writer_at_a_time(path):
    with ResultFile(path), pytest.raises(UsageError, match="another run is writing"):
        ResultFile(path)
    ResultFile(path).close()


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="choose another --out"):
        ResultFile(tmp_path / "file" / "results.jsonl")


def test_a_success_outranks_failures_whatever_their_order():
    ok, bad = line(1), line(1, "failed", error="x")
    assert latest([ok, bad]) == latest([bad, ok]) == {"hash1": ok}


def test_numbers_json_cannot_write_become_none():
    assert finite(float("nan")) is None
    assert finite(float("inf")) is None
    assert finite(1 / 3) == 0.3333333


def test_compressed_lines_are_read_and_a_broken_archive_has_a_sentence(tmp_path):
    text = json.dumps(dataclasses.asdict(line(0))) + "\n"
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_lines(packed) == read_lines(plain)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(UsageError, match="is not a whole gzip file"):
        read_lines(packed)
    packed.write_text(text)
    with pytest.raises(UsageError, match="is not a whole gzip file"):
        read_lines(packed)
