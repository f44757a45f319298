"""Strings of varying length: every packed sequence is decoded and checked."""

from __future__ import annotations

import pytest
import torch

from normplace import UsageError
from normplace.lab.tasks.sequences import IGNORE, StringTask, decode, encode


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def occurrences(gram, string):
    """How often an n-gram occurs in a string, overlaps included."""
    return sum(string.startswith(gram, place) for place in range(len(string)))


def has_candidate(task, string):
    """Whether an n-gram that is followed by an answer occurs once."""
    last = len(string) - task.ngram - max(task.answer, 1)
    return any(occurrences(string[place : place + task.ngram], string) == 1 for place in range(last + 1))


def answer(task, example):
    """The expected answer of an example, from its text, and whether it is asked for."""
    if task.task == "copy":
        return example[0], True
    gram, string = (example[0], example[1]) if task.task == "prefix" else (example[1][: task.ngram], example[0])
    start = string.index(gram) + task.ngram
    is_asked = not task.unique or has_candidate(task, string)
    assert not (is_asked and task.unique) or occurrences(gram, string) == 1
    return string[start : start + task.answer] if task.answer else string[start:], is_asked


def check_example(task, text, asked):
    assert text[0] == "$"
    assert text[-1] == "."
    parts = text[1:-1].split("|")
    wanted, is_asked = answer(task, parts)
    tail = parts[-1][task.ngram :] if task.task == "suffix" else parts[-1]
    assert tail == wanted
    assert asked == ("*" * (len(text) - len(wanted) - 1) + wanted + "." if is_asked else "*" * len(text))
    string = parts[1] if task.task == "prefix" else parts[0]
    assert set(string) <= set("abcdefgh")
    return len(string)


@pytest.mark.parametrize("name", ["copy", "prefix", "suffix"])
@pytest.mark.parametrize("options", [{}, {"unique": False}, {"answer": 0}])
def test_packed_sequences_have_whole_examples_and_a_truncated_one(name, options):
    task = StringTask(
        name, **{"shortest": 5, "longest": 9, "context": 70, "alphabet": 8, "ngram": 2, "answer": 3} | options
    )
    batch = task.draw(50, generator())
    assert batch.inputs.shape == batch.targets.shape == (50, 70)
    lengths = set()
    for row, targets in zip(batch.inputs, batch.targets, strict=True):
        text = decode(row)
        asked = "*" + decode(29 if t == IGNORE else t for t in targets)
        text += asked[-1] if asked[-1] != "*" else ""
        *whole, rest = text.split(".")
        place = 0
        for example in whole:
            end = place + len(example) + 1
            lengths.add(check_example(task, example + ".", asked[place:end]))
            place = end
        assert set(asked[place : place + len(rest)]) <= {"*"}
    assert lengths == {5, 6, 7, 8, 9}


@pytest.mark.parametrize("name", ["copy", "prefix", "suffix"])
def test_an_evaluation_batch_has_one_example_of_the_requested_length(name):
    task = StringTask(name, shortest=5, longest=9, context=70, alphabet=8, ngram=2, answer=3)
    batch = task.evaluation_batch(20, 31, generator())
    for row, targets in zip(batch.inputs, batch.targets, strict=True):
        text = decode(row) + decode(targets[-1:])
        asked = "*" + decode(29 if t == IGNORE else t for t in targets)
        assert check_example(task, text, asked) == 31
    right = torch.where(batch.targets == IGNORE, 0, batch.targets)
    assert task.score(right, batch).string.tolist() == [1] * 20
    right[0, -1] = 0  # the end token does not count
    right[1, -2] = (right[1, -2] + 1) % 26
    assert task.score(right, batch).string.tolist() == [1, 0] + [1] * 18


def test_an_evaluation_string_without_a_unique_ngram_is_drawn_again():
    task = StringTask("suffix", shortest=4, longest=4, context=30, alphabet=4, ngram=1, answer=1)
    batch = task.evaluation_batch(200, 4, generator())
    assert (batch.targets != IGNORE).any(-1).all()
    assert not (task.draw(200, generator()).targets != IGNORE).any(-1).all()  # training has no loss for them


def test_decode_inverts_encode():
    assert decode(encode("$cab|cab.*")) == "$cab|cab.*"


MISTAKES = [
    (lambda: StringTask("copi"), "did you mean 'copy'"),
    (lambda: StringTask(longest=200), "takes 403 tokens, but the context is 220"),
    (lambda: StringTask(shortest=9, longest=8), "shortest <= longest"),
    (lambda: StringTask("prefix", shortest=3), "4 <= shortest"),
    (lambda: StringTask(alphabet=27), "alphabet must be at least 1 and at most 26"),
    (lambda: StringTask("prefix", ngram=14, shortest=18), "1 to 13 characters"),
    (lambda: StringTask("prefix", alphabet=1).evaluation_batch(1, 9, generator()), "occurs exactly once"),
    (lambda: StringTask("suffix").evaluation_batch(1, 3, generator()), "at least 4 characters"),
    (lambda: encode("Cab"), "'C' is not a character"),
]


@pytest.mark.parametrize(("call", "reason"), MISTAKES)
def test_invalid_arguments_raise_a_usage_error(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()
