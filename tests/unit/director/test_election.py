"""Leader election with the stand-in API server: two candidates, on one clock that tests move."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kroute.director.election import RELEASE_WITHIN, Election
from kroute.director.lease import Lease, LeaseLock, LeaseRole, LeaseSpec
from kroute.director.settings import LeaseSettings, problem_with
from kroute.settings import Settings
from kroute.watchers.kubernetes.api import Api
from tests.apiserver import ApiServer
from tests.unit.watching import eventually
from tests.virtual_time import virtual

LEASE = LeaseSettings("kube-system", "kroute-director", duration=15, renew_deadline=10, retry_period=2)
START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """Seconds that pass only when a test sets them; wall-clock time passes with them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> datetime:
        return START + timedelta(seconds=self.now)


class Candidates:
    """The candidates by name, each with the roles that it had in turn."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.server = server
        self.clock = Clock()
        self.roles: dict[str, list[LeaseRole]] = {}
        self.able = True
        self._api = api

    def candidate(
        self,
        name: str,
        settings: LeaseSettings = LEASE,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        attempted: Callable[[float, bool], None] = lambda _began, _is_answered: None,
    ) -> Election:
        self.roles[name] = []
        lock = LeaseLock(self._api, settings.namespace, settings.name)
        return Election(
            lock,
            name,
            settings,
            self.roles[name].append,
            lambda: self.able,
            new_identity=lambda: f"{name}, renamed",
            attempted=attempted,
            clock=self.clock,
            now=self.clock.wall,
            sleep=sleep,
        )

    @property
    def lease(self) -> dict[str, Any]:
        [item] = self.server.objects("Lease")
        return item["spec"]


@asynccontextmanager
async def with_a_server(tmp_path: Path) -> AsyncIterator[Candidates]:
    async with ApiServer() as server:
        settings = Settings(node_name="d", kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"))
        async with await Api.open(settings) as api:
            yield Candidates(server, api)


@pytest.fixture
async def candidates(tmp_path: Path) -> AsyncIterator[Candidates]:
    async with with_a_server(tmp_path) as them:
        yield them


async def test_the_first_makes_the_lease_in_the_format_of_client_go(candidates: Candidates) -> None:
    one = candidates.candidate("one")
    await one.attempt()
    assert one.role is LeaseRole.ACTIVE
    [item] = candidates.server.objects("Lease")
    assert (item["apiVersion"], item["kind"]) == ("coordination.k8s.io/v1", "Lease")
    assert (item["metadata"]["namespace"], item["metadata"]["name"]) == ("kube-system", "kroute-director")
    assert item["spec"] == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }


async def test_renewing_changes_only_the_time_of_it(candidates: Candidates) -> None:
    one = candidates.candidate("one")
    await one.attempt()
    before = candidates.lease
    candidates.clock.now = 2.5
    requests = len(candidates.server.requests)
    await one.attempt()
    assert candidates.lease == {**before, "renewTime": "2026-01-01T00:00:02.500000Z"}
    assert [it.method for it in candidates.server.requests[requests:]] == ["PUT"]


async def test_another_waits_for_the_whole_duration_since_it_saw_the_last_renewal(candidates: Candidates) -> None:
    one, two = candidates.candidate("one"), candidates.candidate("two")
    await one.attempt()
    await two.attempt()
    assert candidates.roles == {"one": [LeaseRole.ACTIVE], "two": [LeaseRole.STANDBY]}
    candidates.clock.now = 5
    await one.attempt()
    await two.attempt()
    candidates.clock.now = 19.9
    await two.attempt()
    assert two.role is LeaseRole.STANDBY
    candidates.clock.now = 20
    await two.attempt()
    assert two.role is LeaseRole.ACTIVE
    assert candidates.lease["holderIdentity"] == "two"
    assert candidates.lease["leaseTransitions"] == 1
    assert candidates.lease["acquireTime"] == "2026-01-01T00:00:20.000000Z"


async def test_a_standby_is_there_when_the_lease_expires(candidates: Candidates) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        if two.role is LeaseRole.ACTIVE:
            raise asyncio.CancelledError
        pauses.append(seconds)
        candidates.clock.now += seconds

    await candidates.candidate("one").attempt()
    two = candidates.candidate("two", sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        await two.run()
    assert all(2.0 <= pause <= 2.4 for pause in pauses[:6])
    assert candidates.lease["acquireTime"].startswith("2026-01-01T00:00:15.0")


async def test_a_standby_that_stood_still_waits_again_for_a_renewal(candidates: Candidates) -> None:
    """The active one may have stood still with it, on one host, and then goes on as well."""
    roles: list[LeaseRole] = []

    async def sleep(seconds: float) -> None:
        if two.role is LeaseRole.ACTIVE:
            raise asyncio.CancelledError
        roles.append(two.role)
        candidates.clock.now += seconds if roles[1:] else 60.0

    await candidates.candidate("one").attempt()
    two = candidates.candidate("two", sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        await two.run()
    assert candidates.lease["acquireTime"].startswith("2026-01-01T00:01:15.0")


async def test_each_attempt_is_told_with_its_begin_after_the_role(candidates: Candidates) -> None:
    told: list[tuple[float, bool, LeaseRole]] = []

    async def sleep(seconds: float) -> None:
        match len(told):
            case 2:
                candidates.server.faults.add(kind="answer", status=503)
            case 3:
                candidates.server.faults.clear()
            case 4:
                raise asyncio.CancelledError
        candidates.clock.now += 15

    await candidates.candidate("one").attempt()
    two = candidates.candidate("two", sleep=sleep, attempted=lambda *attempt: told.append((*attempt, two.role)))
    with pytest.raises(asyncio.CancelledError):
        await two.run()
    assert told == [
        (0.0, True, LeaseRole.STANDBY),
        (15.0, True, LeaseRole.ACTIVE),
        (30.0, False, LeaseRole.ACTIVE),
        (45.0, True, LeaseRole.ACTIVE),
    ]


async def test_who_has_lost_the_lease_gives_up_as_soon_as_it_writes(candidates: Candidates) -> None:
    one, two = candidates.candidate("one"), candidates.candidate("two")
    await one.attempt()
    await two.attempt()
    candidates.clock.now = 15
    await two.attempt()
    await one.attempt()
    assert candidates.roles == {
        "one": [LeaseRole.ACTIVE, LeaseRole.STANDBY],
        "two": [LeaseRole.STANDBY, LeaseRole.ACTIVE],
    }


async def test_a_released_lease_is_taken_at_once(candidates: Candidates) -> None:
    one, two = candidates.candidate("one"), candidates.candidate("two")
    await one.attempt()
    await two.attempt()
    await one.release()
    assert candidates.lease["holderIdentity"] == ""
    assert candidates.lease["leaseDurationSeconds"] == 1
    await two.attempt()
    assert two.role is LeaseRole.ACTIVE
    assert candidates.lease["holderIdentity"] == "two"


async def test_a_lease_of_another_is_not_released(candidates: Candidates) -> None:
    one, two = candidates.candidate("one"), candidates.candidate("two")
    await one.attempt()
    await two.attempt()
    await two.release()
    assert candidates.lease["holderIdentity"] == "one"


async def test_a_lease_that_was_never_made_needs_no_release(candidates: Candidates) -> None:
    candidates.able = False
    one = candidates.candidate("one")
    await one.attempt()
    with capture_logs() as logs:
        await one.release()
    assert logs == []


async def test_a_release_that_fails_is_tried_again(candidates: Candidates) -> None:
    one = candidates.candidate("one")
    await one.attempt()
    candidates.server.faults.add("answer", where="write", status=409)
    candidates.server.faults.add("answer", where="write", status=500)
    await one.release()
    assert candidates.lease["holderIdentity"] == ""


@virtual()
async def test_a_lease_that_was_being_taken_at_the_stop_is_released(tmp_path: Path) -> None:
    async with with_a_server(tmp_path) as candidates:
        one = candidates.candidate("one")
        candidates.server.faults.add("delay", where="write", seconds=2)
        electing = asyncio.create_task(one.run())
        await asyncio.wait([electing], timeout=1)
        assert candidates.server.objects("Lease") == []
        electing.cancel()
        await asyncio.wait([electing])
        assert candidates.lease["holderIdentity"] == "one"
        await one.release()
        assert candidates.lease["holderIdentity"] == ""


@virtual()
async def test_an_attempt_that_hangs_at_the_stop_is_given_up_and_with_it_the_lease(tmp_path: Path) -> None:
    async with with_a_server(tmp_path) as candidates:
        slow = LeaseSettings(duration=30, renew_deadline=60.0, retry_period=10.0)
        one = candidates.candidate("one", slow)
        electing = asyncio.create_task(one.run())
        await eventually(lambda: one.role is LeaseRole.ACTIVE)
        candidates.server.faults.add("delay", where="write", seconds=100)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(slow.retry_period + 1)
        began = loop.time()
        electing.cancel()
        with capture_logs() as logs:
            await asyncio.wait([electing])
        assert loop.time() - began <= RELEASE_WITHIN + 1
        assert [line["event"] for line in logs] == ["lease.unreleased"]
        assert one.role is LeaseRole.STANDBY


async def test_of_two_that_take_an_expired_lease_one_gets_it(candidates: Candidates) -> None:
    gone, two, three = (candidates.candidate(name) for name in ("gone", "two", "three"))
    for one in (gone, two, three):
        await one.attempt()
    candidates.clock.now = 15
    await asyncio.gather(two.attempt(), three.attempt())
    await asyncio.gather(two.attempt(), three.attempt())
    assert {two.role, three.role} == {LeaseRole.ACTIVE, LeaseRole.STANDBY}


async def test_of_two_that_make_the_lease_one_gets_it(candidates: Candidates) -> None:
    one, two = candidates.candidate("one"), candidates.candidate("two")
    await asyncio.gather(one.attempt(), two.attempt())
    await asyncio.gather(one.attempt(), two.attempt())
    assert {one.role, two.role} == {LeaseRole.ACTIVE, LeaseRole.STANDBY}


@virtual()
async def test_without_the_api_server_the_active_goes_on_and_the_standby_waits(tmp_path: Path) -> None:
    async with with_a_server(tmp_path) as candidates:
        one, two = candidates.candidate("one"), candidates.candidate("two")
        await one.attempt()
        await two.attempt()
        async with candidates.server.out_of_reach():
            for candidates.clock.now in (5, 11, 60):
                await one.attempt()
                await two.attempt()
            assert (one.role, two.role) == (LeaseRole.ACTIVE, LeaseRole.STANDBY)
        await one.attempt()
        await two.attempt()
        assert (one.role, two.role) == (LeaseRole.ACTIVE, LeaseRole.STANDBY)


async def blinded(candidates: Candidates) -> tuple[Election, Election]:
    """Return the active one, and a standby that could not read the Lease for longer than its duration, and now can."""
    one, two = candidates.candidate("one"), candidates.candidate("two")
    await one.attempt()
    await two.attempt()
    candidates.server.faults.add(kind="answer", status=503)
    candidates.clock.now = 20
    await two.attempt()
    candidates.server.faults.clear()
    candidates.clock.now = 25
    await two.attempt()
    return one, two


async def test_a_standby_that_could_not_look_does_not_take_the_lease_when_it_can_again(candidates: Candidates) -> None:
    """Both come back to a Lease that neither could renew: its holder must keep it."""
    one, two = await blinded(candidates)
    assert two.role is LeaseRole.STANDBY
    await one.attempt()
    assert candidates.lease["holderIdentity"] == "one"


async def test_a_standby_that_could_not_look_takes_the_lease_if_it_then_sees_no_renewal(candidates: Candidates) -> None:
    _, two = await blinded(candidates)
    candidates.clock.now = 40
    await two.attempt()
    assert two.role is LeaseRole.ACTIVE


async def test_an_active_director_that_was_cut_off_gives_up_when_it_reads_of_the_other(candidates: Candidates) -> None:
    one, two = candidates.candidate("one"), candidates.candidate("two")
    await one.attempt()
    await two.attempt()
    candidates.clock.now = 14
    candidates.server.faults.add(kind="answer", status=503, where="write")
    await one.attempt()
    assert one.role is LeaseRole.ACTIVE
    candidates.clock.now = 15
    await two.attempt()
    await one.attempt()
    assert (one.role, two.role) == (LeaseRole.STANDBY, LeaseRole.ACTIVE)


async def test_a_restarted_director_goes_on_with_its_own_lease_before_it_may_take_one(candidates: Candidates) -> None:
    await candidates.candidate("one").attempt()
    candidates.able = False
    again = candidates.candidate("one")
    await again.attempt()
    assert again.role is LeaseRole.ACTIVE
    assert candidates.lease["leaseTransitions"] == 0


async def test_of_two_with_one_identity_one_gives_up_and_takes_another(
    candidates: Candidates,
) -> None:
    """When a state directory was copied to a second machine, each takes the Lease for its own at its start."""
    one, other = candidates.candidate("same"), candidates.candidate("same")
    await one.attempt()
    roles_of_one = candidates.roles["same"] = []
    one._announce = roles_of_one.append
    candidates.clock.now = 1
    await other.attempt()
    assert (one.role, other.role) == (LeaseRole.ACTIVE, LeaseRole.ACTIVE)
    candidates.clock.now = 2
    with capture_logs() as logs:
        await one.attempt()
    assert (one.role, other.role) == (LeaseRole.STANDBY, LeaseRole.ACTIVE)
    assert roles_of_one == [LeaseRole.STANDBY]
    [said] = [line for line in logs if line["event"] == "lease.identity_shared"]
    assert "--state-dir" in said["next_step"]
    for candidates.clock.now in (4, 6):
        await other.attempt()
        await one.attempt()
    assert (one.role, other.role) == (LeaseRole.STANDBY, LeaseRole.ACTIVE)
    assert candidates.lease["holderIdentity"] == "same"
    candidates.clock.now = 21
    await one.attempt()
    assert candidates.lease["holderIdentity"] == "same, renamed"


async def test_a_standby_leaves_a_lease_that_another_took_under_its_identity(candidates: Candidates) -> None:
    gone, one, other = candidates.candidate("gone"), candidates.candidate("same"), candidates.candidate("same")
    for each in (gone, one, other):
        await each.attempt()
    candidates.clock.now = 15
    await one.attempt()
    await other.attempt()
    await one.attempt()
    assert (one.role, other.role) == (LeaseRole.ACTIVE, LeaseRole.STANDBY)


@virtual()
async def test_a_renewal_whose_answer_was_lost_is_ones_own(tmp_path: Path) -> None:
    async with with_a_server(tmp_path) as candidates:
        one = candidates.candidate("one")
        await one.attempt()
        update, never = one._lock.update, asyncio.Event()

        async def written_and_not_answered(lease: Lease, spec: LeaseSpec) -> Lease:
            await update(lease, spec)
            await never.wait()
            raise AssertionError

        one._lock.update = written_and_not_answered  # type: ignore[method-assign]
        candidates.clock.now = 2
        await one.attempt()
        one._lock.update = update  # type: ignore[method-assign]
        assert candidates.lease["renewTime"] == "2026-01-01T00:00:02.000000Z"
        candidates.clock.now = 4
        await one.attempt()
        assert candidates.roles["one"] == [LeaseRole.ACTIVE]
        assert candidates.lease["renewTime"] == "2026-01-01T00:00:04.000000Z"
        assert candidates.lease["holderIdentity"] == "one"


async def test_who_could_not_serve_takes_nothing(candidates: Candidates) -> None:
    candidates.able = False
    one = candidates.candidate("one")
    await one.attempt()
    assert (one.role, candidates.server.objects("Lease")) == (LeaseRole.UNKNOWN, [])
    candidates.able = True
    await one.attempt()
    assert one.role is LeaseRole.ACTIVE


async def test_a_deleted_lease_is_made_again(candidates: Candidates) -> None:
    one = candidates.candidate("one")
    await one.attempt()
    candidates.server.delete("Lease", "kroute-director", "kube-system")
    await one.attempt()
    assert one.role is LeaseRole.ACTIVE
    assert candidates.lease["holderIdentity"] == "one"
    assert candidates.roles["one"] == [LeaseRole.ACTIVE]


async def test_what_others_put_into_the_lease_stays(candidates: Candidates) -> None:
    candidates.server.apply(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": "kube-system", "name": "kroute-director", "annotations": {"note": "ours"}},
            "spec": {"holderIdentity": None, "strategy": "OldestEmulationVersion"},
        }
    )
    await candidates.candidate("one").attempt()
    [item] = candidates.server.objects("Lease")
    assert item["metadata"]["annotations"] == {"note": "ours"}
    assert item["spec"]["strategy"] == "OldestEmulationVersion"
    assert item["spec"]["holderIdentity"] == "one"


async def test_a_lease_without_anything_in_it_is_free(candidates: Candidates) -> None:
    candidates.server.apply(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": "kube-system", "name": "kroute-director"},
            "spec": None,
        }
    )
    one = candidates.candidate("one")
    await one.attempt()
    assert (one.role, candidates.lease["holderIdentity"]) == (LeaseRole.ACTIVE, "one")


@virtual()
async def test_a_server_that_does_not_answer_is_given_up_within_half_the_deadline(tmp_path: Path) -> None:
    now = asyncio.get_running_loop().time
    async with with_a_server(tmp_path) as candidates:
        one = candidates.candidate("one")
        await one.attempt()
        candidates.server.faults.add(kind="delay", seconds=30)
        before = now()
        await one.attempt()
        assert now() - before == pytest.approx(LEASE.renew_deadline / 2)
        assert one.role is LeaseRole.ACTIVE


@pytest.mark.parametrize(
    ("lease", "says"),
    [
        (LEASE, None),
        (LeaseSettings(duration=3, renew_deadline=2, retry_period=0.5), None),
        (LeaseSettings(duration=0), "--lease-duration"),
        (LeaseSettings(duration=10, renew_deadline=10), "--lease-renew-deadline"),
        (LeaseSettings(retry_period=9), "--lease-retry-period"),
        (LeaseSettings(retry_period=0), "--lease-retry-period"),
    ],
)
def test_times_that_do_not_fit_together_are_refused(lease: LeaseSettings, says: str | None) -> None:
    problem = problem_with(lease)
    assert problem is None if says is None else says in (problem or "")
