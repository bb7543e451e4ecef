"""The forwarding methods of real servers: whether they are as a plan needs them."""

from collections.abc import Mapping

from kroute.kernel.ipvs.objects import DIRECT_ROUTING, MASQUERADING, TUNNEL, RealServerKey, RealServerState
from kroute.model.plan import VirtualServer

WRONG_METHOD = -1
"""The weight, which no plan has, of a real server that is forwarded to in another way than planned."""
WRONG_METHODS = {False: frozenset({TUNNEL, DIRECT_ROUTING}), True: frozenset({MASQUERADING, DIRECT_ROUTING})}
"""The forwarding methods that a real server must not have, by whether its virtual server is tunnelled."""


def method_of(server: VirtualServer) -> str:
    """How the kernel should forward to all of its real servers."""
    return TUNNEL if server.is_tunnelled else MASQUERADING


def differing_methods(wanted: VirtualServer, applied: Mapping[RealServerKey, RealServerState]) -> list[str]:
    """A sentence for each real server of a plan that is forwarded to in another way."""
    wrong, planned = WRONG_METHODS[wanted.is_tunnelled], {(it.address, it.port) for it in wanted.real_servers}
    return [
        f"real server {address}:{port} is forwarded to by {applied[address, port].method}, not {method_of(wanted)}"
        for address, port in sorted(planned & applied.keys())
        if applied[address, port].method in wrong
    ]
