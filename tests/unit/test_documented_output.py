"""What the pages show of a command's output is what the command prints, for the values in it."""

import io
import textwrap
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import msgspec
import pytest

from kroute import __version__
from kroute.cli.explain import print_explanations
from kroute.cli.fleet.agents import FleetNode
from kroute.cli.kubectl.printing import Fleet, print_fleet
from kroute.cli.policy import print_refused
from kroute.cli.show.policies import print_policies
from kroute.cli.status import print_status
from kroute.cli.terminal.findings import print_findings
from kroute.cli.terminal.screen import Screen
from kroute.firewall.reasons import IN_WORDS, OTHERS_TO_CLUSTER_IP
from kroute.firewall.reasons import SERVED as HAS_PORT
from kroute.inspect.explain import Client, Explanation, ExplanationList, Fate, RouteView, Verdict
from kroute.inspect.policies import IsolatedPod, PolicyGroup, PolicyGroupList, PolicyProblem
from kroute.inspect.refusals import RefusedPacket, RefusedPacketList
from kroute.inspect.snapshot import RealServerView
from kroute.inspect.status import Served, Source, State, Status, plan_problem, with_problems
from kroute.model.policy_plan import Direction
from kroute.planning.endpoint_reasons import EndpointView, FrontendView
from kroute.planning.features import apply_annotations
from kroute.planning.options import Options
from kroute.planning.policies.verdicts import Judgement, Ruling
from tests.unit.cli.terminal_views import VIEWS
from tests.unit.documented_commands import ROOT, blocks

[BAD_SCHEDULER] = apply_annotations(Options(), {"kube-router.io/service.scheduler": "fast"})[1]
STATUS = with_problems(
    Status(
        node="node1",
        state=State.READY,
        version=__version__,
        started="2026-11-22T18:00:00Z",
        firewall="nftables",
        served=Served(12, 30, 71, 2, 0, 0, 103, 20),
        last_resync="2026-11-22T19:12:31Z",
        last_look="2026-11-22T19:20:01Z",
        source=Source(
            "api",
            connected=True,
            objects={"Service": 12, "EndpointSlice": 17, "Node": 3},
            server="https://192.168.123.2:6443",
        ),
    ),
    [plan_problem("default/web", BAD_SCHEDULER)],
)
FRONTEND = FrontendView(
    *("TCP", "10.96.0.10", 80, "", "clusterIP", "Cluster", ""),
    [
        EndpointView("172.20.166.2", 8080, "node1", True, "ready"),
        EndpointView("172.20.104.2", 8080, "node2", False, "not ready"),
    ],
)
EXPLANATION = Explanation(
    *("TCP", "10.96.0.10", 80, "agent", "default/web"),
    FRONTEND,
    *(True, RouteView(True, "lo", "192.168.123.250"), "rr"),
    scheduler_reason="the default",
    real_servers=[RealServerView("172.20.166.2", 8080, 1, 3, 0)],
    verdicts=[
        Verdict(
            Client("192.168.123.50", "192.168.123.50", "eth0"),
            Fate.SERVED,
            IN_WORDS[HAS_PORT],
            f"masqueraded ({IN_WORDS[OTHERS_TO_CLUSTER_IP]})",
        )
    ],
    differences=[],
    problems=[],
)

