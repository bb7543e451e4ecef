"""Whether the kernel has the virtual server of a plan, and the text that says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.kernel.ipvs.objects import RealServerState, VirtualServerOptions, VirtualServerState
from kroute.model.plan import Persistence, Protocol, RealServer, VirtualServer, VirtualServerKey
from kroute.reconcile.comparison.virtual_servers import (
    Condition,
    agrees,
    condition_of,
    count_real_servers,
    describe_drift,
    differences,
    in_terms_of_plans,
    is_nothing,
    matches_exactly,
    missing_real_servers,
    options_of,
    real_server_condition,
    stale_real_servers,
)

KEY = VirtualServerKey(Protocol.TCP, "10.96.0.10", 80)
ONE, TWO = ("10.244.1.1", 8080), ("10.244.2.1", 8080)


def desired(*servers: tuple[str, int], key: VirtualServerKey = KEY, scheduler: str = "rr") -> VirtualServer:
    return VirtualServer(key, scheduler, 0, None, tuple(RealServer(*it) for it in servers))


def state(weights: dict[tuple[str, int], int], scheduler: str = "rr") -> VirtualServerState:
    return VirtualServerState(VirtualServerOptions(scheduler), {it: RealServerState(w) for it, w in weights.items()})


@pytest.mark.parametrize(("scheduler", "does"), [("mh", False), ("sh", False), ("rr", True), ("dh", True)])
def test_the_order_of_real_servers_matters_to_hashing_alone(scheduler: str, does: bool) -> None:
    """The kernel lists the newest first."""
    wanted = desired(ONE, TWO, scheduler=scheduler)
    in_order, out_of_order = (state(dict.fromkeys(it, 1), scheduler) for it in ((TWO, ONE), (ONE, TWO)))
    assert matches_exactly(in_order, wanted)
    assert matches_exactly(out_of_order, wanted) is does
    assert agrees(in_terms_of_plans(KEY, in_order, ()), wanted)
    found = in_terms_of_plans(KEY, out_of_order, ())
    assert agrees(found, wanted) is does
    if not does:
        said = "virtual server TCP 10.96.0.10:80 {} its real servers in another order"
        assert describe_drift(KEY, found, wanted) == said.format("had")
        assert differences(KEY, wanted, out_of_order) == [said.format("has") + ": nodes choose differently"]


def test_one_that_drains_may_stand_anywhere() -> None:
    wanted = desired(ONE, TWO, scheduler="mh")
    kernel = state({TWO: 1, ("10.244.1.9", 8080): 0, ONE: 1}, "mh")
    assert agrees(in_terms_of_plans(KEY, kernel, stale_real_servers(kernel, wanted)), wanted)
    assert differences(KEY, wanted, kernel) == []


@pytest.mark.parametrize(
    ("wanted", "applied", "said"),
    [
        pytest.param(desired(ONE), state({ONE: 1}), [], id="as desired"),
        pytest.param(desired(ONE), None, ["virtual server TCP 10.96.0.10:80 is missing"], id="missing"),
        pytest.param(desired(), None, [], id="nothing is behind it"),
        pytest.param(None, None, [], id="nobody's"),
        pytest.param(
            desired(ONE, TWO), state({ONE: 1}), ["real server 10.244.2.1:8080 is missing"], id="one is missing"
        ),
        pytest.param(desired(ONE), state({ONE: 0}), ["real server 10.244.1.1:8080 has weight 0, not 1"], id="weight"),
        pytest.param(desired(ONE), state({ONE: 1, TWO: 0}), [], id="an old one drains"),
        pytest.param(
            desired(ONE),
            state({ONE: 1, TWO: 1}),
            ["real server 10.244.2.1:8080 takes new connections and was not planned"],
            id="one too many",
        ),
        pytest.param(
            desired(ONE, scheduler="mh"),
            state({ONE: 1}),
            ["virtual server TCP 10.96.0.10:80 has scheduler rr, not mh"],
            id="another scheduler",
        ),
        pytest.param(desired(), state({ONE: 0}), [], id="nothing is behind it any more and old ones drain"),
        pytest.param(desired(), state({}), ["virtual server TCP 10.96.0.10:80 was not planned"], id="nothing is left"),
        pytest.param(None, state({ONE: 0}), ["virtual server TCP 10.96.0.10:80 was not planned"], id="stale"),
    ],
)
def test_what_is_said(wanted: VirtualServer | None, applied: VirtualServerState | None, said: list[str]) -> None:
    assert differences(KEY, wanted, applied) == said


def test_persistence_and_flags_are_distinguished() -> None:
    wanted = VirtualServer(KEY, "mh", 0x10, Persistence(600, 32), (RealServer(*ONE),))
    assert differences(KEY, wanted, state({ONE: 1}, "mh")) == [
        "virtual server TCP 10.96.0.10:80 has flags 0, not 16",
        "virtual server TCP 10.96.0.10:80 has persistence timeout 0, not 600",
        "virtual server TCP 10.96.0.10:80 has persistence prefix 0, not 32",
    ]


def test_conditions() -> None:
    assert condition_of(desired(ONE), state({})) == Condition.SERVING
    assert condition_of(desired(ONE), None) == Condition.MISSING
    assert condition_of(desired(), None) == condition_of(desired(), state({ONE: 0})) == Condition.REFUSING
    assert [real_server_condition(RealServerState(weight)) for weight in (3, 0)] == ["serving", "draining"]
    assert missing_real_servers(desired(ONE, TWO).real_servers, state({ONE: 0}).real_servers) == [RealServer(*TWO)]


def test_what_a_resync_says() -> None:
    assert describe_drift(KEY, None, desired(ONE)) == "virtual server TCP 10.96.0.10:80 was missing"
    assert describe_drift(KEY, desired(TWO), desired(ONE)) == "virtual server TCP 10.96.0.10:80 was changed"
    for nothing in (None, desired()):
        assert describe_drift(KEY, desired(TWO), nothing) == "virtual server TCP 10.96.0.10:80 is not wanted"


KEYS = st.sampled_from([KEY, KEY._replace(protocol=Protocol.UDP)])
SERVERS = st.lists(st.sampled_from([ONE, TWO, ("10.244.3.1", 8080)]), unique=True, max_size=3)
SCHEDULERS = st.sampled_from(["rr", "mh"])
PERSISTENCE = st.sampled_from([None, Persistence(600, 32)])
FLAGS = st.sampled_from([0, 0x10])


@st.composite
def plans(draw: st.DrawFn, key: VirtualServerKey) -> VirtualServer | None:
    real_servers = tuple(RealServer(*it, weight=draw(st.integers(1, 2))) for it in draw(SERVERS))
    made = VirtualServer(key, draw(SCHEDULERS), draw(FLAGS), draw(PERSISTENCE), real_servers)
    return draw(st.sampled_from([made, None]))


@st.composite
def kernels(draw: st.DrawFn) -> VirtualServerState | None:
    scheduler, persistence = draw(SCHEDULERS), draw(PERSISTENCE) or (0, 0)
    flags = draw(FLAGS) if scheduler == "mh" else 0
    reals = {it: RealServerState(draw(st.integers(0, 2))) for it in draw(SERVERS)}
    made = VirtualServerState(VirtualServerOptions(scheduler, flags, *persistence), reals)
    return draw(st.sampled_from([made, None]))


@given(st.data(), KEYS, kernels())
def test_something_is_said_just_when_the_controller_would_write(
    data: st.DataObject, key: VirtualServerKey, applied: VirtualServerState | None
) -> None:
    wanted = data.draw(plans(key))
    if applied is None:
        is_right = wanted is None or is_nothing(wanted)
    else:
        draining = stale_real_servers(applied, wanted)
        is_right = wanted is not None and agrees(in_terms_of_plans(key, applied, draining), wanted, draining)
    assert bool(differences(key, wanted, applied)) is not is_right


@given(st.data(), KEYS, kernels())
def test_the_quick_comparison_never_finds_equal_what_is_not(
    data: st.DataObject, key: VirtualServerKey, applied: VirtualServerState | None
) -> None:
    wanted = data.draw(plans(key))
    if applied is not None and wanted is not None and wanted.real_servers and matches_exactly(applied, wanted):
        assert differences(key, wanted, applied) == []
        assert options_of(wanted) == applied.options


@given(st.data(), kernels())
def test_real_servers_are_counted_as_they_are_distinguished(
    data: st.DataObject, applied: VirtualServerState | None
) -> None:
    wanted = data.draw(plans(KEY))
    desired, present = wanted.real_servers if wanted else (), applied.real_servers if applied else {}
    conditions = [real_server_condition(it) for it in present.values()]
    assert count_real_servers(desired, present) == (
        conditions.count(Condition.SERVING),
        conditions.count(Condition.DRAINING),
        len(missing_real_servers(desired, present)),
    )
