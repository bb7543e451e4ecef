"""The annotations of a Service: lookup, values, and the effect of a bad value."""

import pytest

from kroute.base.forwarding import MASQUERADING
from kroute.base.schedulers import IN_STEPS, SCHEDULERS
from kroute.model.plan import Ejection, Persistence, Problem, Protocol, RealServer, VirtualServerKey
from kroute.planning.features import ANNOTATION_NAMES, ANNOTATIONS, apply_annotations, needing_shares
from kroute.planning.features.ejection import Ejecting
from kroute.planning.features.slow_start import SlowStart, in_steps
from kroute.planning.options import MAX_PERSISTENCE_TIMEOUT, Options
from tests.builders import endpoint_slice, facts, finish, plan_service, read, service, settings

DEFAULTS = Options("rr")


def apply(options: Options = DEFAULTS, **values: str) -> tuple[Options, list[Problem]]:
    """Apply annotations, each given by its name without the prefix."""
    return apply_annotations(options, {f"kroute.io/{name.replace('_', '-')}": it for name, it in values.items()})


def slow_start_of(options: Options) -> int:
    asked = options.of(SlowStart)
    return asked.seconds if asked is not None else 0


def ejection_of(options: Options) -> Ejection | None:
    asked = options.of(Ejecting)
    return asked.ejection if asked is not None else None


def test_no_annotations_leave_the_defaults() -> None:
    assert apply_annotations(DEFAULTS, None) == (DEFAULTS, [])
    assert apply_annotations(DEFAULTS, {"example.org/team": "blue", "scheduler": "lc"}) == (DEFAULTS, [])


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_of_the_kernel_may_be_named(scheduler: str) -> None:
    assert apply(scheduler=scheduler) == (Options(scheduler), [])


@pytest.mark.parametrize(
    ("annotations", "scheduler"),
    [
        ({"service.scheduler": "lc"}, "lc"),
        ({"service.scheduler": "lc", "kube-router.io/service.scheduler": "sh"}, "sh"),
        (
            {"service.scheduler": "lc", "kube-router.io/service.scheduler": "sh", "kroute.io/scheduler": "mh"},
            "mh",
        ),
        ({"service.scheduler": "lc", "kroute.io/service.scheduler": "mh"}, "mh"),
        ({"kroute.io/service.scheduler": "lc", "kube-router.io/service.scheduler": "sh"}, "lc"),
        ({"kroute.io/service.scheduler": "lc", "kroute.io/scheduler": "mh"}, "mh"),
    ],
)
def test_kroutes_own_name_comes_before_the_aliases(annotations: dict[str, str], scheduler: str) -> None:
    assert apply_annotations(DEFAULTS, annotations) == (Options(scheduler), [])


@pytest.mark.parametrize("name", sorted(ANNOTATION_NAMES))
def test_a_bad_value_is_told_with_the_name_that_the_user_wrote(name: str) -> None:
    _, [problem] = apply_annotations(DEFAULTS, {name: "\\?"})
    assert problem.subject == f"annotation {name}=\\?"
    assert problem.message.startswith(problem.subject)


def test_every_name_that_an_earlier_version_read_still_counts() -> None:
    words = (
        *("scheduler", "schedflags", "persistence-timeout", "persistence-netmask", "hairpin", "skiplbips", "local"),
        *("dsr", "director-weight", "advertise.clusterip", "advertise.externalip", "advertise.loadbalancerip"),
    )
    names = {f"{prefix}service.{word}" for word in words for prefix in ("kroute.io/", "kube-router.io/", "")}
    names |= {f"{prefix}slow-start" for prefix in ("kroute.io/", "kube-router.io/", "")}
    names |= {"kroute.io/weights", "kroute.io/locality", "kroute.io/ejection"}
    assert names <= ANNOTATION_NAMES
    assert {name for name in ANNOTATION_NAMES - names if not name.startswith("kroute.io/")} == set()


def test_a_bad_value_under_the_winning_name_does_not_fall_through_to_the_next() -> None:
    options, problems = apply_annotations(
        DEFAULTS, {"kroute.io/scheduler": "fastest", "kube-router.io/service.scheduler": "lc"}
    )
    assert options == DEFAULTS
    assert len(problems) == 1


def test_a_bad_value_is_a_problem_that_names_the_annotation_the_effect_and_the_allowed_words() -> None:
    options, [problem] = apply(Options("wlc"), scheduler="fastest")
    assert options == Options("wlc")
    assert problem == Problem(
        "InvalidAnnotation",
        "annotation kroute.io/scheduler=fastest",
        "annotation kroute.io/scheduler=fastest is not a scheduler; wlc serves. "
        "Allowed: rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh, twos.",
    )


