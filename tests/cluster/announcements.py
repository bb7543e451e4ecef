"""A router beside the nodes of a cluster, to which kroute announces the load balancers' addresses that it gives out."""

import contextlib
from collections.abc import Iterator

from tests.cluster.machines import Cluster
from tests.lab.hosts import Host
from tests.lab.routers import BirdProcess
from tests.lab.traffic import Traffic

RANGES = ("192.0.2.64/26", "2001:db8:2::40/122")
VALUES = (
    "settings.announce=true",
    "settings.advertise-loadbalancer-ip=true",
    "settings.peer-router-ips=192.168.77.1",
    "settings.peer-router-asns=65000",
    "settings.allocate-load-balancer-ips=true",
    f"settings.loadbalancer-ip-range={{{','.join(RANGES)}}}",
)
"""Values of kroute's chart for this router."""
OUTSIDE = {4: "203.0.113.1", 6: "2001:db8:113::1"}
"""The router calls by these: cases take a caller in the nodes' 192.168.0.0/16 for a node that masquerades."""
_FAMILIES = "ipv4 { import all; export none; }; ipv6 { import all; export none; };"


@contextlib.contextmanager
def router(cluster: Cluster) -> Iterator[BirdProcess]:
    """BIRD on the wire: it learns from all nodes, divides packets over them, and knows nothing of kroute."""
    own = cluster.control.place.wire.addresses
    sessions = [
        f"protocol bgp {name} {{ local {own[0]} as 65000; neighbor {node.address} as 64512; {_FAMILIES} }}"
        for name, node in cluster.nodes.items()
    ]
    kernel = [
        f"protocol kernel kernel{family} {{ merge paths on; ipv{family} {{"
        f" import none; export filter {{ krt_prefsrc = {address}; accept; }}; }}; }}"
        for family, address in OUTSIDE.items()
    ]
    text = "\n".join(["log stderr all;", f"router id {own[0]};", "protocol device { }", *kernel, *sessions])
    for address, network in zip(OUTSIDE.values(), RANGES, strict=True):
        cluster.run("ip", "address", "add", address, "dev", "lo")
        cluster.run("ip", "route", "add", network, "dev", "lo")  # loses what no node announces
    traffic = Traffic()
    process = BirdProcess.router(Host("router", cluster.wire, traffic, *own), cluster.directory / "router", f"{text}\n")
    try:
        yield process
    finally:
        process.kill()
        traffic.close()
