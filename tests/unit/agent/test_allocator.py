"""The allocator with the stand-in API server: what it writes, when, and what it never does."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from kroute.agent import allocator as module
from kroute.agent.allocator import NOTE, Allocator, Note
from kroute.inspect.status import AddressFill, AllocatorView, allocator_problems
from kroute.model.objects import Applied, Deleted, ObjectKey, Service
from kroute.planning.catalog import Catalog
from kroute.settings import Settings
from kroute.telemetry.events import EventRecorder
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.errors import ApiError
from tests.apiserver import ApiServer
from tests.builders import LISTED, facts
from tests.builders import service as known
from tests.unit.watching import eventually, running, service

RANGE = "192.0.2.8/30"
FIRST, SECOND = "192.0.2.8", "192.0.2.9"


def balanced(name: str, **spec: Any) -> dict[str, Any]:
    return service(name, **{"type": "LoadBalancer", "ipFamilies": ["IPv4"], **spec})


class Cluster:
    """The stand-in, and what a test reads of it."""

    def __init__(self, server: ApiServer, settings: Settings, api: Api) -> None:
        self.server = server
        self.settings = settings
        self.api = api
        self.recorders: list[EventRecorder] = []

    def allocator(self) -> Allocator:
        """An agent's allocator, whose initial sync is complete."""
        catalog = Catalog(self.settings, facts())
        catalog.take(LISTED)
        self.recorders.append(EventRecorder(self.settings.node_name, catalog.uid_of, self.api.when_up))
        return Allocator(self.settings, self.api, catalog, self.recorders[-1])

    async def holder(self) -> Allocator:
        """An allocator that has the Lease."""
        made = self.allocator()
        await made.election.attempt()
        return made

    def addresses(self) -> dict[str, list[str]]:
        """The addresses in the status of each Service that has any."""
        found = {}
        for item in self.server.objects("Service"):
            entries = item.get("status", {}).get("loadBalancer", {}).get("ingress", ())
            if entries:
                found[item["metadata"]["name"]] = [it["ip"] for it in entries]
        return found

    def notes(self) -> list[Note]:
        [lease] = self.server.objects("Lease")
        return msgspec.json.decode(lease["metadata"].get("annotations", {}).get(NOTE, "[]"), type=list[Note])

    def seize(self, holder: str) -> None:
        """Have another process take the Lease, as after it has expired."""
        [lease] = self.server.objects("Lease")
        spec = {**lease["spec"], "holderIdentity": holder, "leaseTransitions": lease["spec"]["leaseTransitions"] + 1}
        self.server.apply({**lease, "spec": spec})

    def writes(self) -> list[str]:
        return [it.path for it in self.server.requests if it.path.endswith("/status")]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with ApiServer(second=0.005) as server:
        settings = Settings(
            node_name="node1",
            kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"),
            allocate_load_balancer_ips=True,
            load_balancer_ip_ranges=(RANGE,),
        )
        async with await Api.open(settings) as api:
            yield Cluster(server, settings, api)


async def test_a_service_gets_an_address_in_its_status_and_nothing_else_of_it_changes(cluster: Cluster) -> None:
    before = cluster.server.apply(balanced("a", loadBalancerClass="kroute.io"))
    cluster.server.apply(balanced("b", loadBalancerClass="example.com/other"))
    cluster.server.apply(service("c"))
    holder = await cluster.holder()
    assert await holder.pass_once()
    assert cluster.addresses() == {"a": [FIRST]}
    [after] = [it for it in cluster.server.objects("Service") if it["metadata"]["name"] == "a"]
    assert after["spec"] == before["spec"]
    assert {**after["metadata"], "resourceVersion": ""} == {**before["metadata"], "resourceVersion": ""}


async def test_a_pass_that_has_nothing_to_do_writes_nothing_and_forgets_the_notes(cluster: Cluster) -> None:
    cluster.server.apply(balanced("a"))
    holder = await cluster.holder()
    await holder.pass_once()
    assert [it.addresses for it in cluster.notes()] == [(FIRST,)]
    await holder.pass_once()
    assert cluster.notes() == []
    assert len(cluster.writes()) == 1
    revision = cluster.server.store.revision
    await holder.pass_once()
    assert cluster.server.store.revision == revision


