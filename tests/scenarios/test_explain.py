"""`kroute explain` predicts what happens to a packet, and says why an endpoint serves or does not."""

import re
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

from kroute.firewall import reasons
from kroute.model.plan import AddressSet, SetEntry
from tests.lab.allocation import Addresses
from tests.lab.answers import ask_json
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.firewall import NFTABLES, backend
from tests.lab.firewall_state import delete_entry, entries, set_name
from tests.lab.hosts import Host
from tests.lab.nft_trace import Trace, traced
from tests.lab.objects import Endpoint, endpoint_slices, service
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import FAMILIES, Family, World, routed
from tests.scenarios.refusals import unlimited_errors

CLUSTER_CIDRS = f"{POD_RANGE},{POD_RANGE6}"
WEB, EMPTY, LOCAL, LIMITED, ITSELF = (
    Addresses(f"10.254.0.{number}", f"fd00:10:254::{number}") for number in (20, 21, 22, 23, 24)
)
BALANCED = Addresses("203.0.113.11", "2001:db8::11")
COMMENTS = {
    reasons.IN_WORDS.get(value, value): value
    for name, value in vars(reasons).items()
    if name.isupper() and isinstance(value, str)
}
"""The comment of each rule, by the words in which explain gives it."""
TRACES = backend() == NFTABLES
"""Whether the kernel tells which rules a packet meets, and kroute when its sets are changed."""
SHOWN = {reasons.OTHERS_TO_CLUSTER_IP, reasons.TO_EXTERNAL, reasons.HAIRPIN, reasons.HOST_PORT, reasons.NO_ENDPOINT,
         reasons.NO_LOCAL, reasons.OUTSIDE_RANGES, reasons.SERVED}  # fmt: skip
ANSWERS_WITHIN, AT_LAST = 2.0, 60.0
"""Seconds without an answer after which a call is taken to be dropped: one that is to be dropped, and any other."""
SERVED, REFUSED, DROPPED, HOST = "served", "refused", "dropped", "left to the node"


class Case(NamedTuple):
    """A call on node1. `kept`: whether the pod sees the caller's address (None: that address is the node's anyway)."""

    name: str
    caller: Host
    address: str
    port: int
    fate: str
    kept: bool | None = None
    udp: bool = False


def cases(world: World, family: Family) -> list[Case]:
    node1, client, pod = world.cluster.node("node1"), world.cluster.client, world.visitor
    node, web = family.of(node1), family.of(WEB)
    return [
        Case("a pod, a ClusterIP", pod, web, 8080, SERVED, kept=True),
        Case("a pod, a ClusterIP, by UDP", pod, web, 5353, SERVED, kept=True, udp=True),
        Case("this node, a ClusterIP", node1, web, 8080, SERVED),
        Case("outside, a ClusterIP", client, web, 8080, SERVED, kept=False),
        Case("a pod that is sent to itself", world.web[0], family.of(ITSELF), 8080, SERVED, kept=False),
        Case("outside, a port of the host on a VIP", client, web, 22, REFUSED),
        Case("a pod, a port without endpoints", pod, family.of(EMPTY), 8080, REFUSED),
        Case("this node, a port without endpoints", node1, family.of(EMPTY), 8080, REFUSED),
        Case("outside, a node port", client, node, 30080, SERVED, kept=False),
        Case("a pod, a node port", pod, node, 30080, SERVED, kept=False),
        Case("outside, policy Local and none here", client, node, 30081, REFUSED),
        Case("a pod, policy Local and none here", pod, node, 30081, SERVED, kept=True),
        Case("this node, policy Local and none here", node1, node, 30081, SERVED),
        Case("outside, not in the source ranges", client, family.of(BALANCED), 8080, DROPPED),
        Case("a pod in the source ranges", pod, family.of(BALANCED), 8080, SERVED, kept=False),
        Case("this node, not in the source ranges", node1, family.of(BALANCED), 8080, DROPPED),
        Case("outside, a port of nobody's", client, node, 30099, HOST),
    ]


