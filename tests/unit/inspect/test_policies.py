"""The agent says whom network policies isolate, what these have refused, and what they say of a connection."""

import asyncio
import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import msgspec
import pytest

from kroute.base.histogram import Histogram
from kroute.cli.explain import exit_code as explained_code
from kroute.cli.explain import print_explanations
from kroute.cli.show import policies as show_policies
from kroute.cli.terminal.output import DONE, NO_AGENT, NOT_SERVED, UNKNOWN
from kroute.cli.terminal.screen import Screen
from kroute.firewall.nftables.policy_rules import Group
from kroute.inspect import agent_socket, policies
from kroute.inspect.explain import SOME_POD, Client, Explanation, ExplanationList, Fate, Verdict, judged
from kroute.inspect.policies import Enforced, IsolatedPod, PodView, PolicyGroup
from kroute.inspect.snapshot import RealServerView
from kroute.kernel.ipvs.objects import RealServerKey
from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol
from kroute.model.policy_plan import Direction, GroupKey
from kroute.planning.policies.verdicts import MOST_NAMES, Judgement
from tests.builders import settings
from tests.unit.command_line import exit_code
from tests.unit.planning.policies.cluster import (
    Cluster,
    block,
    egress,
    ingress,
    namespace,
    pod,
    pods_with,
    policy,
    port,
)

WEB = pod("web", "10.0.0.1", "fd00::1", app="web", ports=[port("http", 80)])
OTHER = pod("other", "10.0.0.2", app="other")
API = pod("api", "10.0.1.1", on="node2", app="api")
CLIENTS = ingress(pods_with(app="api"), name="clients", selector={"matchLabels": {"app": "web"}})
OUT = egress(pods_with(app="api"), name="out", selector={"matchLabels": {"app": "web"}})
ODD = policy("odd", policyTypes=["Sideways"], selector={"matchLabels": {"app": "nobody"}})
THIS_NODE, ELSEWHERE = Client("this node", "10.0.0.254", ""), Client("elsewhere", "192.0.2.1", "eth0")
API_CLIENT = Client("10.0.1.1", "10.0.1.1", "eth0")
LAG = Histogram((1.0,))


