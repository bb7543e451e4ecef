"""The behaviour of BIRD that kroute relies on. The real program and the fake pass the same tests.

A subclass provides the fixture `node`: tests/kernel/test_bird.py the real one, and tests/unit/kernel/test_fake_bird.py
the fake one.
"""

from typing import Protocol

import pytest

from kroute.kernel.bird import BirdError
from kroute.kernel.clients import BirdClient

FIRST, SECOND = "router id 10.0.0.1;\nprotocol device { }\n", "router id 10.0.0.1;\nprotocol device { }\n# 2\n"


class BirdNode(Protocol):
    """A node on which BIRD may run."""

    bird: BirdClient

    def start(self) -> None:
        """Start BIRD with the configuration that is there."""

    def kill(self) -> None: ...

    def refuse(self) -> str:
        """A text that BIRD refuses, from now on."""


class BirdContract:
    async def test_while_bird_is_away_it_is_said_and_the_text_is_there_for_its_start(self, node: BirdNode) -> None:
        assert node.bird.read() is None
        for question in (node.bird.has(FIRST), node.bird.sessions()):
            with pytest.raises(BirdError) as caught:
                await question
            assert not caught.value.is_refusal
        with pytest.raises(BirdError) as caught:
            await node.bird.configure(FIRST)
        assert not caught.value.is_refusal
        assert node.bird.read() == FIRST
        node.start()
        assert await node.bird.has(FIRST)

    async def test_what_it_was_told_last_is_what_it_has(self, node: BirdNode) -> None:
        with pytest.raises(BirdError):
            await node.bird.configure(FIRST)
        node.start()
        for text, other in ((FIRST, SECOND), (SECOND, FIRST)):
            await node.bird.configure(text)
            assert node.bird.read() == text
            assert (await node.bird.has(text), await node.bird.has(other)) == (True, False)
        assert await node.bird.sessions() == []

    async def test_after_another_start_it_has_what_it_was_told_last(self, node: BirdNode) -> None:
        with pytest.raises(BirdError):
            await node.bird.configure(FIRST)
        node.start()
        await node.bird.configure(SECOND)
        node.kill()
        node.start()
        assert await node.bird.has(SECOND)

    async def test_what_it_refuses_changes_nothing(self, node: BirdNode) -> None:
        with pytest.raises(BirdError):
            await node.bird.configure(FIRST)
        node.start()
        text = node.refuse()
        with pytest.raises(BirdError) as caught:
            await node.bird.configure(text)
        assert caught.value.is_refusal
        assert node.bird.read() == FIRST
        assert await node.bird.has(FIRST)

    async def test_it_goes_on_with_a_configuration_that_is_removed(self, node: BirdNode) -> None:
        with pytest.raises(BirdError):
            await node.bird.configure(FIRST)
        node.start()
        for _ in range(2):
            node.bird.remove()
            assert node.bird.read() is None
        assert await node.bird.has(FIRST)