def test_a_huge_value_makes_a_problem_that_fits_an_event() -> None:
    _, [problem] = apply(scheduler="x" * 100_000)
    assert len(problem.message) < 1024
    _, [problem] = apply(scheduler_flags=",".join("y" * 1000 for _ in range(100)))
    assert len(problem.message) < 1024


def test_white_space_around_a_value_is_ignored() -> None:
    assert apply(scheduler=" lc\n", persistence_timeout=" 60 ") == (Options("lc", persistence_timeout=60), [])


@pytest.mark.parametrize(
    ("scheduler", "words", "flags"),
    [
        ("mh", "flag-1", 0x08),
        ("mh", "flag-2", 0x10),
        ("rr", "flag-3", 0x20),
        ("mh", "flag-1,flag-2", 0x18),
        ("mh", " mh-fallback , mh-port,", 0x18),
        ("sh", "sh-fallback", 0x08),
        ("sh", "sh-port", 0x10),
        ("sh", "", 0),
        ("sh", "none", 0),
    ],
)
def test_scheduler_flags_are_the_kernels_bits(scheduler: str, words: str, flags: int) -> None:
    assert apply(scheduler=scheduler, scheduler_flags=words) == (Options(scheduler, chosen_flags=flags), [])


@pytest.mark.parametrize(("scheduler", "flags"), [("sh", 0x08), ("mh", 0x18), ("rr", 0), ("dh", 0)])
def test_without_the_annotation_a_scheduler_has_its_own_flags_of_the_settings(scheduler: str, flags: int) -> None:
    settings = Options("rr", ("sh-fallback", "mh-fallback", "mh-port"))
    options, [] = apply(settings, scheduler=scheduler)
    assert options.flags == flags


@pytest.mark.parametrize(
    ("words", "flags"),
    [("mh-port", 0x10), ("mh-port,mh-fallback", 0x18), ("none", 0), ("", 0), ("sh-port", 0x08), ("fastest", 0x08)],
)
def test_the_annotation_replaces_the_flags_of_the_settings_unless_nothing_in_it_is_a_flag(
    words: str, flags: int
) -> None:
    options, _ = apply(Options("rr", ("mh-fallback",)), scheduler="mh", scheduler_flags=words)
    assert options.flags == flags


def test_a_readable_flag_counts_for_the_scheduler_of_the_settings_too() -> None:
    assert apply(Options("mh"), scheduler_flags="mh-port") == (Options("mh", chosen_flags=0x10), [])


@pytest.mark.parametrize(
    ("scheduler", "words", "flags", "complaint"),
    [
        ("mh", "sh-port", None, "changes no flag: sh-port is a flag of sh, not of mh"),
        ("mh", "mh-port,sh-fallback", 0x10, "sh-fallback is a flag of sh, not of mh"),
        ("rr", "mh-port", None, "changes no flag: mh-port is a flag of mh, not of rr"),
        ("mh", "flag-1,flag-4", 0x08, "'flag-4' is not a flag"),
    ],
)
def test_a_bad_flag_is_a_problem_and_the_good_ones_still_apply(
    scheduler: str, words: str, flags: int | None, complaint: str
) -> None:
    options, [problem] = apply(scheduler=scheduler, scheduler_flags=words)
    assert options == Options(scheduler, chosen_flags=flags)
    assert complaint in problem.message


def test_flags_follow_the_scheduler_that_serves_when_the_wanted_one_is_unknown() -> None:
    options, problems = apply(scheduler="maglev", scheduler_flags="mh-port")
    assert options == DEFAULTS
    assert [it.subject for it in problems] == [
        "annotation kroute.io/scheduler=maglev",
        "annotation kroute.io/scheduler-flags=mh-port",
    ]


@pytest.mark.parametrize("seconds", [1, 600, MAX_PERSISTENCE_TIMEOUT])
def test_a_persistence_timeout_overrides_session_affinity(seconds: int) -> None:
    assert apply(Options("rr", persistence_timeout=10800), persistence_timeout=str(seconds)) == (
        Options("rr", persistence_timeout=seconds),
        [],
    )


def test_a_persistence_timeout_of_zero_turns_session_affinity_off() -> None:
    options, problems = apply(Options("rr", persistence_timeout=10800), persistence_timeout="0")
    assert (options.persistence_for("10.96.0.1"), problems) == (None, [])


