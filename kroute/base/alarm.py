"""A timer that may move often."""

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """Sets `event` when it is time, by `clock`, which returns seconds and never goes back.

    When the time moves to a later one, the timer stays; when that goes off too early, another one is set. So a time
    that moves often, as with each pass of a controller or each line of a watch, costs no timer.
    """

    def __init__(self, event: asyncio.Event, clock: Callable[[], float]) -> None:
        self._event = event
        self._clock = clock
        self._due = self._timer_due = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due: float) -> None:
        """Set the event at `due` seconds; this replaces the time that was given before."""
        self._due = due
        if due < self._timer_due:
            self._set_timer()

    def stop(self) -> None:
        """Do not set the event any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due = None, math.inf

    def _set_timer(self) -> None:
        self.stop()
        delay = max(0.0, self._due - self._clock())
        self._timer, self._timer_due = asyncio.get_running_loop().call_later(delay, self._goes_off), self._due

    def _goes_off(self) -> None:
        is_time = self._due <= self._timer_due
        self.stop()
        if is_time:
            self._event.set()
        else:
            self._set_timer()