class Refusals:
    """Stands in for PolicyTables, which tests/scenarios/test_network_policies.py asks for what was refused."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts

    def group_name(self, key: GroupKey) -> str:
        return Group.of(key).chain

    async def refused(self) -> Mapping[str, int]:
        return self.counts


def chain(made: Cluster, direction: Direction, address: str = "10.0.0.1") -> str:
    [key] = made.catalog.pods[address].of(direction)
    return Group.of(key).chain


def cluster(*items: dict[str, object]) -> Cluster:
    return Cluster(namespace("shop"), WEB, OTHER, API, *items)


async def test_each_group_has_its_pods_its_policies_and_what_was_refused() -> None:
    made = cluster(CLIENTS, OUT, ODD)
    names = {direction: chain(made, direction) for direction in Direction}
    found = await policies.groups_of(Enforced(made.catalog, Refusals(**{names[Direction.INGRESS]: 17}), LAG))
    pods = [IsolatedPod("shop/web", "10.0.0.1"), IsolatedPod("shop/web", "fd00::1")]
    assert found.items == [
        PolicyGroup(names[Direction.EGRESS], Direction.EGRESS, "shop", ["out"], 1, 0, pods),
        PolicyGroup(names[Direction.INGRESS], Direction.INGRESS, "shop", ["clients"], 1, 17, pods),
    ]
    assert (found.isolated_pods, found.policies_with_problems) == (1, 1)
    assert [(it.policy, it.reason) for it in found.problems] == [("shop/odd", "InvalidNetworkPolicy")]


async def test_a_list_is_bounded_and_its_counts_are_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "MOST_LISTED", 2)
    deny = [policy(f"deny-{number:02}") for number in range(MOST_NAMES + 5)]
    made = cluster(
        *deny, CLIENTS, OUT, *(ODD | {"metadata": {"name": f"o{it}", "namespace": "shop"}} for it in range(3))
    )
    found = await policies.groups_of(Enforced(made.catalog, Refusals(), LAG))
    assert (len(found.items), sum(len(group.pods) for group in found.items), len(found.problems)) == (2, 2, 2)
    assert (found.isolated_pods, found.policies_with_problems) == (2, 3)
    [denied] = [group for group in found.items if group.direction is Direction.INGRESS]
    assert (len(denied.policies), denied.policies_total >= len(deny)) == (MOST_NAMES, True)


async def test_what_is_shown_is_chosen_by_pod_policy_or_address() -> None:
    made = cluster(policy("deny"), OUT, ODD)
    found = await policies.groups_of(Enforced(made.catalog, Refusals(), LAG))

    def shown(text: str) -> tuple[list[tuple[str, str]], int]:
        some = show_policies.narrowed(found, text)
        return [(group.direction, it.address) for group in some.items for it in group.pods], len(some.problems)

    everything = [("Egress", "10.0.0.1"), ("Egress", "fd00::1"), ("Ingress", "10.0.0.1")]
    assert shown("") == ([*everything, ("Ingress", "10.0.0.2"), ("Ingress", "fd00::1")], 1)
    assert shown("shop/out") == (everything[:2], 0)
    assert shown("other") == ([("Ingress", "10.0.0.2")], 0)
    assert shown("fd00") == ([("Egress", "fd00::1"), ("Ingress", "fd00::1")], 0)
    assert shown("odd") == ([], 1)


async def test_refused_packets_are_by_policies_and_bounded() -> None:
    """Two groups of the same policies, whose pods have other numbers for a port's name, are one series."""
    named = ingress(ports=[{"port": "http"}], name="named")
    made = Cluster(namespace("shop"), WEB, pod("old", "10.0.0.3", ports=[port("http", 8080)]), named, OUT)
    groups = {chain(made, Direction.INGRESS, address) for address in ("10.0.0.1", "10.0.0.3")}
    assert len(groups) == 2
    enforced = Enforced(made.catalog, Refusals(**dict.fromkeys(groups, 3)), LAG)
    found = await policies.figures_of(enforced, 10)
    assert found.refused == [(("Egress", "shop", "out"), 0), (("Ingress", "shop", "named"), 6)]
    assert (await policies.figures_of(enforced, 1)).refused == [(("Ingress", "shop", "named"), 6)]
    assert (found.isolated_pods, found.policies_with_problems) == (2, 0)


async def test_a_ruling_names_the_rule_that_allows_or_the_policies_that_isolate() -> None:
    made = cluster(policy("deny"), CLIENTS, OUT)
    [egress_of, ingress_of] = made.judged("10.0.0.1", "10.0.0.2").rulings
    assert (egress_of.pod, egress_of.isolated_by, egress_of.allowed_by) == ("shop/web", ["shop/out"], [])
    assert (ingress_of.pod, ingress_of.isolated_by, ingress_of.is_refused) == ("shop/other", ["shop/deny"], True)
    [there, here] = made.judged("10.0.1.1", "10.0.0.1").rulings
    assert (there.node, there.is_here, there.isolated_by) == ("node2", False, [])
    assert (here.isolated_by, here.allowed_by) == (["shop/clients", "shop/deny"], ["shop/clients ingress[0]"])
    assert [it.exempt for it in made.judged("10.0.0.2", "10.0.0.2").rulings] == ["a pod reaches itself"] * 2
    assert made.judged("192.0.2.1", "192.0.2.2").rulings == []


async def test_the_agent_answers_about_connections_and_pods(tmp_path: Path) -> None:
    made = cluster(CLIENTS)
    answers = policies.answers_about(Enforced(made.catalog, Refusals(), LAG))
    async with agent_socket.serve(tmp_path, answers):
        ends = [("10.0.0.1", 80), ("10.0.0.2", 80)]
        question = policies.question_about(Protocol.TCP, "192.0.2.1", ends)
        found = await agent_socket.ask_for(tmp_path, question, policies.decode_judgements)
        assert [(it.destination, it.is_refused) for it in found] == [("10.0.0.1", True), ("10.0.0.2", False)]
        listed = await agent_socket.ask_for(tmp_path, policies.GROUPS, policies.decode_groups)
        assert listed is not None
        assert set(listed.names()) == {"pod/shop/web"}
        pods = [
            await agent_socket.ask_for(tmp_path, f"{policies.POD} {it}", policies.decode_pod)
            for it in ("shop/web", "shop/x")
        ]
        assert pods == [PodView("shop/web", "node1", ["10.0.0.1", "fd00::1"]), None]


