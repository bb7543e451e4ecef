"""The options of a take-over, from the command line."""

import msgspec

from kroute.settings import PortRange
from kroute.settings.text import parse_ports

NODE_PORT_RANGE = PortRange(30000, 32767)
"""The API server's default (`--service-node-port-range`)."""


class TakeOverOptions(msgspec.Struct, frozen=True):
    """`node_ports`: the range of node ports.

    `wait`: seconds for the agent to become ready. `force`: skip all refusals.
    """

    node_ports: PortRange = NODE_PORT_RANGE
    wait: float = 60.0
    force: bool = False


DEFAULTS = TakeOverOptions()


def parse_port_range(text: str) -> PortRange:
    """Read one range of ports, `30000-32767`."""
    ranges = parse_ports(text)
    if len(ranges) != 1:
        raise ValueError(f"{text!r} is not one range of ports: write 30000-32767")
    return ranges[0]
