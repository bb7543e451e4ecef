"""Somebody removes kernel modules under a running agent."""

import pytest

from tests.lab.vm.kernels import PACKAGED, usable
from tests.machine.whole_machine import run_alone

pytestmark = pytest.mark.machine

WITHIN = 1800.0
"""Seconds, which only a machine that hangs takes."""


@pytest.mark.skipif(PACKAGED not in usable(), reason="KROUTE_KERNEL asks for another kernel")
def test_an_agent_puts_back_what_the_removal_of_modules_took_and_says_why_it_cannot() -> None:
    """Of the lab's kernels only Debian's 6.1 has modules."""
    assert run_alone("removed_modules", WITHIN) == 0