@pytest.mark.parametrize("about", ["ICMP 10.0.0.1 10.0.0.2 80", "TCP 10.0.0.1 10.0.0.2", "TCP 10.0.0.1 10.0.0.2 http"])
async def test_a_malformed_question_is_refused(about: str) -> None:
    with pytest.raises(ValueError, match=r"protocol|zip|invalid literal"):
        await policies.judgements(cluster().catalog, about)


def test_a_question_is_about_a_bounded_number_of_ends() -> None:
    question = policies.question_about(Protocol.UDP, "fd00::1", [("fd00::2", 53)] * 5000)
    assert question.count("fd00::2 53") == policies.MOST_JUDGED


async def test_an_agent_that_enforces_nothing_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def all_settings(_about: str) -> bytes:
        return msgspec.json.encode(settings(state_dir=tmp_path), enc_hook=str)

    answers = {**policies.answers_about(None), agent_socket.SETTINGS: all_settings}
    async with agent_socket.serve(tmp_path, answers):
        for words in (
            ("show", "policies"),
            ("explain", "pod/shop/web:80"),
            ("explain", "10.0.0.1:80", "--from", "shop/web"),
        ):
            assert await asyncio.to_thread(exit_code, *words, "--state-dir", tmp_path) == NO_AGENT
    said = capfd.readouterr().err
    assert said.count("enforces no network policies") == 1
    assert said.count("only if it enforces network policies") == 2


