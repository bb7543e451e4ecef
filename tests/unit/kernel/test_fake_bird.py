"""The fake BIRD keeps the contract that the real one keeps in the lab."""

import pytest

from tests.fakes.bird import FakeBird
from tests.kernel import contracts_bird


class FakeBirdNode:
    """A fake BIRD that does not run yet."""

    def __init__(self) -> None:
        self.bird = FakeBird()
        self.bird.away = True

    def start(self) -> None:
        self.bird.restart()

    def kill(self) -> None:
        self.bird.away = True

    def refuse(self) -> str:
        self.bird.refuses = True
        return "nonsense"


@pytest.fixture
def node() -> FakeBirdNode:
    return FakeBirdNode()


class TestFakeBird(contracts_bird.BirdContract):
    pass
