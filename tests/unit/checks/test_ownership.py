"""One service proxy owns a node at any time. A test says what the node and the cluster show, in virtual time."""

import asyncio
from collections.abc import Collection, Mapping

import msgspec
import pytest

from kroute.checks.cluster_proxies import NAMESPACE
from kroute.checks.ownership import ASK_AGAIN, ENDS_WITHIN, RIVAL, RIVAL_POLICIES, WAITING, Ownership
from kroute.checks.policy_enforcers import KUBE_ROUTERS_FIREWALL, Presence
from kroute.checks.running_proxies import Sign
from kroute.model.plan import Problem
from kroute.settings import IGNORE
from kroute.watchers.kubernetes.errors import ApiError
from tests.builders import settings
from tests.virtual_time import virtual

AFTER = 30.0
KUBE_PROXY = Sign("kube-proxy", "its metrics port 10249 answers: mode ipvs")
POD = {
    "metadata": {"name": "kube-proxy-x7k2p"},
    "spec": {"containers": [{"image": "registry.k8s.io/kube-proxy:v1.36.2"}]},
    "status": {"phase": "Running"},
}


class Cluster:
    """Answers like an API server with these Pods on the node. `fault`: what it answers instead."""

    def __init__(self, *pods: Mapping[str, object], fault: ApiError | None = None) -> None:
        self.pods = list(pods)
        self.fault = fault
        self.asked = 0

    async def get(self, path: str, _params: Mapping[str, str]) -> bytes:
        if self.fault is not None:
            raise self.fault
        self.asked += path.endswith("/pods")
        return msgspec.json.encode({"items": self.pods if path == f"/api/v1/namespaces/{NAMESPACE}/pods" else []})


class Story:
    """A node on which a test lets proxies come and go, and what is said of them."""

    def __init__(self, cluster: Cluster | None = None, **changed: object) -> None:
        self.signs: list[Sign] = []
        self.traces: frozenset[str] = frozenset()
        self.enforcer: Presence | None = None
        self.problems: list[tuple[str, str]] = []
        self.over: list[str] = []
        self.restraints: list[bool] = []
        self.removed: list[Collection[str]] = []
        self.hindrance: Sign | None = None
        self.ownership = Ownership(
            settings(take_over_after=AFTER, **changed),
            report=lambda problem: self.problems.append((problem.reason, problem.subject)),
            take_back=self._over,
            api=cluster,
            traces=self._traces,
            enforcer=lambda: self.enforcer,
            look=self._look,
            clock=lambda: asyncio.get_running_loop().time(),
        )

    def _over(self, problem: Problem) -> None:
        self.over.append(problem.reason)

    async def _look(self, **_where: object) -> list[Sign]:
        return list(self.signs)

    async def _traces(self) -> frozenset[str]:
        return self.traces

    async def _hinders(self, _names: frozenset[str]) -> Sign | None:
        return self.hindrance

    def _remove(self, names: Collection[str]) -> None:
        self.removed.append(frozenset(names))
        self.traces -= frozenset(names)

    def turn(self, *, has_served: bool = False, unfinished: Collection[str] = ()) -> "asyncio.Task[frozenset[str]]":
        turn = self.ownership.turn(has_served=has_served, unfinished=unfinished, hindrance=self._hinders)
        return asyncio.create_task(turn)

    def follow(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self.ownership.follow_rivals(self.restraints.append, self._remove))


async def test_a_fresh_node_is_ours_at_once() -> None:
    assert await Story(Cluster()).turn() == frozenset()


@virtual(settles_within=0)
async def test_kroute_waits_as_long_as_a_proxy_shows_signs_of_life() -> None:
    story = Story(Cluster(POD))
    story.signs = [KUBE_PROXY]
    turn = story.turn()
    await asyncio.sleep(100_000)
    assert not turn.done()
    assert story.ownership.waiting_text == f"waiting: {KUBE_PROXY}"
    assert story.problems == [(WAITING, "kube-proxy")]
    turn.cancel()


@virtual(settles_within=0)
async def test_a_proxy_that_is_silent_has_not_ended_while_its_pod_is_meant_for_the_node() -> None:
    cluster = Cluster(POD)
    story = Story(cluster)
    story.signs = [KUBE_PROXY]
    turn = story.turn()
    await asyncio.sleep(10)
    story.signs = []
    await asyncio.sleep(10 * ASK_AGAIN + AFTER)
    assert not turn.done()
    bound = "Pod kube-system/kube-proxy-x7k2p is bound to this node"
    assert story.ownership.waiting_text == f"waiting: kube-proxy: it is silent, but {bound}"
    assert cluster.asked <= 15, "every node of a cluster may be asking"
    cluster.pods = []
    assert await turn == {"kube-proxy"}
    assert story.ownership.waits_for is None
    assert story.over == [WAITING]