async def test_a_pod_that_nobody_knows_is_not_explained(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def all_settings(_about: str) -> bytes:
        return msgspec.json.encode(settings(state_dir=tmp_path, network_policies=True), enc_hook=str)

    enforced = Enforced(cluster().catalog, Refusals(), LAG)
    answers = {**policies.answers_about(enforced), agent_socket.SETTINGS: all_settings}
    async with agent_socket.serve(tmp_path, answers):
        assert await asyncio.to_thread(exit_code, "explain", "pod/shop/x:80", "--state-dir", tmp_path) == UNKNOWN
    assert "knows no pod shop/x" in capfd.readouterr().err


def explanation(fate: Fate, client: Client, *real_servers: RealServerKey, address: str = "10.96.0.10") -> Explanation:
    """What is explained before policies are asked."""
    verdict = Verdict(client, fate, "no rule is against it", "the client's address is kept")
    views = [RealServerView(*server, 1, 0, 0) for server in real_servers]
    return Explanation("TCP", address, 80, "agent", "", None, False, None, "", views, [verdict], [], [])


async def under(made: Cluster, found: Explanation, most: int = policies.MOST_JUDGED) -> Explanation:
    async def judge(source: str, ends: Sequence[RealServerKey]) -> list[Judgement]:
        return [made.judged(source, *end) for end in ends[:most]]

    return await judged(found, judge)


SERVING = [("10.0.0.1", 80), ("10.0.0.2", 80)]


async def test_a_policy_drops_what_a_service_sends_to_a_pod() -> None:
    made = cluster(CLIENTS)
    [verdict] = (await under(made, explanation(Fate.SERVED, ELSEWHERE, *SERVING[:1]))).verdicts
    assert (verdict.fate, verdict.why, verdict.masquerade) == (Fate.DROPPED, "network policies drop it", "")
    found = await under(made, explanation(Fate.SERVED, ELSEWHERE, *SERVING))
    [verdict] = found.verdicts
    assert verdict.why == "network policies drop it on the way to 1 of 2 real servers"
    assert (verdict.masquerade, explained_code(ExplanationList([found]))) == (
        "the client's address is kept",
        NOT_SERVED,
    )
    found = await under(made, explanation(Fate.SERVED, API_CLIENT, *SERVING))
    assert found.verdicts[0].fate is Fate.SERVED


async def test_the_node_reaches_its_own_pods_and_a_pod_itself() -> None:
    made = cluster(policy("deny", policyTypes=["Ingress", "Egress"]))
    itself = Client("10.0.0.1", "10.0.0.1", "cbr0")
    for client in (THIS_NODE, itself):
        [verdict] = (await under(made, explanation(Fate.SERVED, client, *SERVING[:1]))).verdicts
        assert verdict.fate is Fate.SERVED


async def test_a_pod_that_is_no_services_is_let_through_or_not() -> None:
    made = cluster(CLIENTS, OUT)
    for client, code in ((API_CLIENT, DONE), (THIS_NODE, DONE), (ELSEWHERE, NOT_SERVED)):
        found = await under(made, explanation(Fate.PASSED_ON, client, address="10.0.0.1"))
        assert explained_code(ExplanationList([found])) == code, client.name
    nobody = await under(made, explanation(Fate.PASSED_ON, ELSEWHERE, address="198.51.100.1"))
    assert explained_code(ExplanationList([nobody])) == UNKNOWN


async def test_a_client_that_stands_for_any_pod_is_not_judged() -> None:
    made = cluster(policy("deny", policyTypes=["Ingress", "Egress"]))
    some = Client(SOME_POD, "10.0.0.1", "(any)")
    found = await under(made, explanation(Fate.SERVED, some, *SERVING))
    assert (found.verdicts[0].fate, found.has_rulings) == (Fate.SERVED, False)
    towards_pod = explanation(Fate.PASSED_ON, THIS_NODE, address="10.0.0.1")
    towards_pod.verdicts.append(Verdict(some, Fate.PASSED_ON, "", ""))
    assert explained_code(ExplanationList([await under(made, towards_pod)])) == DONE


async def test_a_pods_call_to_its_node_is_judged_by_its_egress() -> None:
    made = cluster(egress(block("192.168.0.0/16"), name="out"))
    pod_client = Client("10.0.0.1", "10.0.0.1", "cbr0")
    for address, fate in (("192.168.0.1", Fate.HOST), ("10.0.0.254", Fate.DROPPED)):
        [verdict] = (await under(made, explanation(Fate.HOST, pod_client, address=address))).verdicts
        assert verdict.fate is fate


async def test_what_a_firewall_refuses_policies_are_not_asked_about() -> None:
    [verdict] = (await under(cluster(CLIENTS), explanation(Fate.REFUSED, ELSEWHERE, *SERVING))).verdicts
    assert (verdict.fate, verdict.judgements) == (Fate.REFUSED, [])


async def test_it_is_printed_for_a_person() -> None:
    made = cluster(CLIENTS, OUT)
    out = Client("10.0.0.1", "10.0.0.1", "cbr0")
    found = [
        await under(made, explanation(Fate.SERVED, ELSEWHERE, *SERVING, ("10.0.0.9", 80)), most=2),
        await under(made, explanation(Fate.SERVED, out, ("10.0.1.1", 80))),
    ]
    screen = io.StringIO()
    with redirect_stdout(screen):
        print_explanations(ExplanationList(found), Screen())
    for line in (
        "ingress of shop/web: refused; isolated by shop/clients, and no rule allows it (to 10.0.0.1:80)",
        "ingress of shop/other: allowed, no policy isolates it (to 10.0.0.2:80)",
        "and 1 more real servers, which policies were not asked about",
        "egress of shop/web: allowed by shop/out egress[0]\n",
        "ingress of shop/api: node2 decides; ask there\n",
    ):
        assert line in screen.getvalue()


def test_pods_of_the_catalog_are_found_by_name() -> None:
    assert policies.pod_of(cluster().catalog, ObjectKey("shop", "api")) == PodView("shop/api", "node2", ["10.0.1.1"])


def test_a_pod_that_is_planned_only_to_be_known_is_not_isolated() -> None:
    of_web = ingress(selector={"matchLabels": {"app": "web"}})
    made = Cluster(namespace("shop"), WEB, OTHER, of_web, all_pods=True)
    assert Enforced(made.catalog, Refusals(), LAG).isolated_pods() == 1
