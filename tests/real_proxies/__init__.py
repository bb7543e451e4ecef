"""What kube-proxy 1.36 and kube-router 2.11 made of the same 40 Services, as the usual tools printed it.

`services.json`, `endpointslices.json` and `nodes.json` are random objects of all kinds, as API server 1.36.2 held them.
Each proxy served them for a minute on the node `lab-node` and was stopped; a directory for each has what it left in the
kernel. Only what is the proxy's is kept: of addresses and routes those on its link, of objects the fields that a proxy
reads. `running.json` is another recording: what kube-proxy answered and wrote while it ran, by `running.py`.

`kube-router-firewall` is what the firewall of kube-router (its main branch of August 2026) left on a node of the lab,
with the network policy of `tests/scenarios/test_take_over_policies.py`.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from kroute.kernel.ipset import Element
from kroute.model.objects import Applied, Change, EndpointSlice, Listed, Node, Service
from kroute.model.plan import Protocol, VirtualServerKey

DIRECTORY = Path(__file__).parent
KUBE_PROXY_IPVS, KUBE_PROXY_IPTABLES, KUBE_ROUTER = "kube-proxy-ipvs", "kube-proxy-iptables", "kube-router"
KUBE_ROUTER_FIREWALL = "kube-router-firewall"
OBJECTS = ("nodes.json", "services.json", "endpointslices.json")
NODE = "lab-node"
NODE_IPV4, NODE_IPV6 = "192.168.250.2", "fd00:192:168:250::2"
POD_RANGES = ("10.0.0.0/8", "fd00:10::/32")
"""The pod networks as both proxies were told."""

_PROTOCOLS = {"-t": Protocol.TCP, "-u": Protocol.UDP, "--sctp-service": Protocol.SCTP}


class RecordedServer(NamedTuple):
    """A virtual server. `persistence` is in seconds, 0 for none. `real_servers` have weights by address and port."""

    scheduler: str
    persistence: int
    real_servers: dict[tuple[str, int], int]


def text(proxy: str, name: str) -> str:
    """Return the output of a tool, such as `ipset-save`, or "" if that tool printed nothing of the proxy's."""
    path = DIRECTORY / proxy / name
    return path.read_text() if path.exists() else ""


def objects() -> list[Change]:
    """Return all objects, as a complete list of each kind."""
    changes: list[Change] = []
    for name, kind in zip(OBJECTS, (Node, Service, EndpointSlice), strict=True):
        items = msgspec.json.decode((DIRECTORY / name).read_bytes())["items"]
        changes += [*(Applied(msgspec.convert(item, kind)) for item in items), Listed(kind)]
    return changes


def virtual_servers(proxy: str) -> dict[VirtualServerKey, RecordedServer]:
    """Return the IPVS table."""
    found: dict[VirtualServerKey, RecordedServer] = {}
    for line in text(proxy, "ipvsadm-S").splitlines():
        action, protocol, where, *words = line.split()
        options = dict(itertools.pairwise(words))
        key = VirtualServerKey(_PROTOCOLS[protocol], *_end(where))
        if action == "-A":
            found[key] = RecordedServer(options["-s"], int(options.get("-p", 0)), {})
        else:
            found[key].real_servers[_end(options["-r"])] = int(options["-w"])
    return found


def sets(proxy: str) -> dict[str, set[Element]]:
    """Return the sets with their elements."""
    found: dict[str, set[Element]] = {}
    for line in text(proxy, "ipset-save").splitlines():
        action, name, *words = line.split()
        if action == "create":
            found[name] = set()
        else:
            found[name].add(tuple(_parts(words[0])))
    return found


def link_addresses(proxy: str) -> set[str]:
    """Return the addresses on the proxy's link."""
    return {line.split()[3].partition("/")[0] for line in text(proxy, "ip-addr").splitlines()}


def _parts(element: str) -> Iterator[str | int]:
    for part in element.split(","):
        protocol, _, port = part.partition(":")
        if protocol.upper() in Protocol.__members__:
            yield from (int(Protocol[protocol.upper()]), int(port))
        else:
            yield int(part) if part.isdigit() else part


def _end(where: str) -> tuple[str, int]:
    address, _, port = where.rpartition(":")
    return address.strip("[]"), int(port)