def objects(world: World) -> list[dict[str, Any]]:
    ranges = [f"{world.visitor.ip}/32", f"{world.visitor.ip6}/128"]
    ports = {"TCP": 8080, "UDP": 5353}
    return [
        service("web", *WEB, ports=ports, node_ports={"TCP": 30080, "UDP": 30053}),
        *endpoint_slices("web", world.web, ports),
        service("empty", *EMPTY),
        service("local", *LOCAL, node_ports={"TCP": 30081}, externalTrafficPolicy="Local"),
        *endpoint_slices("local", world.web[2:]),
        service("limited", *LIMITED, node_ports={"TCP": 30082}, ingress=BALANCED, loadBalancerSourceRanges=ranges),
        *endpoint_slices("limited", world.web),
        service("itself", *ITSELF),
        *endpoint_slices("itself", world.web[:1]),
    ]


async def observed(case: Case, family: Family) -> tuple[str, bool | None]:
    """Make the call and return its fate. To the client, a port of the host without a listener looks refused, too."""
    ask = case.caller.udp if case.udp else case.caller.http
    try:
        answer = await ask(case.address, case.port, timeout=ANSWERS_WITHIN if case.fate == DROPPED else AT_LAST)
    except (TimeoutError, PermissionError):
        return DROPPED, None
    except ConnectionRefusedError:
        return (HOST if case.fate == HOST else REFUSED), None
    return SERVED, None if case.kept is None else answer.peer == family.of(case.caller)


class Explained(NamedTuple):
    """What `kroute explain` says of a call. `reasons` are the comments of the rules that it gives as reasons."""

    fate: str
    kept: bool | None
    reasons: list[str]


async def explained(case: Case, world: World, family: Family) -> Explained:
    host = f"[{case.address}]" if ":" in case.address else case.address
    question = f"{host}:{case.port}{'/udp' if case.udp else ''}"
    code, said = await ask_json(world.cluster.node("node1"), "explain", question, "--from", family.of(case.caller))
    [said] = said["items"]
    [verdict] = said["verdicts"]
    assert said["differences"] == []
    assert said["source"] == "agent"
    assert code == {SERVED: 0, HOST: 4}.get(verdict["fate"], 3), said
    masquerade = verdict["masquerade"]
    why = [verdict["why"].partition(" (")[0], *re.findall(r"\((.*)\)", masquerade)]
    given = [COMMENTS[it] for it in why if it in COMMENTS]
    if verdict["fate"] != SERVED or case.kept is None:
        return Explained(verdict["fate"], None, given)
    return Explained(SERVED, masquerade.startswith("the client's address is kept"), given)


def has_shown(trace: Trace, said: Explained) -> None:
    """Assert that the kernel has shown the rules that explain names; one that ends a packet's way, as the last one."""
    ways = [[comment for comment in way if comment != reasons.REFUSED] for way in trace.ways()]
    assert set(said.reasons) <= {comment for way in ways for comment in way}, (said, ways)
    if said.fate in {REFUSED, DROPPED} and said.reasons:
        assert any(way[-1:] == said.reasons[:1] for way in ways), (said, ways)


async def test_a_verdict_is_what_becomes_of_a_real_call(world: World, deployment: Deployment, family: Family) -> None:
    node1, client = world.cluster.node("node1"), world.cluster.client
    deployment.apply(*objects(world))
    await deployment.start("--cluster-cidr", CLUSTER_CIDRS, nodes=("node1",))
    found: dict[str, tuple[object, object]] = {}
    shown: set[str] = set()
    with unlimited_errors(world.nodes), traced(node1, family) if TRACES else nullcontext() as trace:
        for case in cases(world, family):
            if trace is not None:
                trace.forget()
            is_vip = case.address != family.of(node1)
            if case.caller is client and is_vip:
                with routed(client, case.address, family.of(node1)):
                    real = await observed(case, family)
            else:
                real = await observed(case, family)
            said = await explained(case, world, family)
            found[case.name] = (real, said[:2])
            if trace is not None:
                await eventually(partial(has_shown, trace, said))
                shown |= set(said.reasons)
    expected = {case.name: ((case.fate, case.kept), (case.fate, case.kept)) for case in cases(world, family)}
    assert found == expected
    assert not TRACES or shown >= SHOWN


