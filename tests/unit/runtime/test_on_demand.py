"""What is loaded when it is asked for."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from kroute.runtime.on_demand import OnDemand


async def test_it_is_loaded_in_a_thread_and_made_once_in_the_loop_however_many_ask() -> None:
    loaded, made = [], []

    def make() -> object:
        made.append(threading.current_thread())
        return object()

    def load() -> Callable[[], object]:
        loaded.append(threading.current_thread())
        return make

    wanted = OnDemand(load)
    assert wanted.made is None
    first, *others = await asyncio.gather(*(wanted.get() for _ in range(5)))
    assert all(it is first for it in [*others, await wanted.get(), wanted.made])
    assert len(loaded) == 1
    assert loaded[0] is not threading.current_thread()
    assert made == [threading.current_thread()]


async def test_what_failed_to_load_is_loaded_again() -> None:
    failures = [OSError("the disk has gone")]

    def load() -> Callable[[], str]:
        if failures:
            raise failures.pop()
        return lambda: "made"

    wanted = OnDemand(load)
    with pytest.raises(OSError, match="gone"):
        await wanted.get()
    assert await wanted.get() == "made"
