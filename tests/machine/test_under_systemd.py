"""The unit of systemd lets kroute do all that it has to."""

import pytest

from tests.lab.vm.kernels import PACKAGED, usable
from tests.machine.whole_machine import run_alone

pytestmark = pytest.mark.machine

WITHIN = 400.0
"""Seconds."""


@pytest.mark.skipif(PACKAGED not in usable(), reason="KROUTE_KERNEL asks for another kernel")
def test_an_agent_lives_its_whole_life_under_the_restrictions_of_its_unit() -> None:
    assert run_alone("under_systemd", WITHIN) == 0