@pytest.mark.parametrize("value", ["", "-1", "1.5", "10m", "1_0", "٣", str(MAX_PERSISTENCE_TIMEOUT + 1), "9" * 5000])
def test_a_bad_persistence_timeout_leaves_session_affinity(value: str) -> None:
    before = Options("rr", persistence_timeout=10800)
    options, [problem] = apply(before, persistence_timeout=value)
    assert options == before
    assert f"Allowed: 0 (no persistence) to {MAX_PERSISTENCE_TIMEOUT} seconds." in problem.message


def test_the_longest_timeout_does_not_overflow_the_kernels_32_bit_jiffies() -> None:
    assert MAX_PERSISTENCE_TIMEOUT * 1000 < 2**32


@pytest.mark.parametrize(
    ("value", "ipv4", "ipv6"),
    [
        ("24", 24, 128),
        ("1", 1, 128),
        ("32", 32, 128),
        ("255.255.255.0", 24, 128),
        ("255.255.240.0", 20, 128),
        ("64", 32, 64),
        ("128", 32, 128),
        ("24,64", 24, 64),
        ("255.255.255.0, 56", 24, 56),
        ("32,16", 32, 16),
    ],
)
def test_a_persistence_netmask_is_for_ipv4_or_ipv6_or_both(value: str, ipv4: int, ipv6: int) -> None:
    options, problems = apply(Options("rr", persistence_timeout=60), persistence_netmask=value)
    assert problems == []
    assert options.persistence_for("10.96.0.1") == Persistence(60, ipv4)
    assert options.persistence_for("fd00::1") == Persistence(60, ipv6)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0",
        "0.0.0.0",
        "129",
        "/24",
        "255.0.255.0",
        "255.255.255.256",
        "64,24,1",
        "33,64",
        "24,129",
        "24,",
        ",64",
        "ffff::",
    ],
)
def test_a_bad_persistence_netmask_keeps_clients_apart(value: str) -> None:
    options, [problem] = apply(Options("rr", persistence_timeout=60), persistence_netmask=value)
    assert options == Options("rr", persistence_timeout=60)
    assert problem.reason == "InvalidAnnotation"


def test_every_annotation_says_what_it_means() -> None:
    assert all(row.meaning and row.allowed for row in ANNOTATIONS)
    names = [name for row in ANNOTATIONS for name in row.names]
    assert len(set(names)) == len(names)
    assert all(row.name.startswith("kroute.io/") and "service." not in row.name for row in ANNOTATIONS)


@pytest.mark.parametrize(("value", "seconds"), [("30", 30), ("30s", 30), ("5m", 300), ("1h", 3600), ("0", 0)])
def test_a_slow_start_is_a_time(value: str, seconds: int) -> None:
    annotations = {"kroute.io/scheduler": "wlc", "kroute.io/slow-start": value}
    options, problems = apply_annotations(DEFAULTS, annotations)
    assert (slow_start_of(options), problems) == (seconds, [])


@pytest.mark.parametrize("value", ["", "-1", "1.5s", "2h", "3601", "٣", "30 s", "9" * 5000])
def test_a_bad_slow_start_is_none(value: str) -> None:
    annotations = {"kroute.io/scheduler": "wlc", "kroute.io/slow-start": value}
    options, [problem] = apply_annotations(DEFAULTS, annotations)
    assert slow_start_of(options) == 0
    assert "Allowed: 0 (at once), or 1s to 1h" in problem.message


@pytest.mark.parametrize("scheduler", sorted(set(SCHEDULERS) - set(IN_STEPS)))
def test_a_slow_start_needs_a_scheduler_that_shares_by_weights(scheduler: str) -> None:
    annotations = {"kroute.io/scheduler": scheduler, "kroute.io/slow-start": "30s"}
    options, [problem] = apply_annotations(DEFAULTS, annotations)
    assert slow_start_of(options) == 0
    assert f"with the scheduler {scheduler} a share cannot climb" in problem.message
    assert "wrr, wlc, sed, nq, mh, twos" in problem.message


def test_with_a_slow_start_weights_are_multiplied_so_that_there_are_steps() -> None:
    three, five = RealServer("10.1.0.1", 8080, 3), RealServer("10.1.0.2", 8080, 5)
    assert [it.weight for it in finish(in_steps((three, five)))] == [60, 100]
    heavy = (three._replace(weight=65535), five)
    assert finish(in_steps(heavy)) == heavy
    web = service(annotations={"kroute.io/slow-start": "30s"})
    [server] = plan_service(web, read(endpoint_slice("web-1", "10.244.1.1")), facts(), settings()).virtual_servers
    assert server.real_servers == (RealServer("10.244.1.1", 8080, 20),)


