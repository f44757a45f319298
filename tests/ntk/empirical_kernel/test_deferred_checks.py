"""Deferred checks are reported in order, once, and instead of their consequences."""

from __future__ import annotations

import functools

import pytest
import torch

from normplace.ntk.empirical_kernel.deferred_checks import DeferredChecks

TRUE, FALSE = torch.tensor(True), torch.tensor(False)


def fail(message: str) -> None:
    raise ValueError(message)


def test_the_first_false_condition_is_reported_once():
    checks = DeferredChecks()
    for condition, message in ((TRUE, "none"), (FALSE, "first"), (FALSE, "second")):
        checks.require(condition, functools.partial(fail, message))
    with pytest.raises(ValueError, match="first"):
        checks.settle()
    checks.settle()


def test_the_end_of_the_context_settles():
    with pytest.raises(ValueError, match="late"), DeferredChecks() as checks:
        checks.require(FALSE, functools.partial(fail, "late"))


def test_a_false_condition_replaces_its_consequence():
    with pytest.raises(ValueError, match="cause") as info, DeferredChecks() as checks:
        checks.require(FALSE, functools.partial(fail, "cause"))
        raise KeyError("consequence")
    assert isinstance(info.value.__context__, KeyError)


def test_another_error_stays():
    with pytest.raises(KeyError), DeferredChecks() as checks:
        checks.require(TRUE, functools.partial(fail, "none"))
        raise KeyError("other")


def test_an_interrupt_is_not_delayed():
    with pytest.raises(KeyboardInterrupt), DeferredChecks() as checks:
        checks.require(FALSE, functools.partial(fail, "unread"))
        raise KeyboardInterrupt
