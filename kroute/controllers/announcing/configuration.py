"""The configuration of BIRD 2, as text. Equal plans give equal bytes: a text that changes for nothing resets sessions.

The routes are in tables of kroute's own, and no protocol writes them into the kernel or reads the kernel's. From
routers nothing is learned. A route reflector learns host routes of other nodes, to pass them on.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network

from kroute.model.addresses import Family, family_of
from kroute.model.speaker import Community, Peer, Secret, SpeakerPlan

PREFIX = "kroute-"
"""How the names of the protocols that are sessions begin; the peer's address follows."""
MOST_LEARNED = 100_000
"""Routes that a route reflector learns from one node. What is beyond is not learned; the session stays."""
_ROUTE = re.compile(r"^  route ([0-9a-f.:]+)/\d+ blackhole;\n", re.MULTILINE)
_PODS = re.compile(r"^  route [0-9a-f.:]+/\d+ unreachable;\n", re.MULTILINE)
_HOST = {Family.IPV4: 32, Family.IPV6: 128}
_SHORT = {Family.IPV4: "4", Family.IPV6: "6"}


def configuration(plan: SpeakerPlan, addresses: Iterable[str], passwords: Mapping[str, Secret]) -> str:
    """The text. `passwords` has those of peers by their addresses."""
    ordered = sorted(set(addresses))
    lines = [
        "# Written by kroute, which replaces it. Start BIRD with -R and with this file.",
        "log stderr { info, remote, warning, error, auth, fatal, bug };",
        f"router id {plan.router_id};",
        "protocol device { }",
    ]
    bfd = [peer for peer in plan.peers if peer.bfd is not None]
    lines += ["protocol bfd kroute_bfd { }"] if bfd else []
    for family in plan.families:
        mine = [address for address in ordered if family_of(address) is family]
        lines += [*_table(family, mine, _of(family, plan.pod_networks)), *_filters(plan, family)]
    for peer in plan.peers:
        lines += _session(plan, peer, passwords.get(peer.address))
    return "\n".join(lines) + "\n"


def announced_in(text: str) -> list[str]:
    """The addresses that a configuration of an earlier run announces."""
    return _ROUTE.findall(text)


def without_addresses(text: str) -> str:
    """The same configuration, by which nothing is announced."""
    return _PODS.sub("", _ROUTE.sub("", text))


def protocol_name(address: str) -> str:
    """The name of the session with a peer. BIRD allows these characters in apostrophes."""
    return PREFIX + address


def _of(family: Family, networks: Iterable[str]) -> list[str]:
    return [network for network in networks if family_of(network) is family]


def _table(family: Family, addresses: Iterable[str], pod_networks: Iterable[str]) -> Iterator[str]:
    short = _SHORT[family]
    yield f"ipv{short} table kroute{short};"
    yield f"protocol static kroute_vips{short} {{"
    yield f"  ipv{short} {{ table kroute{short}; }};"
    yield from (f"  route {address}/{_HOST[family]} blackhole;" for address in addresses)
    yield from (f"  route {network} unreachable;" for network in pod_networks)
    yield "}"


def _filters(plan: SpeakerPlan, family: Family) -> Iterator[str]:
    """What routers get, and what a route reflector learns from nodes."""
    short = _SHORT[family]
    yield f"filter kroute_to_routers{short} {{"
    yield from (f"  bgp_path.prepend({asn});" for asn in plan.prepended)
    yield from (f"  {_added(community)};" for community in plan.communities)
    yield "  accept;"
    yield "}"
    if not plan.cluster_id:
        return
    rejected, of_pods = _of(family, plan.rejected), _of(family, plan.pod_ranges)
    yield f"filter kroute_from_nodes{short} {{"
    but = f" && !(net ~ [ {', '.join(map(_and_within, of_pods))} ])" if of_pods else ""
    yield f"  if net.len != {_HOST[family]}{but} then reject;"
    if rejected:
        yield f"  if net ~ [ {', '.join(map(_and_within, rejected))} ] then reject;"
    yield "  accept;"
    yield "}"


def _and_within(network: str) -> str:
    """The pattern of a network and all in it."""
    return f"{ip_network(network)}+"


def _added(community: Community) -> str:
    kind = "bgp_community" if len(community) == 2 else "bgp_large_community"
    return f"{kind}.add(({', '.join(map(str, community))}))"


def _session(plan: SpeakerPlan, peer: Peer, password: Secret | None) -> Iterator[str]:
    yield f"protocol bgp '{protocol_name(peer.address)}' {{"
    yield f"  local {peer.local} port {plan.port} as {plan.asn};"
    yield f"  neighbor {peer.address} port {peer.port} as {peer.asn};"
    if peer.ttl:
        yield f"  multihop {peer.ttl};"
    if peer.has_ttl_security:
        yield "  ttl security on;"
    if password is not None:
        yield f'  password "{password.value}";'
    yield f"  hold time {plan.hold_time};"
    if plan.restart_time:
        yield "  graceful restart on;"
        yield f"  graceful restart time {plan.restart_time};"
    yield "  connect delay time 1;"
    yield "  connect retry time 10;"
    yield "  error wait time 5, 60;"
    if peer.is_client:
        yield "  rr client;"
        yield f"  rr cluster id {plan.cluster_id};"
    if peer.bfd is not None:
        yield "  bfd {"
        yield f"    min rx interval {peer.bfd.receive} ms;"
        yield f"    min tx interval {peer.bfd.send} ms;"
        yield f"    multiplier {peer.bfd.multiplier};"
        yield "  };"
    for family in plan.families:
        yield from _channel(plan, peer, family)
    yield "}"


def _channel(plan: SpeakerPlan, peer: Peer, family: Family) -> Iterator[str]:
    short = _SHORT[family]
    yield f"  ipv{short} {{"
    yield f"    table kroute{short};"
    if peer.is_node and plan.cluster_id:
        yield f"    import filter kroute_from_nodes{short};"
        yield f"    import limit {MOST_LEARNED} action block;"
    else:
        yield "    import none;"
    yield "    export all;" if peer.is_node else f"    export filter kroute_to_routers{short};"
    if not peer.is_node and (plan.is_next_hop_self or plan.cluster_id):
        # Without a word BIRD would name itself: the session with the node that has announced it is not of one link.
        yield f"    next hop {'self' if plan.is_next_hop_self else 'keep'};"
    yield "  };"
