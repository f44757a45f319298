from __future__ import annotations

import gzip
import hashlib
import math
import sys
import types

import numpy as np
import pytest
import torch

from normplace.errors import UsageError
from normplace.lab.tasks.sequences.text import load_text
from normplace.lab.train import corpus as reading
from normplace.lab.train import tokenizer as tokenizer_module
from normplace.lab.train.corpus import load_corpus


def test_the_hash_of_one_file_is_that_of_the_file(tmp_path):
    content = b"the quick brown fox jumps over the lazy dog\n" * 10
    (tmp_path / "fox.txt").write_bytes(content)
    (tmp_path / "fox.txt.gz").write_bytes(gzip.compress(content))
    corpora = [load_corpus([str(tmp_path / name)]) for name in ("fox.txt", "fox.txt.gz")]
    for corpus in corpora:
        assert corpus.train.tobytes() + corpus.held_out.tobytes() == content
        assert len(corpus.train) == 9 * len(corpus.held_out)
        assert corpus.sha256 == hashlib.sha256(content).hexdigest()
        assert (corpus.vocab_size, corpus.bytes_per_token) == (256, 1.0)


def test_a_folder_is_read_in_order_with_a_tenth_of_each_file_held_out(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.md").write_bytes(b"c" * 20)
    (tmp_path / "a.txt").write_bytes(b"a" * 10)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"hidden")
    corpus = load_corpus([str(tmp_path)])
    assert corpus.train.tobytes() == b"a" * 9 + b"c" * 18
    assert corpus.held_out.tobytes() == b"acc"


def test_the_default_needs_no_file_and_no_network():
    corpus, library = load_corpus(), load_text("python", 1)
    assert np.array_equal(corpus.train, library.train.numpy())
    assert np.array_equal(corpus.held_out, library.valid.numpy())


def test_a_hugging_face_tokenizer_file(tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    from tokenizers import models, pre_tokenizers, trainers

    text = "".join(f"one and two are {n}\n" for n in range(200)) + "ünïcode\n"
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text(text)
    monkeypatch.setattr(tokenizer_module, "PIECE", 100)  # so that there are many
    corpus = load_corpus([str(tmp_path / "text")], str(tmp_path))
    cut = len(text.encode()) * 9 // 10
    parts = text.encode()[:cut].decode(), text.encode()[cut:].decode()
    lines = [part.splitlines(keepends=True) for part in parts]
    pieces = [[token for line in part for token in tokenizer.encode(line).ids] for part in lines]
    assert [corpus.train.tolist(), corpus.held_out.tolist()] == pieces
    assert corpus.vocab_size == tokenizer.get_vocab_size()
    held_out = len(parts[1].encode())
    assert corpus.bits_per_byte(2.0) == pytest.approx(2.0 * len(pieces[1]) / held_out / math.log(2))


def test_a_hub_dataset(monkeypatch):
    requests = []

    def load_dataset(name, config, split):
        requests.append((name, config, split))
        if name == "absent":
            raise ConnectionError("no network\nat all")
        return {"text": ["one line", "another line"]}

    module = types.ModuleType("datasets")
    module.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    corpus = load_corpus(["hf:maker/set:small"])
    assert requests == [("maker/set", "small", "train")]
    assert corpus.train.tobytes() + corpus.held_out.tobytes() == b"one line\nanother line"
    with pytest.raises(UsageError, match=r"cannot load the dataset 'absent' \(no network\)"):
        load_corpus(["hf:absent"])


@pytest.mark.parametrize("kind", ["byte-level", "metaspace", "lowercase"])
def test_the_bytes_of_tokens_add_up_to_the_text(kind, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    text = "".join(f"One and two are {n}, Ünïcode\n" for n in range(200))
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]", byte_fallback=kind == "metaspace"))
    if kind == "metaspace":
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        special = ["[UNK]", *(f"<0x{byte:02X}>" for byte in range(256))]
    else:
        tokenizer.pre_tokenizer, special = pre_tokenizers.ByteLevel(add_prefix_space=False), ["[UNK]"]
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.normalizer = normalizers.Lowercase() if kind == "lowercase" else None
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, special_tokens=special)
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text(text)
    corpus = load_corpus([str(tmp_path / "text")], str(tmp_path / "tokenizer.json"))
    whole = torch.from_numpy(corpus.held_out.astype(np.int64))
    assert corpus.bits_per_byte(1.0, whole) == pytest.approx(corpus.bits_per_byte(1.0), rel=1e-12)
    parts = [1 / corpus.bits_per_byte(1.0, part) * len(part) for part in whole.split(50)]
    assert sum(parts) * math.log2(math.e) == pytest.approx(len(corpus.held_out) * corpus.bytes_per_token, rel=1e-12)
    per_part = [len(tokenizer.decode(part.tolist()).encode()) for part in whole.split(50)]
    # Decoding drops a space at the start of a part and cuts characters at its ends, of up to four bytes.
    measured = [part * math.log2(math.e) for part in parts]
    assert measured == pytest.approx(per_part, abs=8)


