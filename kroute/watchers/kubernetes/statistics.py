"""What a reflector counts."""

from dataclasses import dataclass


@dataclass
class ReflectorStatistics:
    """What a reflector has done since it was made. `denied` are those failures that want of a permission caused."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: int = 0
    denied: int = 0