async def test_an_agent_without_the_lease_writes_nothing(cluster: Cluster) -> None:
    cluster.server.apply(balanced("a"))
    await cluster.holder()
    standby = cluster.allocator()
    await standby.election.attempt()
    await standby.pass_once()
    assert cluster.addresses() == {}


async def test_who_loses_the_lease_within_a_pass_writes_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.server.apply(balanced("a"))
    holder = await cluster.holder()
    listed = holder._services

    async def then_lost() -> Any:
        services = await listed()
        cluster.seize("another")
        return services

    monkeypatch.setattr(holder, "_services", then_lost)
    assert not await holder.pass_once()
    assert cluster.addresses() == {}
    assert cluster.notes() == []


async def test_its_own_renewal_within_a_pass_does_no_harm(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.server.apply(balanced("a"))
    holder = await cluster.holder()
    listed = holder._services

    async def then_renewed() -> Any:
        services = await listed()
        await holder.election.attempt()
        return services

    monkeypatch.setattr(holder, "_services", then_renewed)
    assert await holder.pass_once()
    assert cluster.addresses() == {"a": [FIRST]}
    await holder.election.attempt()
    assert [it.addresses for it in cluster.notes()] == [(FIRST,)], "a renewal keeps them"


async def test_a_write_that_arrives_late_takes_no_address_from_another(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.server.apply(balanced("a"))
    former = await cluster.holder()
    patch, sent = cluster.api.patch, []

    async def on_the_way(path: str, body: Any) -> None:
        sent.append((path, body))

    monkeypatch.setattr(cluster.api, "patch", on_the_way)
    await former.pass_once()
    monkeypatch.setattr(cluster.api, "patch", patch)
    cluster.seize("")
    cluster.server.apply(
        {**balanced("b"), "metadata": {**balanced("b")["metadata"], "creationTimestamp": "2020-01-01T00:00:00Z"}}
    )
    holder = await cluster.holder()
    [(path, body)] = sent
    lease = await holder._lock.read()
    assert [it.addresses for it in module.notes_in(lease)] == [(FIRST,)]
    monkeypatch.setattr(cluster.api, "patch", lambda path, body: _only_of("b", patch, path, body))
    await holder.pass_once()
    assert cluster.addresses() == {"b": [SECOND]}, "the older one does not get what may still arrive"
    await patch(path, body)
    assert cluster.addresses() == {"a": [FIRST], "b": [SECOND]}
    monkeypatch.setattr(cluster.api, "patch", patch)
    await holder.pass_once()
    assert cluster.addresses() == {"a": [FIRST], "b": [SECOND]}


async def _only_of(name: str, patch: Any, path: str, body: Any) -> None:
    if f"/{name}/" in path:
        await patch(path, body)


async def test_what_was_noted_and_can_no_longer_arrive_is_free(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.server.apply(balanced("a"))
    holder = await cluster.holder()
    patch = cluster.api.patch

    async def lost(_path: str, _body: Any) -> None:
        """Nothing arrives."""

    monkeypatch.setattr(cluster.api, "patch", lost)
    await holder.pass_once()
    cluster.server.apply(service("a"))  # it is no longer of the type, and has another version
    cluster.server.apply(balanced("b"))
    monkeypatch.setattr(cluster.api, "patch", patch)
    await holder.pass_once()
    assert cluster.addresses() == {"b": [FIRST]}


async def test_a_service_that_changes_meanwhile_is_read_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.server.apply(balanced("a"))
    holder = await cluster.holder()
    listed = holder._services

    async def then_changed() -> Any:
        services = await listed()
        cluster.server.apply(balanced("a", loadBalancerIP=SECOND))
        return services

    monkeypatch.setattr(holder, "_services", then_changed)
    await holder.pass_once()
    assert cluster.addresses() == {}
    assert holder._due.is_set()
    monkeypatch.setattr(holder, "_services", listed)
    await holder.pass_once()
    assert cluster.addresses() == {"a": [SECOND]}


async def test_a_full_range_is_an_event_and_a_service_that_goes_makes_room(cluster: Cluster) -> None:
    for name in "abcde":
        cluster.server.apply(balanced(name))
    holder = await cluster.holder()
    with capture_logs() as logs:
        assert not await holder.pass_once()
    [problem] = [line for line in logs if line["event"] == "service.problem"]
    assert (problem["service"], problem["reason"]) == ("default/e", "NoLoadBalancerAddress")
    async with running(cluster.recorders[-1].run()):
        await eventually(lambda: bool(cluster.server.objects("Event")))
    [event] = cluster.server.objects("Event")
    assert (event["regarding"]["name"], event["type"]) == ("e", "Warning")
    assert RANGE in event["note"]
    cluster.server.delete("Service", "b", "default")
    assert await holder.pass_once()
    assert cluster.addresses()["e"] == [SECOND]


async def test_one_pass_serves_more_services_than_are_noted_at_a_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WRITES", 2)
    for name in "abc":
        cluster.server.apply(balanced(name))
    holder = await cluster.holder()
    assert await holder.pass_once()
    assert cluster.addresses() == {"a": [FIRST], "b": [SECOND], "c": ["192.0.2.10"]}
    assert [it.addresses for it in cluster.notes()] == [("192.0.2.10",)], "what is written is noted no longer"


async def test_the_list_has_pages_and_one_that_is_too_long_is_asked_for_in_smaller_ones(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        cluster.server.apply(balanced(name))
    holder = await cluster.holder()
    holder._page = 2
    assert [it.metadata.name for it in await holder._services()] == ["a", "b", "c"]
    monkeypatch.setattr("kroute.watchers.kubernetes.api.LONGEST_ANSWER", 10)
    with pytest.raises(ApiError):
        await holder._services()
    assert holder._page == module.SMALLEST_PAGE


async def test_a_malformed_service_does_not_keep_others_from_their_addresses(cluster: Cluster) -> None:
    cluster.server.apply(balanced("a", ipFamilies="IPv4"))
    cluster.server.apply(balanced("b"))
    holder = await cluster.holder()
    assert await holder.pass_once()
    assert cluster.addresses() == {"b": [FIRST]}


async def test_a_missing_right_is_said_and_other_services_go_on(cluster: Cluster) -> None:
    cluster.server.apply(balanced("a"))
    holder = await cluster.holder()
    cluster.server.access.forbid("patch", "services/status")
    with capture_logs() as logs:
        assert not await holder.pass_once()
    [line] = [line for line in logs if line["event"] == "load_balancer.refused"]
    assert "services/status" in line["next_step"]
    cluster.server.access.allow_all()
    assert await holder.pass_once()
    assert cluster.addresses() == {"a": [FIRST]}


async def test_while_writes_are_refused_the_notes_do_not_grow(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WRITES", 1)
    cluster.server.access.forbid("patch", "services/status")
    cluster.server.apply(balanced("a"))
    holder = await cluster.holder()
    await holder.pass_once()
    cluster.server.apply(balanced("b", loadBalancerIP=SECOND))
    await holder.pass_once()
    assert cluster.notes() == [], "what is refused does not arrive later"
    cluster.server.access.allow_all()
    await holder.pass_once()
    assert cluster.addresses() == {"a": [FIRST], "b": [SECOND]}


async def test_writes_that_are_refused_for_good_do_not_keep_others_from_their_addresses(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an admission policy for one namespace."""
    monkeypatch.setattr(module, "MOST_WRITES", 1)
    for name in "abc":
        cluster.server.apply(balanced(name))
    holder, patch = await cluster.holder(), cluster.api.patch

    async def refusing(path: str, body: Any) -> bytes:
        if path.endswith(("/a/status", "/b/status")):
            raise ApiError(403, "Forbidden", "an admission policy refuses it")
        return await patch(path, body)

    monkeypatch.setattr(cluster.api, "patch", refusing)
    assert not await holder.pass_once()
    assert cluster.addresses() == {"c": ["192.0.2.10"]}
    assert holder.view() == AllocatorView("node1", is_here=True, waiting=2, addresses={"IPv4": AddressFill(3, 4)})


async def test_it_is_known_who_is_the_allocator_and_what_waits(cluster: Cluster) -> None:
    standby = cluster.allocator()
    assert standby.view() == AllocatorView("")
    for name in "abcde":
        cluster.server.apply(balanced(name))
    holder = await cluster.holder()
    await holder.pass_once()
    full = AllocatorView("node1", is_here=True, waiting=1, addresses={"IPv4": AddressFill(4, 4)})
    assert holder.view() == full
    [problem] = allocator_problems(full)
    assert "1 Services do not get" in problem.message
    await standby.election.attempt()
    assert standby.view() == AllocatorView("node1")
    assert list(allocator_problems(standby.view())) == []


async def test_an_allocator_whose_lease_somebody_has_edited_goes_on_with_another_identity(cluster: Cluster) -> None:
    holder = await cluster.holder()
    [lease] = cluster.server.objects("Lease")
    cluster.server.apply({**lease, "spec": {**lease["spec"], "renewTime": "2026-01-01T00:00:00.000000Z"}})
    await holder.election.attempt()
    cluster.seize("")
    await holder.election.attempt()
    cluster.server.apply(balanced("a"))
    await holder.pass_once()
    assert cluster.addresses() == {"a": [FIRST]}


async def test_an_address_that_no_node_serves_is_not_given_out_although_it_is_in_the_range(cluster: Cluster) -> None:
    cluster.settings = replace(cluster.settings, load_balancer_ip_ranges=("127.0.0.0/31", RANGE))
    cluster.server.apply(balanced("a", loadBalancerIP="127.0.0.1"))
    cluster.server.apply(balanced("b"))
    holder = await cluster.holder()
    with capture_logs() as logs:
        assert not await holder.pass_once()
    assert cluster.addresses() == {"b": [FIRST]}
    [problem] = [line for line in logs if line["event"] == "service.problem"]
    assert problem["message"].startswith("loadBalancerIP '127.0.0.1' is not a unicast address")


async def test_notes_that_cannot_be_read_stop_the_pass(cluster: Cluster) -> None:
    cluster.server.apply(balanced("a"))
    holder = await cluster.holder()
    [lease] = cluster.server.objects("Lease")
    cluster.server.apply({**lease, "metadata": {**lease["metadata"], "annotations": {NOTE: "{"}}})
    with pytest.raises(msgspec.DecodeError):
        await holder.pass_once()
    assert cluster.addresses() == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([Applied(known("a", kind="LoadBalancer"))], True),
        ([Applied(known("a"))], False),
        ([Deleted(Service, ObjectKey("default", "a"))], False),
        (LISTED, False),
    ],
    ids=["of the type", "of another", "an unknown one", "lists"],
)
async def test_only_services_of_the_type_cause_a_pass(
    cluster: Cluster, changes: Iterable[Any], *, expected: bool
) -> None:
    made, seen = cluster.allocator(), list[Any]()
    made.beside(seen.extend)([*changes])
    assert seen == [*changes]
    assert made._due.is_set() == expected


@pytest.mark.parametrize(
    "change", [Applied(known("a")), Deleted(Service, ObjectKey("default", "a"))], ids=["type", "deleted"]
)
async def test_a_service_that_ceases_to_be_of_the_type_causes_one(cluster: Cluster, change: Any) -> None:
    made = cluster.allocator()
    take = made.beside(lambda _: None)
    take([Applied(known("a", kind="LoadBalancer"))])
    made._due.clear()
    take([change])
    assert made._due.is_set()
    made._due.clear()
    take([change])
    assert not made._due.is_set()


async def test_one_of_two_is_the_allocator_and_the_other_takes_over_when_it_stops(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = module.LeaseSettings(*module.ALLOCATOR_LEASE, duration=30, renew_deadline=1.0, retry_period=0.05)
    monkeypatch.setattr(module, "LEASE", quick)
    monkeypatch.setattr(module, "PAUSE", 0.01)
    one, two = await cluster.holder(), cluster.allocator()
    async with running(two.run()):
        async with running(one.run()):
            cluster.server.apply(balanced("a"))
            for made in (one, two):
                made.beside(lambda _: None)([Applied(known("a", kind="LoadBalancer"))])
            await eventually(lambda: cluster.addresses() == {"a": [FIRST]})
            await eventually(lambda: [it.election.role.value for it in (one, two)] == ["active", "standby"])
        cluster.server.apply(balanced("b"))
        two.beside(lambda _: None)([Applied(known("b", kind="LoadBalancer"))])
        await eventually(lambda: cluster.addresses() == {"a": [FIRST], "b": [SECOND]})
    [lease] = cluster.server.objects("Lease")
    assert lease["spec"]["holderIdentity"] == ""
