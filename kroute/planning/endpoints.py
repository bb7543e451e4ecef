"""Which endpoints serve a Service port: the slices merged, and of the merged endpoints those that take traffic.

The rules are those of the API (`discovery.k8s.io/v1`) and of kube-proxy where it is silent: absent conditions mean
ready, serving and not terminating; only the first address of an endpoint counts; a slice port without a name or a
number is not served.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

import msgspec

from kroute.planning.addresses import Family, family_of, unicast
from kroute.planning.objects import Endpoint, EndpointConditions, EndpointSlice
from kroute.planning.plan import RealServer, quoted


class PortKey(NamedTuple):
    """What a Service port and a slice port have in common; the numbers may differ from slice to slice."""

    name: str
    protocol: str


Backends = dict[RealServer, Endpoint]
"""The endpoints of one Service port, as the slices hold them, by the real server that each would be."""


class MergedSlices(msgspec.Struct, frozen=True):
    """The slices of one Service and one family, merged; `refused` are the addresses and ports that cannot be."""

    backends: dict[PortKey, Backends]
    refused: tuple[str, ...]


def merge(slices: Iterable[EndpointSlice], family: Family) -> MergedSlices:
    """Merge the slices of one family; the result does not depend on their order.

    Where two slices know one backend (an endpoint moves between slices one write at a time), the copy that is not
    terminating wins (kubernetes/kubernetes#135266), then the one that is ready, then the one that is serving.
    """
    merged: dict[PortKey, Backends] = {}
    refused: dict[str, None] = {}
    for piece in sorted(slices, key=_name):
        if piece.address_type != family:
            continue
        ports = _ports(piece, merged, refused)
        if not ports:
            continue
        for endpoint in piece.endpoints or ():
            written = endpoint.addresses[0] if endpoint.addresses else ""
            address = unicast(written)
            if address is None or family_of(address) != family:
                refused[f"endpoint address {quoted(written)}"] = None
                continue
            for backends, port in ports:
                real_server = RealServer(address, port)
                known = backends.setdefault(real_server, endpoint)
                if known is not endpoint and _preference(endpoint) > _preference(known):
                    backends[real_server] = endpoint
    return MergedSlices(merged, tuple(refused))


def choose(backends: Backends) -> list[tuple[RealServer, Endpoint]]:
    """The endpoints that take new connections, sorted by address and port.

    All that are ready; where none is, all that still serve while they terminate (KEP-1669).
    """
    chosen = [item for item in backends.items() if item[1].conditions.ready is not False]
    if not chosen:
        chosen = [item for item in backends.items() if _serves_while_terminating(item[1].conditions)]
    chosen.sort(key=itemgetter(0))
    return chosen


def _ports(
    piece: EndpointSlice, merged: dict[PortKey, Backends], refused: dict[str, None]
) -> list[tuple[Backends, int]]:
    """Where this slice's endpoints go to: the backends of each of its ports, and the port's number."""
    ports = []
    for port in piece.ports or ():
        if port.name is None or not port.port:
            continue
        if not 1 <= port.port <= 65535:
            refused[f"endpoint port {port.port}"] = None
            continue
        ports.append((merged.setdefault(PortKey(port.name, port.protocol), {}), port.port))
    return ports


def _name(piece: EndpointSlice) -> str:
    return piece.metadata.name


def _serves_while_terminating(conditions: EndpointConditions) -> bool:
    return conditions.serving is not False and conditions.terminating is True


def _preference(endpoint: Endpoint) -> tuple[bool, bool, bool]:
    """Of two copies of one endpoint the one with the greater preference is believed."""
    conditions = endpoint.conditions
    return conditions.terminating is not True, conditions.ready is not False, conditions.serving is not False
