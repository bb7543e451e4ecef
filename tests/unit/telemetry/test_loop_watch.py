"""The watch over the event loop: callbacks of one round count together, and waiting does not count."""

import asyncio
import selectors
import socket
import time

import pytest

from kroute.telemetry.loop_watch import BOUNDS, LONG, POLLS_APART, LoopWatch


def run(watch: LoopWatch, coroutine) -> None:
    with asyncio.Runner(loop_factory=watch.new_loop) as runner:
        runner.run(coroutine)


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_callback_that_holds_the_loop_is_a_long_round():
    clock = Clock()
    watch = LoopWatch(clock)

    async def hold() -> None:
        clock.now += 0.3
        await asyncio.sleep(0)

    run(watch, hold())
    statistics = watch.statistics
    assert statistics.longest == pytest.approx(0.3)
    assert [it.seconds for it in watch.long_rounds] == [pytest.approx(0.3)]
    assert statistics.rounds.counts[BOUNDS.index(0.5)] == 1


def test_a_stop_of_the_machine_is_no_processor_time():
    clock, cpu_clock = Clock(), Clock()
    watch = LoopWatch(clock, cpu_clock)

    async def hold() -> None:
        for seconds, cpu in ((0.3, 0.02), (0.1, 0.05)):
            clock.now += seconds
            cpu_clock.now += cpu
            await asyncio.sleep(0)

    run(watch, hold())
    assert watch.statistics.longest == pytest.approx(0.3)
    assert watch.statistics.longest_cpu == pytest.approx(0.05)
    assert [it.cpu for it in watch.long_rounds] == [pytest.approx(0.02), pytest.approx(0.05)]


def test_many_quick_callbacks_of_one_round_count_together():
    clock = Clock()
    watch = LoopWatch(clock)

    def step() -> None:
        clock.now += LONG / 4

    async def crowd() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(8):
            loop.call_soon(step)
        await asyncio.sleep(0)

    run(watch, crowd())
    assert watch.statistics.longest == pytest.approx(2 * LONG)


def test_waiting_is_not_counted(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    watch = LoopWatch(clock)
    select = selectors.EpollSelector.select

    def wait_by_the_clock(selector: selectors.EpollSelector, timeout: float | None = None) -> list:
        clock.now += max(timeout or 0.0, 0.0)
        return select(selector, timeout)

    monkeypatch.setattr(selectors.EpollSelector, "select", wait_by_the_clock)

    async def wait() -> None:
        clock.now += 0.02
        await asyncio.sleep(0.1)

    run(watch, wait())
    assert clock.now >= 100.11
    assert watch.statistics.rounds.sum == pytest.approx(0.02)


def test_every_round_is_in_one_bucket():
    watch = LoopWatch()

    async def work() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    run(watch, work())
    statistics = watch.statistics
    assert statistics.rounds.count >= 50


def test_asyncio_gets_the_reading_of_the_clock_that_was_taken_for_the_round() -> None:
    readings = 0

    def clock() -> float:
        nonlocal readings
        readings += 1
        return time.monotonic()

    watch = LoopWatch(clock)
    read: list[int] = []

    async def work() -> None:
        asyncio.get_running_loop().call_later(3600, int)
        await asyncio.sleep(0)
        before = readings
        for _ in range(50):
            await asyncio.sleep(0)
        read.append(readings - before)
        before = readings
        await asyncio.sleep(0.01)
        read.append(readings - before)

    run(watch, work())
    assert read == [50, 4]  # one a round; for a wait, one for the timer, and one at each end


def test_sockets_are_not_polled_after_each_of_many_short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, polls = Clock(), 0
    watch = LoopWatch(clock)
    select = selectors.EpollSelector.select

    def counted(selector: selectors.EpollSelector, timeout: float | None = None) -> list:
        nonlocal polls
        polls += 1
        return select(selector, timeout)

    monkeypatch.setattr(selectors.EpollSelector, "select", counted)

    async def work() -> None:
        for _ in range(40):
            clock.now += POLLS_APART / 4
            await asyncio.sleep(0)

    run(watch, work())
    assert 8 <= polls <= 12


def test_a_loop_that_always_has_more_to_do_hears_of_its_sockets() -> None:
    async def work() -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()

        def go_on() -> None:
            if not heard.is_set():
                loop.call_soon(go_on)

        here, there = socket.socketpair()
        with here, there:
            loop.add_reader(here, heard.set)
            there.send(b"x")
            go_on()
            await heard.wait()
            loop.remove_reader(here)

    run(LoopWatch(), work())
