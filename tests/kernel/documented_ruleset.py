"""The nf_tables rules of a node with five Services, as nft prints them, commented for docs/firewall-rules.md.

`python -m tests.kernel.documented_ruleset` lets nft print them in the lab, and writes them into the page.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kroute.firewall.nftables.firewall import NftablesFirewall
from kroute.kernel.nftables.client import Nftables
from kroute.model.node_facts import NodeFacts, NodeInterfaces
from kroute.model.objects import Applied, EndpointPort
from kroute.planning.catalog import Catalog
from kroute.settings import Settings
from tests.builders import LISTED, endpoint, endpoint_slice, port, service
from tests.kernel.nodes import run
from tests.lab.mode import lab_mode

PAGE = Path(__file__).parents[2] / "docs" / "firewall-rules.md"
BEGIN, END = "<!-- written by tests/kernel/documented_ruleset.py -->\n\n```\n", "```\n\n<!-- its end -->\n"

ADDRESS = "192.0.2.11"
NODE = NodeFacts("node1", ADDRESS, node_port_addresses=(ADDRESS,), interfaces=NodeInterfaces(frozenset({ADDRESS})))
SETTINGS = Settings("node1", cluster_cidrs=("10.244.0.0/16",))
OBJECTS = [
    service("dns", "10.96.0.10", ports=[port(53, "udp", "UDP"), port(53, "tcp")]),
    endpoint_slice(
        "dns-1",
        endpoint("10.244.1.2", on="node1"),
        of="dns",
        ports=[EndpointPort(name="udp", port=53, protocol="UDP"), EndpointPort(name="tcp", port=53)],
    ),
    service("web", "10.96.0.20", kind="NodePort", ports=[port(80, node_port=30080)]),
    endpoint_slice("web-1", endpoint("10.244.1.5", on="node1"), "10.244.2.5", of="web"),
    service(
        "shop",
        "10.96.0.30",
        kind="LoadBalancer",
        balanced=["203.0.113.30"],
        ports=[443],
        load_balancer_source_ranges=("198.51.100.0/24",),
    ),
    endpoint_slice("shop-1", endpoint("10.244.1.6", on="node1"), of="shop", ports=[8443]),
    service(
        "mail",
        "10.96.0.40",
        kind="LoadBalancer",
        balanced=["203.0.113.40"],
        ports=[25],
        external_traffic_policy="Local",
        health_check_node_port=30925,
    ),
    endpoint_slice("mail-1", endpoint("10.244.2.7"), of="mail", ports=[2525]),
    service("idle", "10.96.0.50"),
]
"""A Service with two protocols; one with a node port; one for some clients only; one with policy Local and its endpoint
on another node; one without endpoints."""

SETS = {
    "cluster-ip": "Ports of ClusterIPs with endpoints: dns by both protocols, web, shop, mail.",
    "external": "Node ports and external ports with policy Cluster: web's node port, shop's load balancer.",
    "external-local": "The same with policy Local: mail's load balancer.",
    "no-local": "Those of external-local whose endpoints are all on other nodes.",
    "no-endpoint": "Ports without endpoints: idle's.",
    "restricted": "Ports for some clients only: shop's load balancer ...",
    "health-check": "Health check node ports: mail's. No rule here looks for them; see above.",
    "source-network": "... and the clients that may use them: the first and the last address of each network.",
    "hairpin": "A real server that may be on this node calls itself: destination, protocol, port, source.",
    "vip": "Every address on kube-ipvs0.",
    "pod-network": "The pods' networks, since --cluster-cidr tells them from other clients.",
}
CHAINS: dict[str, tuple[str, dict[str, str]]] = {
    "refuse": (
        "How a packet is refused so that its client gives up at once; other chains jump here.",
        {
            "reject with tcp reset": "TCP by a reset; nft leaves out `meta l4proto tcp`, which goes without saying.",
            "meta l4proto sctp": "SCTP clients ignore port unreachable.",
            "reject comment": "All others by port unreachable.",
        },
    ),
    "vip-ports": (
        "A packet to a VIP: is its port one that a Service serves?",
        {
            "ip daddr . meta l4proto . th dport @external-local": "`th dport` is the port of any transport protocol.",
            "icmp type": "VIPs answer to ping.",
            "ct state invalid": "IPVS may know the connection of which such a message tells.",
            "jump refuse": "What is left would reach a program that listens on all addresses of the node.",
        },
    ),
    "source-ranges": (
        "loadBalancerSourceRanges of a port in restricted. The set has networks, so one rule looks for each length.",
        {
            "ip daddr . meta l4proto . th dport . ip saddr .": "A single address is its network's first and last one.",
            "ip daddr . meta l4proto . th dport . ip saddr &": "The first and the last address of the source's /31, of"
            " its /30, and so on.",
            "drop": "As a firewall does, and as kube-proxy does too.",
        },
    ),
    "odd-segments": (
        "To conntrack these are invalid, so nothing would masquerade them. IPVS would make a connection of each.",
        {"ip daddr": "Those to all other ports go on, or are refused."},
    ),
    "new-connections": (
        "What comes in and belongs to no connection. Addresses are still the client's; IPVS is behind this.",
        {
            "tcp flags ! syn": "After a flush of conntrack the middle of a connection looks new. It is not refused.",
            "ip daddr . meta l4proto . th dport @restricted": "Few packets are to these.",
            "ip daddr . meta l4proto . th dport @cluster-ip": "Most are to these two, and go on to IPVS. A set's key is"
            " loaded into registers that follow each other ...",
            "ip daddr . meta l4proto . th dport @external ": "... and looked up as a whole, at the same cost"
            " however many elements the set has.",
            "ip daddr . meta l4proto . th dport @no-endpoint": "IPVS would refuse it too, but over IPv6 only at the"
            " second SYN.",
            "ip saddr != @pod-network": "Pods of this node may use endpoints elsewhere; clients outside may not.",
            "tcp flags fin,rst,ack": "SYN-FIN and SYN-ACK, for example.",
            "ip daddr @vip": "Only VIPs: no state of these sets can cut off the node's own addresses.",
        },
    ),
    "own-new-connections": (
        "The same for connections of this node's own processes, which IPVS takes before they reach chain input.",
        {
            "tcp flags ! syn": "As in new-connections.",
            "ip daddr": "Dropped: the hook of outgoing packets has no one to refuse to but this node itself.",
            "tcp flags fin,rst,ack": "As in new-connections.",
        },
    ),
    "own-answers": (
        "A process of the node must not answer from a VIP: then an endpoint is a VIP, and leads to a host port.",
        {
            "tcp flags": "Of TCP the SYN-ACK alone, so that connections that stand go on.",
            "meta l4proto udp": "Of the others everything.",
            "meta l4proto sctp": "One rule for each protocol needs no anonymous set.",
        },
    ),
    "input": (
        "Every base chain only says which packets are looked at; regular chains decide.",
        {
            "type": "LOCAL_IN, a little before the usual filters (0). IPVS takes packets here at srcnat - 1 (99).",
            "ct state invalid,new": "Connections that stand are never touched. IPVS also makes connections of packets"
            " that are invalid to conntrack.",
        },
    ),
    "output": (
        "Packets of this node's own processes.",
        {
            "type": "LOCAL_OUT at mangle (-150): behind conntrack (-200), before IPVS at dstnat + 2 (-98).",
            "ct state invalid,new": "As in input. What IPVS does not take comes back by lo, and meets input too.",
            "ct state established": "Answers, for the rule about VIPs above.",
        },
    ),
    "mark-masquerade": (
        "Which packets leave with an address of this node. IPVS will replace the destination, so they are marked now.",
        {
            "tcp flags": "As in new-connections.",
            "ip saddr != @pod-network": "To a ClusterIP, not from a pod: the real server must answer through this"
            " node.",
            "ip daddr": "Policy Cluster: the real server may be on another node, and must answer through this one.",
        },
    ),
    "nat-prerouting": (
        "Chains of type nat see the first packet of each connection only.",
        {
            "type": "dstnat is -100; the five before it let kroute mark before anybody translates.",
            "jump": "All packets that come in.",
            "ip daddr": "The address stays, and no chain behind this replaces it: portmap's would, by that of a host"
            " port's pod.",
        },
    ),
    "nat-output": (
        "The same for this node's own processes.",
        {
            "type": "nft has no word for dstnat here. IPVS follows at -98.",
            "jump": "All packets that go out.",
            "ip daddr": "As in nat-prerouting.",
        },
    ),
    "nat-postrouting": (
        "What leaves, now with the real server as its destination.",
        {
            "type": "srcnat is 100; the first chain that translates ends the others' turn.",
            "ip daddr": "A pod that would get its own packet back with its own address.",
            "meta mark": "The mark is taken off, so that nobody behind this meets it. Source ports are random: clients"
            " of several nodes do not collide.",
        },
    ),
}


def commented(printed: str) -> str:
    """Return nft's listing of the table with a comment before the lines that say something, none twice in a row."""
    return "".join(f"{line}\n" for line in _commented(printed.splitlines()))