@virtual(settles_within=0)
async def test_a_proxy_whose_pod_is_gone_when_it_falls_silent_is_followed_at_once() -> None:
    cluster = Cluster(POD)
    story = Story(cluster)
    story.signs = [KUBE_PROXY]
    turn = story.turn()
    await asyncio.sleep(60)
    cluster.pods = []
    await asyncio.sleep(60)
    began = asyncio.get_running_loop().time()
    story.signs = []
    assert await turn == {"kube-proxy"}
    assert asyncio.get_running_loop().time() - began < 5


@virtual(settles_within=0)
@pytest.mark.parametrize(
    "cluster",
    [None, Cluster(), Cluster(fault=ApiError(403, "Forbidden", "pods is forbidden"))],
    ids=["no API server", "unknown", "denied"],
)
async def test_where_the_cluster_does_not_know_the_proxy_its_silence_counts(cluster: Cluster | None) -> None:
    story = Story(cluster)
    story.signs = [KUBE_PROXY]
    turn = story.turn()
    await asyncio.sleep(60)
    story.signs = []
    silent_at = asyncio.get_running_loop().time()
    await asyncio.sleep(AFTER / 2)
    story.signs = [KUBE_PROXY]  # it was restarted
    await asyncio.sleep(3)
    story.signs = []
    silent_at = asyncio.get_running_loop().time()
    assert await turn == {"kube-proxy"}
    assert asyncio.get_running_loop().time() - silent_at >= AFTER


@virtual(settles_within=0)
async def test_an_api_server_that_is_away_does_not_end_a_proxy_that_was_meant() -> None:
    cluster = Cluster(POD)
    story = Story(cluster)
    turn = story.turn()
    await asyncio.sleep(1)
    cluster.fault = ApiError(0, "", "nobody answers")
    await asyncio.sleep(100 * AFTER)
    assert not turn.done()
    cluster.fault, cluster.pods = None, []
    assert await turn == frozenset()


@virtual(settles_within=0)
async def test_a_node_with_leftovers_of_an_unknown_end_is_waited_for_and_taken_over() -> None:
    story = Story(Cluster())
    story.traces = frozenset({"kube-router"})
    began = asyncio.get_running_loop().time()
    assert await story.turn() == {"kube-router"}
    assert asyncio.get_running_loop().time() - began >= AFTER


@virtual(settles_within=0)
async def test_kroute_waits_for_rules_that_come_before_ipvs_and_cannot_be_removed() -> None:
    story = Story(Cluster())
    story.traces = frozenset({"kube-proxy"})
    story.hindrance = Sign("kube-proxy", "its rules come first")
    turn = story.turn()
    await asyncio.sleep(10 * AFTER)
    assert story.ownership.waits_for == story.hindrance
    story.hindrance = None
    assert await turn == {"kube-proxy"}


@pytest.mark.parametrize(("has_served", "changed"), [(True, {}), (False, {"other_proxies": IGNORE})])
async def test_who_has_served_or_may_ignore_others_does_not_look(has_served: bool, changed: dict[str, object]) -> None:
    cluster = Cluster(POD)
    story = Story(cluster, **changed)
    story.signs = [KUBE_PROXY]
    assert await story.turn(has_served=has_served) == frozenset()
    assert (story.problems, cluster.asked) == ([], 0)


@virtual(settles_within=0)
async def test_a_port_that_proves_nothing_counts_only_if_the_cluster_says_that_it_serves() -> None:
    router = Sign("kube-router", "its health port 20244 is open", is_proof=False)
    container = {"image": "docker.io/cloudnativelabs/kube-router:v2.11.0", "args": ["--run-service-proxy=false"]}
    story = Story(Cluster({"metadata": {"name": "kube-router-1"}, "spec": {"containers": [container]}}))
    story.signs = [router]
    assert await story.turn() == frozenset()
    del container["args"]
    serving = Story(Cluster({"metadata": {"name": "kube-router-1"}, "spec": {"containers": [container]}}))
    serving.signs = [router]
    turn = serving.turn()
    await asyncio.sleep(100)
    assert serving.ownership.waits_for == router
    turn.cancel()


@virtual(settles_within=0)
async def test_a_rival_is_told_once_and_repairs_are_restrained_until_it_is_gone() -> None:
    cluster = Cluster()
    story = Story(cluster)
    follow = story.follow()
    await asyncio.sleep(60)
    assert (story.ownership.rival, cluster.asked) == (None, 0)
    cluster.pods, story.traces = [POD], frozenset({"kube-proxy"})  # its ports are kroute's, so its rules show it
    await asyncio.sleep(60)
    assert story.ownership.rival is not None
    assert story.ownership.rival.proxy == "kube-proxy"
    assert (story.problems, story.restraints, story.removed) == ([(RIVAL, "kube-proxy")], [True], [])
    cluster.pods = []
    await asyncio.sleep(60)
    assert story.removed == [{"kube-proxy"}], "what it has left is removed when it has ended"
    assert (story.ownership.rival, story.over, story.restraints) == (None, [RIVAL], [True, False])
    follow.cancel()


