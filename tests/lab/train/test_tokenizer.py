from __future__ import annotations

import json

import numpy as np
import pytest

from normplace.errors import UsageError
from normplace.lab.train import tokenizer as module
from normplace.lab.train.tokenizer import (
    HUB_NAME,
    ByteTokenizer,
    StreamDecoder,
    learn_tokenizer,
    load_tokenizer,
    save_tokenizer,
    tokenizer_identity,
)

TEXT = "naïve café 日本 😀\nthe end\n"


def test_a_tokenizer_is_learned_from_a_text():
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    content = (TEXT * 50).encode()
    tokenizer = learn_tokenizer(content, 270)
    tokens = tokenizer.encode(content)
    assert tokenizer.vocab_size == 270 > tokens.max()
    assert len(tokens) < 0.8 * len(content)
    assert tokenizer.decode(tokens.tolist()) == TEXT * 50
    assert learn_tokenizer(content, 270).to_json() == tokenizer.to_json()
    for vocab_size, reason in ((100, "at least 256"), (9000, "give more text")):
        with pytest.raises(UsageError, match=reason):
            learn_tokenizer(content, vocab_size)


@pytest.fixture
def learned(tmp_path):
    """A byte-level BPE that has merged some characters of several bytes, but not all."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT + "the café\n" * 9], trainer)
    tokenizer.save(str(tmp_path / "learned.json"))
    return str(tmp_path / "learned.json")


def test_a_tokenizer_with_a_largest_length_reads_the_whole_text(tmp_path, learned):
    expected = load_tokenizer(learned).encode(TEXT.encode())
    content = json.loads((tmp_path / "learned.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {"strategy": {"Fixed": 99}, "direction": "Right", "pad_to_multiple_of": None} | {
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    (tmp_path / "cut.json").write_text(json.dumps(content))
    assert np.array_equal(load_tokenizer(str(tmp_path / "cut.json")).encode(TEXT.encode()), expected)


def test_the_vocabulary_covers_indices_with_gaps():
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    gaps = module.HuggingFaceTokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 9}, "b")))
    assert gaps.vocab_size == len(gaps.byte_lengths()) == 10 > gaps.encode(b"b").max() == 9


def test_byte_tokens_have_an_equal_tokenizer_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    save_tokenizer(ByteTokenizer(), tmp_path)
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert other.get_vocab_size() == 256
    assert other.encode(TEXT).ids == list(TEXT.encode())
    assert other.decode(list(TEXT.encode())) == TEXT
    every_byte = [byte for code in range(1, 0x250) for byte in chr(code).encode()]
    assert other.decode(every_byte) == bytes(every_byte).decode()


@pytest.mark.parametrize("name", ["absent.json", "./absent", "/absent", "a/b/c", "", "empty"])
def test_a_path_is_not_looked_up_on_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"there is no tokenizer '.*': use 'bytes', a tokenizer.json, the folder"):
        load_tokenizer(name)


@pytest.mark.parametrize("name", ["gpt2", "google/gemma-2-2b", "HuggingFaceTB/SmolLM2-1.7B"])
def test_names_of_the_hub(name):
    assert HUB_NAME.fullmatch(name)


def test_a_saved_byte_tokenizer_needs_no_package(tmp_path, monkeypatch):
    save_tokenizer(ByteTokenizer(), tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert isinstance(load_tokenizer(str(tmp_path)), ByteTokenizer)
    changed = json.loads((tmp_path / "tokenizer.json").read_text())
    changed["model"]["vocab"]["a"], changed["model"]["vocab"]["b"] = ord("b"), ord("a")
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed, indent=1, ensure_ascii=False))
    with pytest.raises(UsageError, match="needs 'tokenizers'"):
        load_tokenizer(str(tmp_path))


def test_a_learned_tokenizer_is_saved_with_equal_tokens(tmp_path, learned):
    tokenizer = load_tokenizer(learned)
    save_tokenizer(tokenizer, tmp_path / "saved")
    again = load_tokenizer(str(tmp_path / "saved"))
    assert np.array_equal(again.encode(TEXT.encode()), tokenizer.encode(TEXT.encode()))
    assert again.decode(again.encode(TEXT.encode()).tolist()) == TEXT
    assert again.vocab_size == tokenizer.vocab_size
    assert len(again.encode(b"")) == 0


@pytest.mark.parametrize("kind", ["bytes", "learned"])
def test_streamed_text_is_the_whole_text(kind, learned):
    tokenizer = load_tokenizer("bytes" if kind == "bytes" else learned)
    decoder = StreamDecoder(tokenizer)
    parts = [decoder.add(token) for token in tokenizer.encode(TEXT.encode()).tolist()]
    assert "".join(parts) + decoder.finish() == TEXT
    assert "" in parts  # characters of several tokens
    assert not any(module.REPLACEMENT in part for part in parts)
    cut = StreamDecoder(tokenizer)
    shown = "".join(cut.add(token) for token in tokenizer.encode("café 😀".encode()).tolist()[:-1])
    assert shown == "café "
    assert shown + cut.finish() == "café " + module.REPLACEMENT


def test_the_identity_follows_the_content_of_the_file(learned, tmp_path):
    before = tokenizer_identity(learned)
    (tmp_path / "learned.json").write_text("{}")
    assert tokenizer_identity(learned) != before
    assert tokenizer_identity("bytes") == "bytes"


def test_a_line_longer_than_a_piece_is_split(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 4)
    assert module._pieces("ab\ncdefghij\nk") == ["ab\n", "cdef", "ghij", "\nk"]