def _commented(printed: list[str]) -> Iterator[str]:
    rules: dict[str, str] = {}
    said = ""
    for line in printed:
        kind, _, rest = line.strip().partition(" ")
        name = rest.removesuffix(" {")
        if kind == "set":
            yield f"\t# {SETS[name]}"
        elif kind == "chain":
            comment, rules = CHAINS[name]
            said = ""
            yield f"\t# {comment}"
        elif kind not in {"", "table", "}", "elements", "flags"} and line.startswith("\t\t") and rules:
            before, said = said, _explanation(rules, line.strip())
            if said != before:
                yield f"\t\t# {said}"
        yield line


def _explanation(rules: dict[str, str], line: str) -> str:
    [found] = [text for start, text in rules.items() if line.startswith(start)] or [""]
    assert found, f"CHAINS says nothing of: {line}"
    return found


async def printed() -> str:
    """Return what nft prints of the table of IPv4, after an agent's first write, in this network namespace."""
    catalog = Catalog(SETTINGS, NODE)
    catalog.take([*map(Applied, OBJECTS), *LISTED])
    entries = [entry for plan in catalog.plan_marked() for entry in plan.set_entries]
    async with Nftables() as nftables:
        firewall = NftablesFirewall(SETTINGS, nftables)
        await firewall.ensure_sets()
        assert await firewall.change_elements(dict.fromkeys(entries, True)) == {}
        await firewall.ensure_rules(NODE)
        return run("nft list table ip kroute")


def main() -> None:
    """In the lab, print the block; elsewhere, let the lab print it, and write it into the page."""
    if lab_mode() == "host":
        sys.stdout.write(commented(asyncio.run(printed())))
        return
    command = [sys.executable, "-m", "tests.lab.run", sys.executable, "-m", "tests.kernel.documented_ruleset"]
    block = subprocess.run(command, check=True, capture_output=True, text=True).stdout.replace("\r", "")
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    assert begin, f"{PAGE.name} has no place for the rules"
    PAGE.write_text(before + BEGIN + block[block.index("table ip") :] + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