def test_missing_text_and_tokenizers_are_errors(tmp_path):
    with pytest.raises(UsageError, match=r"there is no text 'nowhere\.txt': give files"):
        load_corpus(["nowhere.txt"])
    with pytest.raises(UsageError, match="there is no text in"):
        load_corpus([str(tmp_path)])
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    (tmp_path / "text").write_text("some text of some length")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot load the tokenizer"):
        load_corpus([str(tmp_path / "text")], str(tmp_path))


def test_a_missing_package_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "text").write_text("some text of some length")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"'datasets': pip install 'normplace\[train\]'"):
        load_corpus(["hf:any"])
    with pytest.raises(UsageError, match=r"'tokenizers': pip install 'normplace\[train\]'"):
        load_corpus([str(tmp_path / "text")], "gpt2")


def test_a_single_source_needs_no_list(tmp_path):
    (tmp_path / "text").write_text("one and two\n" * 20)
    several = load_corpus([str(tmp_path / "text")])
    for source in (str(tmp_path / "text"), tmp_path / "text", (tmp_path / "text",)):
        assert load_corpus(source).sha256 == several.sha256


@pytest.mark.parametrize("sources", [None, 3, b"text", {"text": 1}, [3], [None], [], [""], ["  "], ["a\0b"], [b"text"]])
def test_invalid_sources_are_errors(sources):
    with pytest.raises(UsageError, match=r"is not a text source|takes a file|no text to read") as caught:
        load_corpus(sources)
    assert "\n" not in str(caught.value)


def test_unreadable_text_is_an_error(tmp_path):
    (tmp_path / "binary").write_bytes(b"text\0" * 30)
    (tmp_path / "empty").touch()
    (tmp_path / "zlib.gz").write_bytes(gzip.compress(b"text" * 1000)[:12] + b"\xff" * 40)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"text" * 1000)[:20])
    (tmp_path / "plain.gz").write_bytes(b"text" * 30)
    cases = {"binary": "is binary", "empty": "there is no text in", "zlib.gz": "cannot read", "cut.gz": "cannot read"}
    for name, message in (cases | {"plain.gz": "cannot read", "x" * 300: "cannot read"}).items():
        with pytest.raises(UsageError, match=message) as caught:
            load_corpus(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="there is no text"):
        load_corpus("/dev/zero")


def test_more_text_than_memory_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "text").write_bytes(b"text" * 1000)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(b"a" * 10_000_000)))
    monkeypatch.setattr(reading, "available_memory", lambda: 10_000)
    with pytest.raises(UsageError, match=r"text has 4\.0 kB, and reading it takes 4 times .* 10\.0 kB are available"):
        load_corpus(tmp_path / "text")
    monkeypatch.setattr(reading, "available_memory", lambda: 1_000_000)
    with pytest.raises(UsageError, match="decompresses to more than 250 kB"):
        load_corpus(tmp_path / "bomb.gz")


def test_a_folder_with_too_many_files_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_FILES", 2)
    for name in "abc":
        (tmp_path / name).write_text("text")
    with pytest.raises(UsageError, match="more than 2 files"):
        load_corpus(tmp_path)
