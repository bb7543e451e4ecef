"""What the tests of the API's watchers follow a reflector with."""

import pytest

from tests.unit.watching import Follower, Pauses


@pytest.fixture
def follower() -> Follower:
    return Follower()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()
