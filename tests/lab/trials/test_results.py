"""Result files: incomplete lines, other files, two writers."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import random

import pytest

from normplace import UsageError
from normplace.lab.trials.record import parse_line, trial_hash
from normplace.lab.trials.results import (
    FORMAT,
    Damage,
    LatestRecords,
    ResultFile,
    TrialRecord,
    finite,
    read_records,
    scan,
)


def sample_record(number: int, status: str = "ok", **more) -> TrialRecord:
    config = {"seed": number}
    return TrialRecord(
        "sample", "lines", "smoke", f"hash{number}", config, number, status, {"value": number / 3}, **more
    )


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "deep" / "results.jsonl"
    with ResultFile(file) as results:
        for number in range(3):
            results.append(sample_record(number))
    return file


def test_records_round_trip(path):
    assert read_records(path) == [sample_record(number) for number in range(3)]


def test_a_file_cut_at_any_byte_keeps_every_complete_line(path):
    whole = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = sum(end - 1 <= cut for end in ends)  # a line that only lacks its line end is complete
        assert len(read_records(path)) == complete
        with ResultFile(path) as results:
            results.append(sample_record(9))
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        assert [entry["hash"] for entry in lines] == [f"hash{n}" for n in range(complete)] + ["hash9"]


def test_an_incomplete_line_is_moved_to_another_file(path):
    path.write_bytes(path.read_bytes() + b'{"study": "sam')
    with ResultFile(path) as results:
        assert results.recovered.read_bytes() == b'{"study": "sam\n'
        assert len(results.records) == 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("hello\nworld\n", r"results.jsonl:1 is not a result line"),
        ("[1]\n", "a file that this version of normplace wrote"),
        (json.dumps({"format": FORMAT + 1}) + "\n", f"format {FORMAT + 1}, this version reads format {FORMAT}"),
        (json.dumps({"format": FORMAT, "study": "x"}) + "\n", "lacks 'config'"),
    ],
)
def test_a_file_without_results_is_rejected_and_not_changed(path, content, reason):
    path.write_text(content)
    with pytest.raises(UsageError, match=reason):
        ResultFile(path)
    assert path.read_text() == content


def changed(text: str, **fields) -> bytes:
    """A line as written before there were checksums, with other fields."""
    data = {key: value for key, value in json.loads(text).items() if key != "crc32"}
    data["hash"] = trial_hash(data["study"], data["part"], data["config"])
    return json.dumps(data | fields).encode()


DAMAGES = {
    "a torn line in the middle": (lambda text: text[:20].encode(), "is not a result line"),
    "a byte that is not UTF-8": (lambda text: text.encode()[:40] + b"\xff" + text.encode()[41:], "match its checksum"),
    "a changed digit": (lambda text: text.replace("0.33", "0.34").encode(), "does not match its checksum"),
    "binary": (lambda text: bytes(range(10)) + bytes(range(11, 256)), "is not a result line"),
    "deep nesting": (lambda text: b"[" * 100_000, "nested too deeply"),
    "half a surrogate pair": (lambda text: changed(text, error="\ud800"), "is not a result line"),
    "not a number": (lambda text: changed(text, metrics={"value": math.nan}), "is not a result line"),
    "infinity": (lambda text: changed(text, metrics={"v": 1}).replace(b'"v": 1', b'"v": 1e999'), "not a finite"),
    "a huge whole number": (lambda text: changed(text, metrics={"v": 10**400}), "not a finite number"),
    "a longer whole number": (lambda text: b'{"format": ' + b"1" * 10_000 + b"}", "is not a result line"),
    "metrics as a list": (lambda text: changed(text, metrics=[1]), "wrong 'metrics'"),
    "a metric as text": (lambda text: changed(text, metrics={"value": "high"}), "not a finite number"),
    "a series as text": (lambda text: changed(text, series={"x": "abc"}), "not a list of finite numbers"),
    "a seed as text": (lambda text: changed(text, seed="0"), "wrong 'seed'"),
    "another seed": (lambda text: changed(text, seed=7), "does not match its hash"),
    "another configuration": (lambda text: changed(text, config={"seed": 5}, seed=5), "does not match its hash"),
    "an unknown status": (lambda text: changed(text, status="fine"), "wrong 'status'"),
    "an unknown scale": (lambda text: changed(text, scale="x"), "unknown 'scale'"),
    "another format": (lambda text: changed(text, format=2), "has results of format 2"),
    "a format that is a list": (lambda text: changed(text, format=[1]), "has results of format"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_line_is_numbered_and_moved(path, name):
    damage, reason = DAMAGES[name]
    good = path.read_bytes().splitlines(keepends=True)
    damaged = damage(good[1].decode().rstrip()) + b"\n"
    path.write_bytes(good[0] + damaged + good[2])
    entries = list(scan(path))
    assert [type(entry) for entry in entries] == [TrialRecord, Damage, TrialRecord]
    assert entries[1].number == 2
    assert reason in entries[1].reason
    with pytest.raises(UsageError, match=r"results.jsonl:2 "):
        read_records(path)
    with ResultFile(path) as results:
        assert results.recovered.read_bytes() == damaged
        assert len(results.records) == 2
        with pytest.raises(UsageError, match="another run is writing"):
            ResultFile(path)
        results.append(sample_record(9))
    assert path.read_bytes() == good[0] + good[2] + sample_record(9).to_json().encode() + b"\n"


def test_any_changed_byte_is_detected(path):
    (first, *_) = path.read_bytes().splitlines()
    unchanged = 0
    for index in range(len(first)):
        for bit in (0, 6):
            damaged = bytearray(first)
            damaged[index] ^= 1 << bit
            try:
                parse_line(bytes(damaged))
            except UsageError:
                continue
            unchanged += 1
    assert unchanged == 0


def test_lines_without_a_checksum_are_read(path):
    path.write_bytes(b"".join(changed(text) + b"\n" for text in path.read_text().splitlines()))
    assert [record.metrics for record in read_records(path)] == [{"value": number / 3} for number in range(3)]


def test_a_link_to_a_damaged_file_stays_a_link(path, tmp_path):
    path.write_bytes(path.read_bytes() + b"{}\n")
    (tmp_path / "link.jsonl").symlink_to(path)
    with ResultFile(tmp_path / "link.jsonl"):
        pass
    assert (tmp_path / "link.jsonl").is_symlink()
    assert len(read_records(path)) == 3


def test_only_records_of_wanted_trials_are_kept(path):
    with ResultFile(path, wanted=lambda record: record.hash == "hash1") as results:
        assert [record.hash for record in results.records] == ["hash1"]


def test_unneeded_lines_are_not_parsed_but_damage_is_detected(path, monkeypatch):
    path.write_bytes(path.read_bytes() + path.read_bytes().replace(b"0.33", b"0.34"))
    parsed = []
    monkeypatch.setattr("normplace.lab.trials.results.parse_line", lambda raw: parsed.append(raw) or parse_line(raw))
    entries = list(scan(path, lambda key: key == "hash2"))
    assert [type(entry) for entry in entries] == [TrialRecord, Damage, TrialRecord]
    assert (len(parsed), entries[1].number) == (3, 5)


def test_a_full_disk_leaves_the_file_unchanged(path, monkeypatch):
    before = path.read_bytes()
    write = os.write

    def full(file, data):
        if len(data) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[: len(data) - 50])

    with ResultFile(path) as results:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(UsageError, match="No space left on device; free space and run the same command to resume"):
            results.append(sample_record(9))
    assert path.read_bytes() == before


def test_a_pipe_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UsageError, match="not a regular file"):
        ResultFile(tmp_path / "pipe.jsonl")
    with pytest.raises(UsageError, match="not a regular file"):
        read_records(tmp_path / "pipe.jsonl")


def test_a_huge_line_and_a_gzip_bomb_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr("normplace.lab.trials.results.LONGEST", 1000)
    monkeypatch.setattr("normplace.lab.trials.results.UNPACKED", 10_000)
    (tmp_path / "long.jsonl").write_bytes(b"x" * 2000)
    with pytest.raises(UsageError, match="is longer than"):
        read_records(tmp_path / "long.jsonl")
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzip.compress(b"\n" * 20_000))
    with pytest.raises(UsageError, match="expands to more than"):
        read_records(tmp_path / "bomb.jsonl.gz")


def test_one_writer_at_a_time(path):
    with ResultFile(path), pytest.raises(UsageError, match="another run is writing"):
        ResultFile(path)
    ResultFile(path).close()


def test_damaged_lines_are_moved_where_open_files_cannot_be_renamed(path, monkeypatch):
    """Windows renames a file only after every process has closed it."""
    monkeypatch.setattr("normplace.lab.trials.results.RENAMES_OPEN_FILES", False)
    good = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(good[0] + b"damaged\n" + good[2])
    with ResultFile(path) as results:
        with pytest.raises(UsageError, match="another run is writing"):
            ResultFile(path)
        results.append(sample_record(9))
    assert path.read_bytes() == good[0] + good[2] + sample_record(9).to_json().encode() + b"\n"
    assert sorted(file.name for file in path.parent.iterdir()) == ["results.damaged", "results.jsonl"]


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="choose another --out"):
        ResultFile(tmp_path / "file" / "results.jsonl")


def test_a_success_replaces_failures_in_any_order():
    ok, bad = sample_record(1), sample_record(1, "failed", error="x")
    for order in ([ok, bad], [bad, ok]):
        latest = LatestRecords()
        for record in order:
            latest.add(record)
        assert latest == {"hash1": ok}


def test_numbers_that_are_not_finite_become_none():
    assert finite(float("nan")) is None
    assert finite(float("inf")) is None
    assert finite(1 / 3) == 0.3333333


def test_gzip_files_are_read_and_a_truncated_one_is_rejected(tmp_path):
    text = sample_record(0).to_json() + "\n"
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_records(packed) == read_records(plain)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(UsageError, match="is not a whole gzip file"):
        read_records(packed)
    packed.write_text(text)
    with pytest.raises(UsageError, match="is not a whole gzip file"):
        read_records(packed)


def test_random_damage_never_loses_an_intact_line(tmp_path):
    chance = random.Random(0)
    whole = [sample_record(number).to_json().encode() + b"\n" for number in range(4)]
    path = tmp_path / "results.jsonl"
    for _ in range(300):
        lines = [bytearray(text) for text in whole]
        for _ in range(chance.choice([1, 3])):
            damaged = chance.choice(lines)
            place = chance.randrange(len(damaged) + 1)
            damaged[place : place + chance.choice([0, 1, 30])] = chance.choice([b"", b"\xff", b"\0", b"\n", b"{", b"9"])
        content = b"".join(lines)
        path.write_bytes(content)
        intact = [text for text in whole if text.strip() in content.split(b"\n")]
        usable = [entry.hash for entry in scan(path) if isinstance(entry, TrialRecord)]
        assert {parse_line(text.strip()).hash for text in intact} <= set(usable)
        try:
            with ResultFile(path) as results:
                recovered = results.recovered
        except UsageError:
            assert path.read_bytes() == content
            continue
        kept = path.read_bytes()
        assert all(text.strip() in kept.split(b"\n") for text in intact)
        aside = recovered.read_bytes() if recovered else b""
        assert all(piece.strip() in kept + aside for piece in content.split(b"\n"))
