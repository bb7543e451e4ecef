"""What is probed, and how often."""

from enum import StrEnum
from typing import NamedTuple

import msgspec


class ProbeKind(StrEnum):
    """What the probed address must do to pass."""

    HTTP = "GET /"
    """Answer with a status of 200 to 399 on the `healthCheckNodePort`."""
    CONNECT = "connect"
    """Accept a TCP connection."""
    REACH = "reach"
    """Accept or refuse a TCP connection: either answer shows that the address is reachable."""


class Probe(NamedTuple):
    """One check of one address and port."""

    kind: ProbeKind
    address: str
    port: int


class ProbeSettings(msgspec.Struct, frozen=True):
    """Seconds between checks and for one, and how many results in a row change the verdict."""

    interval: float = 2.0
    timeout: float = 1.0
    failures: int = 3
    successes: int = 2
