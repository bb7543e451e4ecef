"""`kroute explain` and `kroute show service` say what goes on in a tunnel, what does not, and why."""

import io
from contextlib import redirect_stdout

import pytest

from kroute.base.forwarding import TUNNEL
from kroute.cli.explain import print_explanations
from kroute.cli.terminal.screen import Screen
from kroute.firewall.iptables.rules import family_rules
from kroute.inspect.explain import AppliedState, Client, Explanation, ExplanationList, Fate, judge
from kroute.kernel.ipvs.objects import RealServerState, VirtualServerOptions, VirtualServerState
from kroute.kernel.net.routes import Way
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts, NodeInterfaces
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.planning.features.direct_return import forwarding_of
from kroute.planning.frontends import frontends_of
from kroute.reconcile.comparison.vips import delivery_differences
from kroute.settings import Settings
from tests.builders import NODE, endpoint, endpoint_slice, facts, plan_service, read, service, settings

VIP = "198.51.100.7"
KEY = VirtualServerKey(Protocol.TCP, VIP, 80)
SETTINGS = Settings(node_name=NODE, firewall="iptables", direct_return=True)
FACTS = NodeFacts(NODE, ipv4="192.168.1.5", interfaces=NodeInterfaces(frozenset({"192.168.1.5"})))
AWAY = Way(False, "eth0", "192.168.1.5")
SERVER = VirtualServerState(VirtualServerOptions(), {("10.244.1.1", 80): RealServerState(1, method=TUNNEL)})
OUTSIDE, ITSELF = Client("elsewhere", "192.0.2.1", "eth0"), Client("this node", "192.168.1.5", "")


def said(*, on: bool, port: int = 80) -> dict[str, str]:
    """What is said of each address of a Service that asks for direct return."""
    asks = service(external_ips=(VIP,), annotations={"kroute.io/direct-return": "tunnel"})
    slices = read(endpoint_slice("web-1", endpoint("10.244.1.1", on=NODE), ports=(port,)))
    given = settings(direct_return=on)
    plan = plan_service(asks, slices, facts(), given)
    return {it.key.address: forwarding_of(it, plan) for it in frontends_of(asks, facts(), given).served}


def test_what_is_answered_directly_is_named_and_a_cluster_ip_is_as_ever() -> None:
    assert said(on=True) == {
        "10.96.0.10": "",
        VIP: "in a tunnel to the pod, which answers the client itself (annotation kroute.io/direct-return)",
    }


@pytest.mark.parametrize(
    ("on", "port", "why"),
    [
        (False, 80, "this node's agent runs without --direct-return"),
        (True, 8080, f"{VIP}:80 leads to port 8080, and a tunnel translates no port"),
    ],
)
def test_what_is_translated_although_it_was_asked_for_has_the_reason(on: bool, port: int, why: str) -> None:
    text = said(on=on, port=port)[VIP]
    assert text.startswith("by address translation, not in a tunnel: ")
    assert why.split(" ", 1)[1] in text


def applied(*, steered: bool = True, route: Way | None = AWAY) -> AppliedState:
    return AppliedState(set(), {}, SERVER, route, is_steered=steered)


@pytest.mark.parametrize(
    ("client", "state", "fate"),
    [
        (OUTSIDE, applied(), Fate.SERVED),
        (OUTSIDE, applied(route=None), Fate.SERVED),
        (ITSELF, applied(), Fate.SERVED),
        (ITSELF, applied(route=None), Fate.REFUSED),
        (OUTSIDE, applied(steered=False), Fate.PASSED_ON),
    ],
    ids=["outside", "outside, no route", "the node", "the node, no route", "not delivered"],
)
def test_an_address_on_no_link_is_judged_by_its_delivery(client: Client, state: AppliedState, fate: Fate) -> None:
    verdict = judge(KEY, client, state, family_rules(SETTINGS, Family.IPV4, FACTS))
    assert verdict.fate is fate
    assert ("in a tunnel" in verdict.masquerade) == (fate is Fate.SERVED)


def test_delivery_that_differs_from_the_plan_is_told() -> None:
    assert delivery_differences(VIP, [VIP], is_steered=True) == []
    assert delivery_differences(VIP, [], is_steered=False) == []
    assert "are not delivered" in delivery_differences(VIP, [VIP], is_steered=False)[0]
    assert "is not planned" in delivery_differences(VIP, [], is_steered=True)[0]


def test_the_address_is_printed_as_one_on_no_link() -> None:
    explained = Explanation("TCP", VIP, 80, "kernel", "", None, False, None, "rr", [], [], [], [], is_steered=True)
    with redirect_stdout(text := io.StringIO()):
        print_explanations(ExplanationList([explained]), Screen())
    assert "on no link, delivered to this node by direct return" in text.getvalue()
