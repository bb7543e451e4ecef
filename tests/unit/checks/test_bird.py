"""`kroute check` says what keeps routers from learning addresses."""

import os
import socket

import pytest

from kroute.checks.bird_checks import check_bird
from kroute.checks.finding import Level
from kroute.kernel.bird import Session
from tests.builders import settings
from tests.fakes.bird import FakeBird

UP = Session("kroute-192.0.2.1", "Established", "13:31:15", "192.0.2.1", 65000)
DOWN = Session("kroute-192.0.2.2", "Active", "13:31:15", "192.0.2.2", 65000, last_error="Received: Bad peer AS")


@pytest.fixture
def bird() -> FakeBird:
    """One that kroute has told something."""
    made = FakeBird("text")
    made.restart()
    return made


async def complaints(bird: FakeBird, **changes: object) -> list[str]:
    found = await check_bird(settings(announce=True, **changes), bird)
    assert all(finding.next_step for finding in found if finding.level is not Level.OK)
    return [finding.message for finding in found if finding.level is Level.WARNING]


async def test_without_the_setting_nothing_is_asked(bird: FakeBird) -> None:
    bird.away = True
    assert await check_bird(settings(), bird) == []


async def test_sessions_that_are_not_up_are_named_with_their_last_errors(bird: FakeBird) -> None:
    bird.known = [UP]
    assert await complaints(bird) == []
    bird.known = [UP, DOWN]
    assert await complaints(bird) == ["the session with 192.0.2.2 is not up (Active): Received: Bad peer AS"]
    bird.known = []
    assert await complaints(bird) == ["BIRD has no peer"]


async def test_a_bird_that_is_away_may_have_lost_its_port_to_another_program(bird: FakeBird) -> None:
    bird.away = True
    port = 20_000 + os.getpid() % 10_000  # one that the kernel gives to no connection, also not once it is free again
    with socket.create_server(("::", port), family=socket.AF_INET6):
        [away, taken] = await complaints(bird, bgp_port_number=port)
    assert "cannot be reached" in away
    assert f"port {port} is taken" in taken
    assert len(await complaints(bird, bgp_port_number=port)) == 1


async def test_a_bird_that_another_program_has_configured_is_not_kroutes(bird: FakeBird) -> None:
    bird.text = "another"
    bird.known = [UP]
    assert await complaints(bird) == ["BIRD has another configuration than kroute has written"]
