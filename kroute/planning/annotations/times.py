"""Read the times of slow start and ejection as people write them. What is wrong becomes a complaint."""

import re

from kroute.base.schedulers import FALLBACK, SCHEDULER_FLAGS, SCHEDULERS_BY_ORDER
from kroute.model.plan import Ejection, quoted

MAX_SLOW_START = 3600
"""Seconds."""
AFTER = range(5, 301)
"""Seconds without an answer. The kernel's counters are up to two seconds old, and are read every two seconds."""
HOLD = range(5, 3601)
"""Seconds."""
_ALLOWED = {"after": AFTER, "hold": HOLD}
_SECONDS = re.compile(r"([0-9]{1,6})(s|m|h|)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_ON, _OFF = {"on", "true"}, {"off", "false"}


def read_seconds(text: str) -> int | None:
    """A number of seconds, or of the unit s, m or h; else None."""
    match = _SECONDS.fullmatch(text)
    return int(match[1]) * _UNITS[match[2]] if match else None


def read_ejection(text: str) -> tuple[Ejection | None, str | None]:
    """Read `on`, `off`, or `after TIME` and `hold TIME` with a comma between; returns what is wrong, too."""
    if text.lower() in _ON | _OFF:
        return (Ejection() if text.lower() in _ON else None), None
    found: dict[str, int] = {}
    for part in text.split(",", 2):
        name, _, time = part.strip().partition(" ")
        seconds = read_seconds(time.strip())
        allowed = _ALLOWED.get(name, range(0))
        if seconds is None or seconds not in allowed or name in found:
            return (
                None,
                f"is no ejection: {quoted(part.strip())} is neither after 5s to 5m nor hold 5s to 1h, once each",
            )
        found[name] = seconds
    return Ejection(**found), None


def hindrance(scheduler: str, flags: int, *, has_counters: bool) -> str | None:
    """Why a real server cannot be ejected; None if it can.

    `has_counters`: whether the kernel sums up the counters of real servers (--ipvs-estimation).
    """
    if not has_counters:
        return "is not obeyed: --ipvs-estimation is off, so the kernel does not count answers"
    fallback = next((it for it in FALLBACK if SCHEDULER_FLAGS[it].scheduler == scheduler), None)
    if scheduler in SCHEDULERS_BY_ORDER and fallback is not None and not flags & SCHEDULER_FLAGS[fallback].bit:
        return f"is not obeyed: without the flag {fallback}, clients of an ejected endpoint would be refused"
    return None
