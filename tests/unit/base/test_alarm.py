"""An alarm sets an event when it is time, however often the time moves."""

import asyncio
import time

from kroute.base.alarm import Alarm


def alarm() -> tuple[Alarm, asyncio.Event]:
    event = asyncio.Event()
    return Alarm(event, time.monotonic), event


async def test_it_goes_off_when_it_is_time() -> None:
    one, event = alarm()
    due = time.monotonic() + 0.05
    one.set(due)
    await event.wait()
    assert time.monotonic() >= due - 0.001


async def test_a_time_that_has_passed_is_now() -> None:
    one, event = alarm()
    one.set(time.monotonic() - 5)
    await asyncio.wait_for(event.wait(), 10)


async def test_a_time_that_moves_nearer_counts() -> None:
    one, event = alarm()
    one.set(time.monotonic() + 3600)
    one.set(time.monotonic() + 0.01)
    await asyncio.wait_for(event.wait(), 10)


async def test_a_time_that_moves_away_counts() -> None:
    one, event = alarm()
    one.set(time.monotonic() + 0.01)
    due = time.monotonic() + 0.1
    one.set(due)
    await event.wait()
    assert time.monotonic() >= due - 0.001


async def test_it_goes_off_once_for_each_time() -> None:
    one, event = alarm()
    for _ in range(3):
        one.set(time.monotonic() + 0.01)
        await asyncio.wait_for(event.wait(), 10)
        event.clear()
    await asyncio.sleep(0.05)
    assert not event.is_set()


async def test_a_clock_that_runs_slower_than_the_loops_counts() -> None:
    event = asyncio.Event()
    began = time.monotonic()
    one = Alarm(event, lambda: (time.monotonic() - began) / 2)
    one.set(0.01)
    one.set(0.05)
    await event.wait()
    assert time.monotonic() - began >= 0.05


async def test_one_that_is_stopped_never_goes_off() -> None:
    one, event = alarm()
    one.set(time.monotonic() + 0.01)
    one.stop()
    await asyncio.sleep(0.05)
    assert not event.is_set()