async def test_each_endpoint_has_its_reason(world: World, deployment: Deployment) -> None:
    ready, not_ready, leaving = world.web
    deployment.apply(
        service("web", *WEB),
        *endpoint_slices(
            "web",
            [
                Endpoint(ready, {"ready": True}),
                Endpoint(not_ready, {"ready": False}),
                Endpoint(leaving, {"ready": False, "serving": True, "terminating": True}),
            ],
        ),
    )
    await deployment.start(nodes=("node1",))
    code, said = await ask_json(world.cluster.node("node1"), "explain", f"{WEB.ip}:8080")
    assert code == 0
    [said] = said["items"]
    assert said["service"] == "default/web"
    reasons = {it["address"]: (it["serves"], it["reason"]) for it in said["frontend"]["endpoints"]}
    assert reasons == {
        ready.ip: (True, "ready"),
        not_ready.ip: (False, "not ready"),
        leaving.ip: (False, "terminating"),
    }
    assert [it["address"] for it in said["realServers"]] == [ready.ip]
    for name, meant in (("default/web", WEB), ("web.default:8080", WEB)):
        code, found = await ask_json(world.cluster.node("node1"), "explain", name)
        assert code == 0
        assert {it["address"] for it in found["items"]} == {meant.ip, meant.ip6}
        assert {it["service"] for it in found["items"]} == {"default/web"}


async def test_what_differs_from_the_plan_is_named(world: World, deployment: Deployment) -> None:
    """The agent repairs addresses at once and the rest at its next resync, which must not happen during this test.

    nf_tables tells it that a set was changed, so that is repaired at once, too.
    """
    node1, family = world.cluster.node("node1"), FAMILIES[0]
    deployment.apply(service("web", *WEB), *endpoint_slices("web", world.web[:2]))
    await deployment.start("--resync-period", "1h", nodes=("node1",))
    gone, entry = f"{world.web[0].ip}:8080", SetEntry(AddressSet.CLUSTER_IP, (WEB.ip, 6, 8080))
    node1.run("ipvsadm", "-d", "-t", family.at(WEB.ip, 8080), "-r", gone)
    delete_entry(node1, entry)
    if TRACES:
        await eventually(lambda: is_there(node1, entry))
    code, said = await ask_json(node1, "explain", f"{WEB.ip}:8080", "--from", world.visitor.ip)
    assert code == 5
    [said] = said["items"]
    assert said["differences"] == [
        f"real server {gone} is missing",
        *([] if TRACES else [f"entry {WEB.ip},TCP,8080 of set {set_name(entry)} is missing"]),
    ]
    [verdict] = said["verdicts"]
    assert verdict["fate"] == (SERVED if TRACES else REFUSED)
    assert await observed(Case("", world.visitor, WEB.ip, 8080, verdict["fate"]), family) == (verdict["fate"], None)


def is_there(node: Node, entry: SetEntry) -> None:
    assert entry in entries(node)


async def test_without_an_agent_it_is_by_the_kernel(world: World, deployment: Deployment) -> None:
    node1 = world.cluster.node("node1")
    deployment.apply(service("web", *WEB), *endpoint_slices("web", world.web))
    await deployment.start("--cluster-cidr", CLUSTER_CIDRS, nodes=("node1",))
    await deployment.stop()
    code, said = await ask_json(node1, "explain", f"{WEB.ip}:8080", "--cluster-cidr", CLUSTER_CIDRS)
    assert code == 0
    [said] = said["items"]
    assert (said["source"], said["service"]) == ("kernel", "")
    fates = {it["client"]["name"]: (it["fate"], it["masquerade"].partition(" (")[0]) for it in said["verdicts"]}
    kept = (SERVED, "the client's address is kept")
    assert fates == {
        "this node": (SERVED, "masqueraded"),
        "a pod": kept,
        "elsewhere": (SERVED, "masqueraded"),
    }