@virtual(settles_within=0)
async def test_who_else_enforces_policies_is_a_rival_that_restrains_no_repair() -> None:
    """Also if it was there before: that was said by nobody yet."""
    story = Story(Cluster())
    story.enforcer = Presence(KUBE_ROUTERS_FIREWALL, "chain KUBE-ROUTER-INPUT")
    follow = story.follow()
    await asyncio.sleep(60)
    assert story.problems == [(RIVAL_POLICIES, "kube-router's firewall")]
    assert "enforces network policies on this node (chain KUBE-ROUTER-INPUT)" in str(story.ownership.rival)
    story.signs = [KUBE_PROXY]
    await asyncio.sleep(60)
    assert story.ownership.rival == KUBE_PROXY, "a proxy comes first"
    story.signs = []
    await asyncio.sleep(60)
    assert (story.restraints, story.over) == ([True, False], [])
    story.enforcer = None
    await asyncio.sleep(60)
    assert (story.ownership.rival, story.over) == (None, [RIVAL_POLICIES])
    follow.cancel()


@virtual(settles_within=0)
async def test_what_was_left_before_is_no_rival_and_what_comes_back_is_one() -> None:
    story = Story(None)
    story.traces = frozenset({"kube-proxy"})
    follow = story.follow()
    await asyncio.sleep(60)
    assert story.ownership.rival is None
    story.traces = frozenset()
    await asyncio.sleep(60)
    story.traces = frozenset({"kube-proxy"})
    await asyncio.sleep(60)
    assert story.ownership.rival is not None
    assert story.removed == [], "without a word of the cluster nobody knows whether it has ended"
    follow.cancel()


@virtual(settles_within=0)
async def test_a_rival_is_one_still_after_kroute_was_restarted_beside_it() -> None:
    """It was there before, and its ports are kroute's again, sooner than it has tried them."""
    cluster = Cluster(POD)
    story = Story(cluster)
    story.traces = frozenset({"kube-proxy"})
    assert await story.turn(has_served=True) == frozenset()
    follow = story.follow()
    await asyncio.sleep(60)
    assert (story.problems, story.restraints, story.removed) == ([(RIVAL, "kube-proxy")], [True], [])
    cluster.pods = []
    await asyncio.sleep(60)
    assert (story.removed, story.restraints) == ([{"kube-proxy"}], [True, False])
    follow.cancel()


@virtual(settles_within=0)
async def test_a_take_over_that_was_interrupted_is_finished_after_a_restart() -> None:
    story = Story(Cluster())
    story.traces = frozenset({"kube-proxy"})
    assert await story.turn(has_served=True, unfinished={"kube-proxy"}) == {"kube-proxy"}


@virtual(settles_within=0)
async def test_a_proxy_that_came_back_before_its_take_over_was_finished_is_a_rival() -> None:
    cluster = Cluster(POD)
    story = Story(cluster)
    story.signs, story.traces = [KUBE_PROXY], frozenset({"kube-proxy"})
    assert await story.turn(has_served=True, unfinished={"kube-proxy"}) == frozenset()
    follow = story.follow()
    await asyncio.sleep(60)
    assert story.ownership.rival == KUBE_PROXY
    story.signs, cluster.pods = [], []
    await asyncio.sleep(60)
    assert story.removed == [{"kube-proxy"}]
    follow.cancel()


@virtual(settles_within=0)
async def test_what_a_proxy_writes_while_its_process_ends_is_removed_too() -> None:
    """kube-router closes its port, ends a pass that makes its sets again, and only then its process ends."""
    cluster = Cluster(POD)
    story = Story(cluster)
    story.signs, story.traces = [KUBE_PROXY], frozenset({"kube-proxy"})
    turn = story.turn()
    await asyncio.sleep(10)
    story.signs, cluster.pods = [], []
    assert await turn == {"kube-proxy"}
    story.traces = frozenset()
    follow = story.follow()
    for times in (1, 2):
        await asyncio.sleep(20)
        story.traces = frozenset({"kube-proxy"})
        await asyncio.sleep(20)
        assert story.removed == times * [{"kube-proxy"}]
    assert (story.ownership.rival, story.restraints) == (None, [True, False] * 2)
    await asyncio.sleep(2 * ENDS_WITHIN)
    story.traces = frozenset({"kube-proxy"})
    await asyncio.sleep(20)
    assert story.ownership.rival is not None, "what comes as late is not fought"
    assert len(story.removed) == 2
    follow.cancel()
