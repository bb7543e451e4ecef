"""The counters of a reflector."""

from dataclasses import dataclass


@dataclass
class ReflectorStatistics:
    """The counts since the reflector was created. `denied` counts the failures caused by a missing permission."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: int = 0
    denied: int = 0
