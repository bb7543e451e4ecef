"""A director says what it serves, whether it is the active one, and which nodes it leaves out."""

from collections.abc import Collection

from kroute.inspect.director_status import director_status
from kroute.inspect.figures import figures_of
from kroute.inspect.status import Source, State, Status
from kroute.kernel.ipvs.objects import RealServerState, VirtualServerOptions, VirtualServerState
from kroute.model.plan import RealServer
from kroute.reconcile.pass_status import ControllerStatistics
from tests.builders import plan, virtual_server

SERVER = virtual_server("203.0.113.5", 80, RealServer("192.168.0.1", 80), RealServer("192.168.0.2", 80))
COMPLETE = VirtualServerState(
    VirtualServerOptions("wrr"), {(f"192.168.0.{n}", 80): RealServerState(1, active=2) for n in (1, 2)}
)


def status(
    applied: VirtualServerState | None,
    *,
    is_live: bool = True,
    pending: int = 0,
    failing: Collection[str] = (),
    is_connected: bool = True,
) -> Status:
    return director_status(
        figures_of(SERVER, applied),
        node="edge1",
        started=1_700_000_000.0,
        election="active",
        is_live=is_live,
        pending=pending,
        plans=[plan("web", SERVER, generation=7)],
        work=ControllerStatistics(last_resync=1_700_000_100.0, last_look=1_700_000_160.0),
        failing=failing,
        source=Source("api", connected=is_connected),
    )


def test_an_active_director_whose_kernel_has_everything_has_no_problem() -> None:
    found = status(COMPLETE)
    assert (found.role, found.election, found.state, found.problems) == ("director", "active", State.READY, [])
    assert (found.served.virtual_servers, found.served.real_servers, found.served.connections) == (1, 2, 4)
    assert (found.started, found.last_resync) == ("2023-11-14T22:13:20Z", "2023-11-14T22:15:00Z")
    assert found.last_look == "2023-11-14T22:16:00Z"
    assert found.generation == 7


def test_failing_nodes_an_absent_server_and_what_the_kernel_lacks_are_problems_with_next_steps() -> None:
    found = status(None, failing=["healthz 192.168.0.3 port 10256"], is_connected=False)
    assert [problem.reason for problem in found.problems] == ["ApiUnreachable", "NotInKernel", "NodeFailing"]
    assert all(problem.next_step for problem in found.problems)
    assert (found.served.missing, found.served.missing_real_servers) == (1, 2)


def test_what_is_on_its_way_is_pending_and_no_problem() -> None:
    found = status(None, pending=3, is_live=False)
    assert (found.pending, found.state, found.problems) == (3, State.STARTING, [])
