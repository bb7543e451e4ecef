"""What each command may find, as its functions for the terminal get it, with values that are as long as they may be."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from kroute.checks.finding import failed, ok, warning
from kroute.checks.other_proxies import KUBE_PROXY, OTHER_PROXIES
from kroute.cli.explain import print_explanations
from kroute.cli.fleet.agents import FleetNode
from kroute.cli.installation import findings_by
from kroute.cli.kubectl.printing import (
    Fleet,
    FleetVersions,
    NodeAnswer,
    NodeAnswers,
    print_answers,
    print_fleet,
    print_versions,
)
from kroute.cli.kubectl.top import Total, Totals, print_totals
from kroute.cli.migrate import print_hand_over, print_leftovers, print_outcome
from kroute.cli.plan import print_changes
from kroute.cli.policy import print_refused
from kroute.cli.show.live import RateList, RateRow, print_rates
from kroute.cli.show.policies import print_policies
from kroute.cli.show.routing import print_peers, print_pod_routes, print_routes
from kroute.cli.show.service import ConnectionView, EntryView, ServiceReport, VipView, print_report
from kroute.cli.show.table import print_services, print_snapshot
from kroute.cli.status import print_status
from kroute.cli.terminal.findings import Report, print_findings
from kroute.cli.terminal.screen import Screen
from kroute.firewall.backend import Choice
from kroute.firewall.sets import SetFill
from kroute.inspect import figures
from kroute.inspect.dry_run import PlannedChange, PlannedChanges
from kroute.inspect.explain import Client, Explanation, ExplanationList, Fate, RouteView, Verdict
from kroute.inspect.peers import AnnouncementView, PeerList, PeerView, RouteList
from kroute.inspect.pod_routes import PodRouteList, PodRouteView
from kroute.inspect.policies import IsolatedPod, PolicyGroup, PolicyGroupList, PolicyProblem
from kroute.inspect.refusals import RefusedPacket, RefusedPacketList
from kroute.inspect.snapshot import ProblemRow, RealServerRow, RealServerView, Snapshot, TrafficCounts, VirtualServerRow
from kroute.inspect.status import (
    AddressFill,
    AllocatorView,
    PolicyCounts,
    Served,
    Severity,
    Source,
    State,
    Status,
    StatusProblem,
    with_problems,
)
from kroute.migration.hand_over import HandOver
from kroute.migration.leftovers import Leftovers, TableLeftovers
from kroute.migration.take_over import Outcome
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.model.policy_plan import Direction
from kroute.planning.endpoint_reasons import EndpointView, FrontendView
from kroute.planning.policies.verdicts import Judgement, Ruling
from kroute.reconcile.comparison.virtual_servers import Condition
from kroute.settings import Settings
from tests.builders import service
from tests.unit.cli.clusters import get_of, kubeadm

IPV6 = "fd00:10:96:1234:5678:9abc:def0:1234"
LONG = "kube-prometheus-stack-with-a-long-name/kube-prometheus-stack-prometheus-node-exporter"


class Shown(NamedTuple):
    """What a command found, and its function that prints it."""

    found: Any
    draw: Callable[[Any, Screen], None]


VIRTUAL_SERVERS = [
    VirtualServerRow(
        *("default/web", "TCP", "10.96.0.10", 80, "rr", (), None, None, Condition.SERVING),
        [
            RealServerRow("10.244.1.11", 8080, 1, 1234567, 98765, Condition.SERVING),
            RealServerRow("10.244.2.12", 8080, 0, 3, 4, Condition.DRAINING),
        ],
        TrafficCounts(123456789, 2345678901, 2345678902, 1234567890123, 9876543210987),
    ),
    VirtualServerRow(
        *(LONG, "SCTP", IPV6, 65535, "mh", ("mh-fallback", "mh-port"), 10800, 128, Condition.MISSING),
        [RealServerRow(IPV6, 65535, 1, 0, 0, Condition.MISSING)],
    ),
    VirtualServerRow("kube-system/dns", "UDP", "10.96.0.53", 53, "rr", (), None, None, Condition.REFUSING, []),
]
PROBLEMS = [
    ProblemRow("default/web", "InvalidAnnotation", "kroute.io/scheduler=fastest is not one of rr, wrr, lc and wlc"),
    ProblemRow("", "NodeNotFound", "there is no Node node1"),
]
SNAPSHOT = Snapshot(
    "agent",
    VIRTUAL_SERVERS,
    PROBLEMS,
    [SetFill("KROUTE-CLUSTER-IP", 262_144, 524_288, 2_097_152), SetFill("KROUTE-VIP", 0, 1, 1)],
    Choice("nftables", "chosen since this kernel has nf_tables of both families, and nobody's rules stand in the way"),
)
FRONTEND = FrontendView(
    *("TCP", IPV6, 80, "http", "clusterIP", "Cluster", ""),
    [
        EndpointView(IPV6, 8080, "worker-1.europe-west1.example.internal", True, "ready"),
        EndpointView("fd00::2", 8080, None, False, "terminating, and does not serve any more"),
    ],
)
DENY = ["shop/default-deny", "shop/only-what-the-monitoring-of-the-platform-needs"]
JUDGEMENTS = [
    Judgement(
        *("2001:db8:1234:5678:9abc:def0:1234:5678", IPV6, 8080),
        [
            Ruling(Direction.EGRESS, "shop/client-7d4b9c", "node1", True, DENY[:1], ["shop/out egress[0]"]),
            Ruling(Direction.INGRESS, LONG, "node1", True, DENY, []),
        ],
    ),
    Judgement(
        *("2001:db8:1234:5678:9abc:def0:1234:5678", "fd00::2", 8080),
        [
            Ruling(Direction.EGRESS, "shop/client-7d4b9c", "node1", True, DENY[:1], ["shop/out egress[0]"]),
            Ruling(Direction.INGRESS, "shop/web-1", "worker-1.europe-west1.example.internal", False, [], []),
        ],
    ),
]
EXPLANATION = Explanation(
    *("TCP", IPV6, 80, "agent", "default/web", FRONTEND, True, RouteView(True, "kube-ipvs0", "fd00::1"), "wrr"),
    routers="do not learn it from this node: it is cordoned",
    real_servers=[RealServerView(IPV6, 8080, 1, 1234567, 4)],
    verdicts=[
        Verdict(Client("this node", "fd00::1", ""), Fate.SERVED, "no rule is against it", "masqueraded (by the mark)"),
        Verdict(
            Client("elsewhere", "2001:db8::1", "eth0"),
            Fate.DROPPED,
            "a load balancer's source ranges do not include the client, and its packets are dropped before the port",
            "",
        ),
        Verdict(
            Client("2001:db8:1234:5678:9abc:def0:1234:5678", "2001:db8:1234:5678:9abc:def0:1234:5678", "cni0"),
            Fate.DROPPED,
            "network policies drop it on the way to 1 of 3 real servers",
            "the client's address is kept",
            JUDGEMENTS,
            unjudged=1,
        ),
    ],
    differences=[f"real server [{IPV6}]:8080 has weight 7, should have 1"],
    problems=["InvalidPort: port 0 is not served"],
    scheduler_reason="implied by annotation kroute.io/slow-start, since nothing chooses a scheduler",
)
REPORT = ServiceReport(
    service(annotations={"kroute.io/scheduler": "rr"}, kind="NodePort", external_traffic_policy="Local"),
    [FRONTEND],
    VIRTUAL_SERVERS[:1],
    [VipView(IPV6, False, "fd00::1", None)],
    [EntryView("KROUTE-CLUSTER-IP", f"{IPV6},TCP,80", True), EntryView("KROUTE-VIP", IPV6, False)],
    [
        ConnectionView(f"10.244.1.{it % 21}", 40000 + it, "TCP", "10.96.0.10", 80, IPV6, 8080, "ESTABLISHED", 899)
        for it in range(40)
    ],
    ["InvalidPort: port 0 is not served"],
    scheduler="rr",
    scheduler_reason="by annotation kroute.io/scheduler",
)
CHAINS = [f"{direction.lower()}-e0f224449363e5f3bb17fec4b853ccd2" for direction in Direction]
POLICIES = PolicyGroupList(
    [
        PolicyGroup(
            *(CHAINS[1], Direction.EGRESS, "shop", ["default-deny"], 1, 0),
            [IsolatedPod("shop/web-7d4b9c", "10.244.1.11"), IsolatedPod("shop/web-7d4b9c", IPV6)],
        ),
        PolicyGroup(
            *(CHAINS[0], Direction.INGRESS, "shop", ["default-deny", "only-what-the-monitoring-needs"], 25, 12345678),
            [IsolatedPod("shop/web-7d4b9c", "10.244.1.11"), IsolatedPod(LONG, "10.244.1.12")],
        ),
    ],
    isolated_pods=1234,
    policies_with_problems=1,
    problems=[
        PolicyProblem(
            "shop/odd", "InvalidNetworkPolicy", "policyTypes 'Sideways' is not known and left out. Allowed: ..."
        )
    ],
)
PEERS = PeerList(
    [
        PeerView("192.0.2.1", 65000, "router", "Established", "13:31:15.082", 1234, 0, "", "Up"),
        PeerView(IPV6, 4294967294, "node", "Active", "2026-11-28", 0, 0, "Socket: Connection refused"),
    ],
    "it is cordoned",
)
ROUTES = RouteList(
    [AnnouncementView("203.0.113.7", ["default/web", LONG], True), AnnouncementView(IPV6, ["default/api"], False)]
)
POD_ROUTES = PodRouteList(
    [
        PodRouteView("10.244.1.0/24", "node1", "direct", "192.0.2.1", True),
        PodRouteView("fd00:10:244:2::/64", LONG, "tunnel", "kroute-abcdefgh", False),
    ],
    ["podCIDR '10.0.0.0/8' of Node node9 is not in --cluster-cidr (10.244.0.0/16). This node has no route to them."],
)
CHANGES = PlannedChanges(
    [
        PlannedChange("default/web", "address", "add", f"bind {IPV6} (kube-ipvs0)"),
        PlannedChange(LONG, "set entry", "delete", f"delete {IPV6},TCP,65535,{IPV6} from set KROUTE-HAIRPIN-IPV6"),
        PlannedChange("", "rules", "edit", "write the IPv4 rules"),
    ],
    ["default/web: InvalidPort: port 0 is not served"],
)
FINDINGS = Report(
    False,
    [
        ok("backend", "nftables: chosen since this kernel has nf_tables of both families"),
        warning("br_netfilter", "IPv6 datagrams above the MTU from pods on cbr0 are lost", "run `sysctl -w a.b.c=0`"),
        failed(
            "capabilities",
            "CAP_NET_ADMIN is missing (IPVS, addresses, routes, rules, sets and sysctls)",
            "run kroute as root, or add NET_ADMIN to its container's capabilities",
        ),
    ],
)
KEYS = tuple(VirtualServerKey(Protocol.TCP, IPV6, port) for port in range(80, 85))
LEFTOVERS = Leftovers(
    *("kube-proxy", "kube-ipvs0", (IPV6,), (), KEYS, KEYS[:1], KEYS[1:2], ()),
    tables=(TableLeftovers("IPv4", "nat", ("KUBE-SERVICES", "KUBE-MARK-MASQ"), ("-A PREROUTING -j KUBE-SERVICES",)),),
    sets=("KUBE-CLUSTER-IP",),
    marks=(),
    policy_rules=(),
    routes=(),
    sysctls={"net.ipv4.vs.conntrack": "1"},
    unseen=(),
)
PROXY = OTHER_PROXIES[KUBE_PROXY]
SETTINGS = Settings(node_name="node1")

STATUS = with_problems(
    Status(
        node="node1",
        state=State.READY,
        version="1.2.3",
        started="2026-01-01T00:00:00Z",
        firewall="nftables",
        served=Served(12345, 123456, 1234567, 1234, 0, 0, 1234567, 98765),
        pending=3,
        last_resync="2026-01-01T01:00:00Z",
        last_look="2026-01-01T01:10:30Z",
        source=Source(
            "api",
            connected=True,
            objects={"EndpointSlice": 23456, "Service": 12345, "Node": 1234},
            server="https://[2001:db8:1234:5678:9abc:def0:1234:5678]:6443",
        ),
        policies=PolicyCounts(123, 1),
        allocator=AllocatorView(
            "node1", is_here=True, waiting=12, addresses={"IPv4": AddressFill(254, 254), "IPv6": AddressFill(9, 65536)}
        ),
    ),
    [
        StatusProblem(Severity.WARNING, LONG, "InvalidAnnotation", f"it is wrong for {IPV6}", "correct the Service"),
        StatusProblem(Severity.FAIL, "", "ApiUnreachable", "the API server does not answer", "run `kroute check`"),
    ],
)
FLEET = Fleet(
    [
        FleetNode("node1", "kroute-abcde", "pods/exec", STATUS, "", []),
        FleetNode("node2", "kroute-fghij", "pods/proxy", STATUS, "", ["version 1.2.2, others have 1.2.3"]),
        FleetNode("node3", "kroute-klmno", "", None, "no answer within 15 s", []),
    ],
    ["1 of 4 nodes without a pod of DaemonSet kroute: `kubectl -n kube-system describe daemonset kroute` says why"],
)

REFUSED = RefusedPacketList(
    [
        RefusedPacket(
            *("2026-11-28T10:58:37.123Z", Direction.INGRESS, "TCP", IPV6, 65535, LONG, IPV6, 65535, LONG, LONG),
            *([f"policy-{number}" for number in range(20)], 123, "ingress-e0f224449363e5f3bb17fec4b853ccd2", 1),
        ),
        RefusedPacket(
            *("2026-11-28T10:58:37.123Z", Direction.EGRESS, "ICMP", "10.0.0.1", None, "shop/web", "192.0.2.1", None),
            *("", "shop", ["out"], 1, "egress-5e9b6f6b3d1a6cbe1c5a2b7a4d0f9e13", 2),
        ),
    ],
    newest=2,
    left_out=7,
)

TOTALS = [
    Total("worker-1.europe-west1.example.internal", 1, 1234567, 98765, 12345.6, 1234567.8, 123456789.0, 98765432.1),
    Total(LONG, 123, 1234567, 98765, 12345.6, 1234567.8, 123456789.0, 98765432.1),
    Total("default/web", 3, 7, 0, 0.5, 12.0, 1500.0, 0.0),
]

VIEWS = {
    "status": Shown(STATUS, print_status),
    "kubectl kroute status": Shown(FLEET, print_fleet),
    "kubectl kroute show": Shown(
        NodeAnswers(
            [
                NodeAnswer("node1", 0, lines=["Service  Virtual server", f"web      {IPV6}"]),
                NodeAnswer("node2", error="its pod is Pending"),
            ]
        ),
        print_answers,
    ),
    "kubectl kroute top nodes": Shown(Totals("nodes", TOTALS[:1], {"node3": "no answer within 15 s"}), print_totals),
    "kubectl kroute top services": Shown(Totals("services", TOTALS[1:]), print_totals),
    "kubectl kroute version": Shown(
        FleetVersions("1.2.3", {"1.2.3": ["node1", "node2"], "1.2.2": ["node3"]}, {"node4": "no answer within 15 s"}),
        print_versions,
    ),
    "show": Shown(SNAPSHOT, print_snapshot),
    "show services": Shown(figures.list_services(SNAPSHOT), print_services),
    "show service": Shown(REPORT, print_report),
    "show policies": Shown(POLICIES, print_policies),
    "show peers": Shown(PEERS, print_peers),
    "show routes": Shown(ROUTES, print_routes),
    "show pod-routes": Shown(POD_ROUTES, print_pod_routes),
    "show -w": Shown(
        RateList([RateRow(LONG, "TCP", IPV6, 65535, 123, 1234567, 98765, 12345.6, 1234567.8, 123456789.0, 98765432.1)]),
        print_rates,
    ),
    "policy watch": Shown(REFUSED, print_refused),
    "explain": Shown(ExplanationList([EXPLANATION, EXPLANATION]), print_explanations),
    "plan": Shown(CHANGES, print_changes),
    "check": Shown(FINDINGS, print_findings),
    "check --cluster": Shown(Report(True, asyncio.run(findings_by(get_of(kubeadm()), "kube-system"))), print_findings),
    "migrate --from": Shown(LEFTOVERS, lambda found, screen: print_leftovers(PROXY, found, screen)),
    "migrate --to": Shown(
        HandOver(True, (IPV6,), (IPV6,), (IPV6,)), lambda found, screen: print_hand_over(PROXY, SETTINGS, found, screen)
    ),
    "migrate --take-over": Shown(
        Outcome(
            [f"delete chain KUBE-SERVICES of table nat, and everything that it has for {IPV6}"], [], "start kroute"
        ),
        print_outcome,
    ),
}
