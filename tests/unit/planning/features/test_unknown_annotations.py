"""Annotations with kroute's prefix that kroute does not know: each is a problem that says what was meant."""

import pytest

from kroute.model.objects import Applied, Node, Service
from kroute.model.plan import NodePlan, Problem
from kroute.planning.catalog import Catalog
from kroute.planning.features import ANNOTATION_NAMES, MOST_UNKNOWN, unknown_annotations
from kroute.planning.interning import interned
from tests.builders import facts, finish, node, plan_service, service, settings
from tests.unit.planning.test_catalog import LISTED


def message(name: str) -> str:
    [problem] = unknown_annotations({name: "x"})
    assert problem.subject == f"annotation {name}"
    assert problem.message.startswith(f"annotation {name} ")
    return problem.message


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kroute.io/schedular", "kroute.io/scheduler"),
        ("kroute.io/sheduler", "kroute.io/scheduler"),
        ("kroute.io/schedflags", "kroute.io/scheduler-flags"),
        ("kroute.io/scheduler_flags", "kroute.io/scheduler-flags"),
        ("kroute.io/service.slow-start", "kroute.io/slow-start"),
        ("kroute.io/slowstart", "kroute.io/slow-start"),
        ("kroute.io/wieghts", "kroute.io/weights"),
        ("kroute.io/skiplbips", "kroute.io/skip-load-balancer-ips"),
        ("kroute.io/dsr", "kroute.io/direct-return"),
        ("kroute.io/persistence", "kroute.io/persistence-timeout"),
        ("kroute.io/Hairpin", "kroute.io/hairpin"),
        ("Kroute.io/hairpin", "kroute.io/hairpin"),
        ("KROUTE.IO/service.hairpin", "kroute.io/hairpin"),
    ],
)
def test_a_typing_error_gets_the_name_that_was_meant(name: str, meant: str) -> None:
    assert message(name) == f"annotation {name} is not known and has no effect. Did you mean {meant}?"


def test_a_name_like_no_other_gets_all_names() -> None:
    text = message("kroute.io/team")
    assert "Allowed on a Service: kroute.io/scheduler, kroute.io/scheduler-flags, " in text
    assert len(text) < 1024


def test_what_is_for_nodes_and_pods_says_so_on_a_service() -> None:
    assert message("kroute.io/weight") == (
        "annotation kroute.io/weight is for Nodes and Pods and has no effect on a Service. "
        "Did you mean kroute.io/weights?"
    )


def test_known_names_and_those_of_others_are_no_problem() -> None:
    others = ["kube-router.io/service.advertise.clusterip", "kroute.example/scheduler", "weight"]
    assert [name for name in (*ANNOTATION_NAMES, *others) if unknown_annotations({name: "x"})] == []


def test_no_annotations_are_no_problem() -> None:
    assert unknown_annotations(None) == unknown_annotations({}) == []


@pytest.mark.parametrize(
    ("count", "more"), [(3, None), (4, "1 further"), (9, "6 further"), (5000, "17 or more further")]
)
def test_of_many_the_first_are_named_and_the_others_counted(count: int, more: str | None) -> None:
    problems = unknown_annotations({f"kroute.io/x{number:04}": "" for number in range(count)})
    assert [it.subject for it in problems[:3]] == [f"annotation kroute.io/x{number:04}" for number in range(3)]
    assert [it.message.startswith(f"{more} unknown annotations") for it in problems[3:]] == ([True] if more else [])


def test_a_service_with_an_unknown_annotation_is_served_as_without_it() -> None:
    plain, typed = (
        plan_service(service(annotations=it), (), facts(), settings())
        for it in (None, {"kroute.io/weigths": "node/a=2"})
    )
    assert typed.virtual_servers == plain.virtual_servers
    assert typed.problems == (
        Problem(
            "UnknownAnnotation",
            "annotation kroute.io/weigths",
            "annotation kroute.io/weigths is not known and has no effect. Did you mean kroute.io/weights?",
        ),
    )


def test_the_catalog_keeps_a_bounded_part_of_them() -> None:
    hostile = {f"kroute.io/{number:05}{'x' * 300}": "y" * 1000 for number in range(500)}
    item = service(annotations={**hostile, "kroute.io/scheduler": "lc", "example.org/team": "blue"})
    kept = interned(item).metadata.annotations or {}
    assert len(kept) == MOST_UNKNOWN + 1
    assert kept["kroute.io/scheduler"] == "lc"
    assert sum(len(name) + len(value) for name, value in kept.items()) < 5000
    assert unknown_annotations(kept) == unknown_annotations(item.metadata.annotations)


def node_plan(item: Node) -> NodePlan:
    catalog = Catalog(settings(), facts())
    catalog.take([Applied(item), *LISTED])
    [plan] = [it for it in catalog.plan_marked() if isinstance(it, NodePlan)]
    return plan


def test_the_annotation_of_a_service_says_so_on_this_node() -> None:
    plan = node_plan(
        node(annotations={"kroute.io/weight": "2", "kroute.io/weights": "zone/a=2", "kroute.io/wait": "3"})
    )
    assert [it.message for it in plan.problems if it.reason == "UnknownAnnotation"] == [
        "annotation kroute.io/wait is not known and has no effect. Did you mean kroute.io/weight?",
        "annotation kroute.io/weights is for Services and has no effect on a Node. Did you mean kroute.io/weight?",
    ]


def test_the_catalog_tells_what_has_chosen_the_scheduler() -> None:
    def told(annotations: dict[str, str], scheduler: str = "auto") -> tuple[str, str]:
        catalog = Catalog(settings(scheduler=scheduler), facts())
        item: Service = service(annotations=annotations)
        catalog.take([Applied(item), *LISTED])
        catalog.plan_marked()
        view = finish(catalog.explaining(item.key))
        assert view is not None
        return view.scheduler, view.scheduler_reason

    weights = {"kroute.io/weights": "zone/a=3"}
    nothing = "since nothing chooses a scheduler"
    assert told({}) == ("rr", "the default")
    assert told({}, "rr") == ("rr", "by --scheduler")
    assert told(weights, "rr") == ("rr", "by --scheduler")
    assert told({"service.scheduler": "lc"}, "rr") == ("lc", "by annotation service.scheduler")
    assert told(weights) == ("wrr", f"implied by annotation kroute.io/weights, {nothing}")
    assert told({"kroute.io/scheduler": "worst"} | weights) == (
        "wrr",
        f"implied by annotation kroute.io/weights, {nothing}",
    )
    assert told({"kroute.io/scheduler": "worst"}) == ("rr", "the default")
