"""Tests of which one ends its machine. Run by test_lost_machine.py only: the name keeps them out of every other run."""

import pytest

from tests.machine.panic import panic

pytestmark = pytest.mark.lab


def test_that_comes_before() -> None:
    assert True


def test_in_which_the_kernel_panics() -> None:
    panic()


def test_that_comes_after() -> None:
    assert True


def test_that_comes_last() -> None:
    assert True
