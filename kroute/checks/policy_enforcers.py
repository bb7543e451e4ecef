"""Other programs that enforce NetworkPolicies: by what each is recognised on a node, as a table.

A packet must pass all of them. What a program that has ended leaves goes on refusing packets, by policies and pods of
the past. So every trace counts, and the port of a program only says whether it is at work.

Sources: Calico felix/rules (rule_defs.go, names of chains and of the table in nf_tables) and felix/config (HealthPort);
Cilium pkg/datapath/iptables (names of chains) and pkg/defaults (HostDevice, AgentHealthPort); Antrea
pkg/agent/route/route_linux.go and pkg/apis/ports.go; kube-router pkg/controllers/netpol (npc_iptables.go,
npc_nftables.go), which K3s vendors (pkg/agent/netpol: without the health port; 6444 is K3s' own); kube-network-policies
pkg/dataplane/controller.go, which kindnet vendors under its own name of the table. Of these, kube-router itself runs in
the tests. As there, all chains and sets with its prefixes are its own: it deletes those that it does not know.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from kroute.checks.finding import Finding, failed, ok, warning
from kroute.kernel.netlink.rtnetlink import interface_index
from kroute.kernel.netlink.socket_diag import listening_ports

POLICIES = "network policies"


class Enforcer(NamedTuple):
    """A program that enforces network policies.

    `chains` are in tables of iptables of whatever variant, `tables` those of nf_tables. `ports` are TCP ports that it
    has open while it runs, and what they are; none: that cannot be told. `way_out` is what to do about it.
    """

    name: str
    chains: re.Pattern[str]
    tables: Set[str] = frozenset()
    sets: re.Pattern[str] = re.compile(r"(?!)")
    links: tuple[str, ...] = ()
    ports: Mapping[int, str] = {}
    way_out: str = "run kroute without --network-policies, or remove the other program and its rules from this node"


KUBE_ROUTERS_FIREWALL = Enforcer(
    "kube-router's firewall",
    chains=re.compile(r"KUBE-ROUTER-(?:INPUT|FORWARD|OUTPUT)|KUBE-(?:NWPLCY|POD-FW)-[A-Z0-9]+"),
    tables=frozenset({"kube-router-filter-ipv4", "kube-router-filter-ipv6"}),
    sets=re.compile(r"(?:inet6:)?KUBE-(?:SRC|DST)-[A-Z0-9]+"),
    ports={20244: "kube-router's health port", 6444: "K3s' port for its agent"},
    way_out="end it (kube-router --run-firewall=false, K3s --disable-network-policy), "
    "then run `kroute migrate --from kube-router --take-over`",
)
ENFORCERS = (
    Enforcer(
        "Calico", re.compile(r"cali-(?:INPUT|FORWARD|OUTPUT)"), frozenset({"calico"}), ports={9099: "its health port"}
    ),
    Enforcer(
        "Cilium",
        re.compile(r"(?:OLD_)?CILIUM_(?:INPUT|FORWARD|OUTPUT)"),
        links=("cilium_host",),
        ports={9879: "its health port"},
    ),
    Enforcer("Antrea", re.compile(r"ANTREA-FORWARD"), links=("antrea-gw0",), ports={10350: "its API port"}),
    KUBE_ROUTERS_FIREWALL,
    Enforcer(
        "kube-network-policies or kindnet",
        re.compile(r"(?!)"),
        frozenset({"kube-network-policies", "kindnet-network-policies"}),
    ),
)


class Presence(NamedTuple):
    """An enforcer that has something on the node. `why` says what, and whether it is at work, as a clause.

    `is_at_work` is False where that cannot be told, too.
    """

    enforcer: Enforcer
    why: str
    is_at_work: bool = False

    def __str__(self) -> str:
        return f"{self.enforcer.name} enforces network policies here, too ({self.why})"


def examples(chains: Iterable[str], tables: Set[str]) -> dict[str, str]:
    """The names of the enforcers that have such chains or tables of nf_tables, each with one of them."""
    chains, found = sorted(chains), {}
    for enforcer in ENFORCERS:
        theirs = [f"nft table {table}" for table in sorted(enforcer.tables & tables)]
        theirs += [f"chain {chain}" for chain in chains if enforcer.chains.fullmatch(chain)]
        if theirs:
            found[enforcer.name] = theirs[0]
    return found


def present(by_rules: Mapping[str, str]) -> Iterator[Presence]:
    """The enforcers on this node: by their chains and tables, which the caller has found, or by their links."""
    for enforcer in ENFORCERS:
        links = [f"link {name}" for name in enforcer.links if interface_index(name) is not None]
        traces = [*filter(None, [by_rules.get(enforcer.name)]), *links]
        if traces:
            port = open_port(enforcer)
            life = {None: (), "": ("it may have ended, since its port is closed",)}.get(port, (port,))
            yield Presence(enforcer, ", ".join((*traces, *life)), is_at_work=bool(port))


def open_port(enforcer: Enforcer) -> str | None:
    """Which port shows that the program is at work; "" if none does, None if that cannot be told."""
    listening = listening_ports() if enforcer.ports else None
    if listening is None:
        return None
    return next((f"{what} {port} is open" for port, what in enforcer.ports.items() if port in listening), "")


def check_enforcers(found: Iterable[Presence]) -> list[Finding]:
    """Whether a packet must pass another program's network policies as well. One that is at work is to be ended."""
    findings = [
        (failed if each.is_at_work else warning)(POLICIES, f"{each}: a packet must pass both", each.enforcer.way_out)
        for each in found
    ]
    return findings or [ok(POLICIES, "no other program here enforces network policies")]