@pytest.mark.parametrize(
    ("value", "ejection"),
    [
        ("on", Ejection(5, 30)),
        ("off", None),
        ("after 10s, hold 1m", Ejection(10, 60)),
        ("hold 1h,after 5m", Ejection(300, 3600)),
        ("hold 5", Ejection(5, 5)),
        ("after 7s", Ejection(7, 30)),
    ],
)
def test_an_ejection_is_on_or_has_times(value: str, ejection: Ejection | None) -> None:
    options, problems = apply_annotations(DEFAULTS, {"kroute.io/ejection": value})
    assert (ejection_of(options), problems) == (ejection, [])


@pytest.mark.parametrize(
    "value", ["", "yes", "after", "after 4s", "after 6m", "hold 2h", "after 5s, after 5s", "5s", "until 5s", "," * 9]
)
def test_a_bad_ejection_is_none(value: str) -> None:
    options, [problem] = apply_annotations(DEFAULTS, {"kroute.io/ejection": value})
    assert ejection_of(options) is None
    assert "Allowed: on, off, or after 5s to 5m (without an answer) and hold 5s to 1h" in problem.message


def test_an_ejection_is_for_tcp_and_has_no_other_name() -> None:
    options, problems = apply_annotations(DEFAULTS, {"kroute.io/ejection": "on"})
    [asked] = options.asked
    assert isinstance(asked, Ejecting)
    plain = {it: options.virtual_server(VirtualServerKey(it, "10.96.0.1", 80), (), MASQUERADING) for it in Protocol}
    servers = {it: asked.virtual_server(server) for it, server in plain.items()}
    assert [it for it, server in servers.items() if server.ejection is not None] == [Protocol.TCP]
    assert apply_annotations(DEFAULTS, {"kube-router.io/ejection": "on"}) == (DEFAULTS, [])
    assert problems == []


@pytest.mark.parametrize("scheduler", ["sh", "mh"])
def test_an_ejection_needs_a_fallback_where_clients_have_their_server_by_hashing(scheduler: str) -> None:
    annotations = {"kroute.io/scheduler": scheduler, "kroute.io/ejection": "on"}
    options, [problem] = apply_annotations(DEFAULTS, annotations)
    assert ejection_of(options) is None
    assert f"without the flag {scheduler}-fallback, clients of an ejected endpoint would be refused" in problem.message
    annotations["kroute.io/scheduler-flags"] = f"{scheduler}-fallback"
    options, problems = apply_annotations(DEFAULTS, annotations)
    assert (ejection_of(options), problems) == (Ejection(), [])


def test_an_ejection_needs_the_kernels_counters() -> None:
    options, [problem] = apply_annotations(Options(has_counters=False), {"kroute.io/ejection": "on"})
    assert ejection_of(options) is None
    assert "--ipvs-estimation is off" in problem.message


OPEN = Options("rr", is_open=True)
"""By the settings nothing has chosen a scheduler."""

SHARING = {"kroute.io/slow-start": "30s", "kroute.io/weights": "zone/a=3", "kroute.io/locality": "prefer-node"}


@pytest.mark.parametrize("name", SHARING)
def test_what_needs_shares_implies_wrr_where_nothing_chooses_a_scheduler(name: str) -> None:
    options, problems = apply_annotations(OPEN, {name: SHARING[name]})
    assert (options.scheduler, problems) == ("wrr", [])
    assert needing_shares({name: SHARING[name]}) == name


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("scheduler", ["rr", "lc", "mh"])
def test_a_scheduler_that_was_chosen_stays(name: str, scheduler: str) -> None:
    by_settings, _ = apply_annotations(Options(scheduler), {name: SHARING[name]})
    by_annotation, _ = apply_annotations(OPEN, {name: SHARING[name], "service.scheduler": scheduler})
    assert (by_settings.scheduler, by_annotation.scheduler) == (scheduler, scheduler)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kroute.io/slow-start", "0"),
        ("kroute.io/slow-start", "soon"),
        ("kroute.io/weights", "zone/a"),
        ("kroute.io/locality", "near"),
        ("kroute.io/ejection", "on"),
        ("kroute.io/hairpin", "on"),
    ],
)
def test_what_is_off_or_invalid_or_needs_no_shares_implies_nothing(name: str, value: str) -> None:
    options, _ = apply_annotations(OPEN, {name: value})
    assert options.scheduler == "rr"
    assert needing_shares({name: value}) is None


def test_an_invalid_scheduler_chooses_nothing() -> None:
    options, [problem] = apply_annotations(OPEN, {"kroute.io/scheduler": "fastest", "slow-start": "30s"})
    assert (options.scheduler, slow_start_of(options)) == ("wrr", 30)
    assert "is not a scheduler; wrr serves" in problem.message
