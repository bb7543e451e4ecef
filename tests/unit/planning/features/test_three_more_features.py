"""A new feature is a module of its own and its line in each of the two tables: three that are not in the product."""

from collections.abc import Callable

import msgspec
import pytest

from kroute.model.plan import Problem, RealServer, ServicePlan
from kroute.model.steps import Steps
from kroute.planning import features
from kroute.planning.endpoints import Chosen
from kroute.planning.features.step import Backends, FeatureStep, PlanInputs
from kroute.planning.frontends import Frontend
from kroute.planning.options import Annotation, Applied, Options, names
from tests.builders import endpoint, endpoint_slice, facts, plan_service, read, service, settings
from tests.unit.planning.test_endpoint_reasons import seen

Register = Callable[[Annotation, Callable[[PlanInputs], FeatureStep | None]], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Put the lines of a feature into the tables, as a commit would."""

    def put(row: Annotation, begin: Callable[[PlanInputs], FeatureStep | None]) -> None:
        known = features.KNOWN["Service"]
        monkeypatch.setattr(features, "ANNOTATIONS", (*features.ANNOTATIONS, row))
        monkeypatch.setattr(features, "STEPS", (*features.STEPS, begin))
        monkeypatch.setitem(features.KNOWN, "Service", {*known, *row.names})

    return put


def planned(annotation: str = "", value: str = "", **spec: object) -> ServicePlan:
    web = service(annotations={annotation: value} if annotation else None, **spec)
    slices = read(endpoint_slice("web-1", "10.244.1.1", endpoint("10.244.1.2", on="node1"), ports=(8080,)))
    return plan_service(web, slices, facts(), settings())


class OfHost(msgspec.Struct, FeatureStep, frozen=True):
    """A source of weights: the real servers of one host weigh more."""

    host: str

    def weigh(self, chosen: Chosen, servers: tuple[RealServer, ...]) -> Steps[tuple[RealServer, ...]]:
        yield len(chosen)
        here = [traits.node_name == self.host for _, traits in chosen]
        return tuple(
            server._replace(weight=7 * server.weight) if is_here else server
            for server, is_here in zip(servers, here, strict=True)
        )


def apply_host(options: Options, value: str) -> Applied:
    return options.asking(OfHost(value)), None


HOST = Annotation(names("host"), "the host whose real servers weigh more", "a name", apply_host, needs_shares=True)


def test_a_new_source_of_weights(register: Register) -> None:
    register(HOST, lambda inputs: inputs.options.of(OfHost))
    plan = planned("kroute.io/host", "node1")
    [server] = plan.virtual_servers
    assert (server.scheduler, plan.problems) == ("wrr", ())
    assert server.real_servers == (RealServer("10.244.1.1", 8080, 1), RealServer("10.244.1.2", 8080, 7))


class Maintenance(FeatureStep):
    """A reason to refuse: clients outside are not served while a Service is maintained."""

    def __init__(self, inputs: PlanInputs) -> None:
        self._problems = inputs.problems

    def refuses(self, frontend: Frontend) -> bool:
        if frontend.is_external:
            subject = f"address {frontend.key}"
            self._problems.append(
                Problem("Maintained", subject, f"{subject} is not served: kroute.io/maintained is on.")
            )
        return frontend.is_external


def apply_maintenance(options: Options, value: str) -> Applied:
    return (options.asking(value), None) if value == "on" else (options, "is not on; all clients are served")


MAINTAINED = Annotation(names("maintained"), "whether clients outside wait", "on", apply_maintenance)


def test_a_new_reason_to_refuse(register: Register) -> None:
    register(MAINTAINED, lambda inputs: Maintenance(inputs) if inputs.options.of(str) else None)
    plan = planned("kroute.io/maintained", "on", external_ips=("198.51.100.7",))
    assert [server.key.address for server in plan.virtual_servers] == ["10.96.0.10"]
    assert [vip.address for vip in plan.vips] == ["10.96.0.10"]
    assert not any("198.51.100.7" in entry.element for entry in plan.set_entries)
    assert [problem.reason for problem in plan.problems] == ["Maintained"]
    [problem] = planned("kroute.io/maintained", "soon").problems
    assert problem.message.endswith("is not on; all clients are served. Allowed: on.")


class Fewest(FeatureStep):
    """A condition: fewer endpoints serve than the Service says that it needs."""

    def __init__(self, inputs: PlanInputs, needed: int) -> None:
        self._problems = inputs.problems
        self._needed = needed
        self._fewest = needed

    def serve(self, _frontend: Frontend, backends: Backends) -> Backends:
        self._fewest = min(self._fewest, len(backends.real_servers))
        return backends

    def finish(self) -> None:
        if self._fewest < self._needed:
            subject = f"{self._fewest} endpoints"
            self._problems.append(Problem("FewEndpoints", subject, f"{subject} serve, {self._needed} are needed."))

    def explain(self, _frontend: Frontend, _plan: ServicePlan) -> str:
        return f"to at least {self._needed} endpoints"


def begin_fewest(inputs: PlanInputs) -> Fewest | None:
    needed = inputs.options.of(int)
    return Fewest(inputs, needed) if needed is not None else None


def apply_fewest(options: Options, value: str) -> Applied:
    return options.asking(int(value)), None


FEWEST = Annotation(names("fewest"), "how many endpoints are needed", "a number", apply_fewest)


def test_a_new_condition(register: Register) -> None:
    register(FEWEST, begin_fewest)
    assert planned("kroute.io/fewest", "2").problems == ()
    [problem] = planned("kroute.io/fewest", "3").problems
    assert problem == ("FewEndpoints", "2 endpoints", "2 endpoints serve, 3 are needed.")
    view, _ = seen(service(annotations={"kroute.io/fewest": "3"}), endpoint("10.244.1.1"))
    assert [frontend.forwarding for frontend in view.frontends] == ["to at least 3 endpoints"]


def test_a_service_that_uses_no_feature_has_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    before = planned()

    def refuse(_inputs: PlanInputs) -> FeatureStep | None:
        raise AssertionError("no feature is asked for")

    monkeypatch.setattr(features, "STEPS", (refuse,))
    assert planned() == before
    with pytest.raises(AssertionError, match="no feature is asked for"):
        planned("kroute.io/slow-start", "30s")
