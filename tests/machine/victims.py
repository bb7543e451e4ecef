"""Tests of which one ends its machine. Only test_lost_machine.py runs them: pytest does not collect this name."""

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
