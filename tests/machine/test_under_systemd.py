"""The Debian package installs, upgrades and removes kroute, and its unit lets kroute do all that it has to."""

from dataclasses import replace
from pathlib import Path

import pytest

from release import Source, debian
from tests.lab.container import image, package
from tests.lab.vm.kernels import PACKAGED, usable
from tests.machine.whole_machine import run_alone

pytestmark = pytest.mark.machine

WITHIN = 1800.0
"""Seconds, which only a machine that hangs takes."""


@pytest.mark.skipif(PACKAGED not in usable(), reason="KROUTE_KERNEL asks for another kernel")
def test_an_agent_lives_its_whole_life_as_a_debian_package_under_the_restrictions_of_its_unit(tmp_path: Path) -> None:
    this = Source.here()
    following = debian.build(replace(this, version=f"{this.version}+next"), tmp_path, image(), level=1)
    assert run_alone("under_systemd", WITHIN, PACKAGES=f"{package()}:{following}") == 0