SHOP_OUT = Ruling(Direction.EGRESS, "shop/web-1", "node1", True, ["shop/out"], [])
JUDGED = msgspec.structs.replace(
    EXPLANATION,
    frontend=msgspec.structs.replace(
        FRONTEND,
        endpoints=[
            EndpointView("10.244.1.7", 8080, "node1", True, "ready"),
            EndpointView("10.244.2.8", 8080, "node2", True, "ready"),
        ],
    ),
    real_servers=[RealServerView("10.244.1.7", 8080, 1, 0, 0), RealServerView("10.244.2.8", 8080, 1, 3, 0)],
    verdicts=[
        Verdict(
            Client("10.244.1.5", "10.244.1.5", "cni0"),
            Fate.DROPPED,
            "network policies drop it on the way to 1 of 2 real servers",
            "the client's address is kept",
            [
                Judgement(
                    *("10.244.1.5", "10.244.1.7", 8080),
                    [SHOP_OUT, Ruling(Direction.INGRESS, "default/web-6d8f", "node1", True, [], [])],
                ),
                Judgement(
                    *("10.244.1.5", "10.244.2.8", 8080),
                    [
                        msgspec.structs.replace(SHOP_OUT, allowed_by=["shop/out egress[0]"]),
                        Ruling(Direction.INGRESS, "default/web-9k2p", "node2", False, [], []),
                    ],
                ),
            ],
        )
    ],
)
POLICIES = PolicyGroupList(
    [
        PolicyGroup(
            *("egress-5e9b6f6b3d1a6cbe1c5a2b7a4d0f9e13", Direction.EGRESS, "shop", ["out"], 1, 0),
            [IsolatedPod("shop/web-1", "10.244.1.5")],
        ),
        PolicyGroup(
            *("ingress-e0f224449363e5f3bb17fec4b853ccd2", Direction.INGRESS, "shop", ["clients", "deny"], 2, 17),
            [IsolatedPod("shop/web-1", "10.244.1.5")],
        ),
    ],
    isolated_pods=1,
    policies_with_problems=1,
    problems=[
        PolicyProblem(
            *("shop/old", "InvalidNetworkPolicy"),
            "policyTypes 'Sideways' is not known and left out. Allowed: Ingress and Egress.",
        )
    ],
)

WEB_1 = "10.244.1.5", 53124, "shop/web-1"
REFUSED = RefusedPacketList(
    [
        RefusedPacket(
            *("2026-11-28T10:58:37.123Z", Direction.INGRESS, "TCP", "10.244.2.8", 40112, "shop/other"),
            *("10.244.1.5", 8080, "shop/web-1", "shop", ["clients", "deny"], 2, POLICIES.items[1].name, 1),
        ),
        RefusedPacket(
            *("2026-11-28T10:58:39.027Z", Direction.EGRESS, "UDP", *WEB_1, "198.51.100.7", 53, ""),
            *("shop", ["out"], 1, POLICIES.items[0].name, 2),
        ),
    ],
    newest=2,
    left_out=0,
)

MISSED = "TCP 10.96.0.10:80 (default/web) lacks the real servers 10.244.2.5:8080=1"


def node(name: str, real_servers: int, *differences: str) -> FleetNode:
    status = Status(
        node=name,
        state=State.READY,
        version=__version__,
        firewall="nftables",
        served=Served(12, 30, real_servers),
    )
    return FleetNode(name, f"kroute-{name}", "pods/exec", status, "", list(differences))


FLEET = Fleet([node("node1", 71), node("node2", 71), node("node3", 70, MISSED)], [])

SHOWN: dict[tuple[str, str], tuple[Any, Callable[[Any, Screen], None]]] = {
    ("operate.md", "# kroute status"): (STATUS, print_status),
    ("operate.md", "# kroute explain"): (ExplanationList([EXPLANATION]), print_explanations),
    ("network-policies.md", "# kroute show policies"): (POLICIES, print_policies),
    ("network-policies.md", "# kroute explain"): (ExplanationList([JUDGED]), print_explanations),
    ("network-policies.md", "# kroute policy watch"): (REFUSED, print_refused),
    ("kubectl.md", "$ kubectl kroute status"): (FLEET, print_fleet),
    ("quickstart.md", "$ kubectl kroute check"): (VIEWS["check --cluster"].found, print_findings),
}


@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_the_page_shows_what_the_command_prints(page: str, command: str) -> None:
    [block] = [it for it in blocks((ROOT / "docs" / page).read_text()) if it.strip().startswith(command)]
    found, draw = SHOWN[page, command]
    written = io.StringIO()
    with redirect_stdout(written):
        draw(found, Screen(116))
    assert textwrap.dedent(block).strip().splitlines()[1:] == written.getvalue().splitlines()
