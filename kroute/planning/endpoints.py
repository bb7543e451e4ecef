"""Which endpoints serve a Service port: the slices merged, and of the merged endpoints those that take traffic.

The rules are those of the API (`discovery.k8s.io/v1`) and of kube-proxy where it is silent: absent conditions mean
ready, serving and not terminating; only the first address of an endpoint counts; a slice port without a name or a
number is not served; hints count only if every ready endpoint has them (KEP-2433, KEP-3015).
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

import msgspec

from kroute.planning.addresses import Family, family_of, unicast
from kroute.planning.node_facts import NodeFacts
from kroute.planning.objects import Endpoint, EndpointConditions, EndpointSlice
from kroute.planning.plan import RealServer, quoted


class PortKey(NamedTuple):
    """What a Service port and a slice port have in common; the numbers may differ from slice to slice."""

    name: str
    protocol: str


Backends = dict[RealServer, Endpoint]
"""The endpoints of one Service port, as the slices hold them, by the real server that each would be."""


Chosen = list[tuple[RealServer, Endpoint]]
"""The endpoints that take new connections, each with the real server that it is."""


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


def choose(backends: Backends, node: NodeFacts, *, only_local: bool = False) -> Chosen:
    """The endpoints that take new connections on this node, sorted by address and port.

    All that are ready, those near this node if hints say so; where none is ready, all that still serve while they
    terminate (KEP-1669). `only_local` is policy Local: endpoints of other nodes do not count at all.
    """
    candidates = [item for item in backends.items() if not only_local or item[1].node_name == node.name]
    ready = [item for item in candidates if is_ready(item[1])]
    if not ready:
        chosen = [item for item in candidates if _serves_while_terminating(item[1].conditions)]
    else:
        chosen = ready if only_local else _near(ready, node)
    chosen.sort(key=itemgetter(0))
    return chosen


def is_ready(endpoint: Endpoint) -> bool:
    """Whether the endpoint takes new connections; that nothing is said about it means yes."""
    return endpoint.conditions.ready is not False


def has_hints(piece: EndpointSlice) -> bool:
    """Whether the choice among these endpoints may depend on where a node is."""
    return any(endpoint.hints is not None for endpoint in piece.endpoints or ())


def _near(ready: Chosen, node: NodeFacts) -> Chosen:
    """Those for this node, else those for its zone, else all. One missing hint makes all of them void."""
    if any(endpoint.hints is None for _, endpoint in ready):
        return ready
    for names_of, here in ((_node_hints, node.name), (_zone_hints, node.zone)):
        hinted = [(item, names_of(item[1])) for item in ready]
        near = [item for item, names in hinted if here in names]
        if near and all(names for _, names in hinted):
            return near
    return ready


def _node_hints(endpoint: Endpoint) -> set[str]:
    return {hint.name for hint in endpoint.hints.for_nodes or ()} if endpoint.hints else set()


def _zone_hints(endpoint: Endpoint) -> set[str]:
    return {hint.name for hint in endpoint.hints.for_zones or ()} if endpoint.hints else set()


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
