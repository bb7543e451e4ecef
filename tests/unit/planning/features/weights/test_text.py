"""Weights and localities are read as people write them, and what is wrong is left out with a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.model.objects import WEIGHT, ObjectMeta
from kroute.planning.features import apply_annotations
from kroute.planning.features.weights.text import MOST_WEIGHTS, Locality, ServiceWeights, read_locality, read_weights
from kroute.planning.options import Options
from kroute.planning.weight_facts import MAX_WEIGHT, Weighed, read_weight, weight_of


@pytest.mark.parametrize(("text", "weight"), [("0", 0), ("007", 7), ("65535", 65535)])
def test_a_weight(text: str, weight: int) -> None:
    assert read_weight(text) == weight


@pytest.mark.parametrize("text", ["", "65536", "-1", "1.5", "1e3", " 1", "²", "٣", "9" * 5000])
def test_no_weight(text: str) -> None:
    assert read_weight(text) is None


def test_weights_of_zones_and_nodes() -> None:
    found, complaint = read_weights("zone/a=3, zone/b=1 ,node/n1=0")
    assert (found, complaint) == (ServiceWeights({"a": 3, "b": 1}, {"n1": 0}), None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("zone/a=3,b=1", "'b=1' names neither a zone nor a node"),
        ("zone/a=3,zone/=1", "'zone/=1' names neither a zone nor a node"),
        ("zone/a=3,", "'' names neither a zone nor a node"),
        ("zone/a=3,zone/b=70000", "'zone/b=70000' has no weight from 0 to 65535"),
        ("zone/a=3,zone/b", "'zone/b' names neither a zone nor a node"),
        ("zone/a=3,zone/a=4", "zone 'a' is there twice, and the first counts"),
        (f"zone/a=3,node/{'n' * 254}=4", f"'node/{'n' * 75}...' names neither a zone nor a node"),
    ],
)
def test_a_wrong_part_is_left_out_and_the_others_count(text: str, why: str) -> None:
    assert read_weights(text) == (ServiceWeights({"a": 3}, {}), f"is obeyed only in part: {why}")


def test_without_a_right_part_nothing_changes() -> None:
    found, complaint = read_weights("3")
    assert found is None
    assert complaint == "changes no weight: '3' names neither a zone nor a node"


def test_an_endless_list_is_not_read_to_its_end() -> None:
    found, complaint = read_weights(",".join(f"node/n{number}=2" for number in range(MOST_WEIGHTS + 5000)))
    assert found is not None
    assert len(found.nodes) == MOST_WEIGHTS
    assert complaint == "is obeyed only in part: there are more than 1,000 weights"


@pytest.mark.parametrize(
    ("text", "locality"),
    [
        ("prefer-node", Locality("node", 100)),
        ("prefer-zone, spill 80%", Locality("zone", 80)),
        (" prefer-node,spill 1% ", Locality("node", 1)),
    ],
)
def test_localities(text: str, locality: Locality) -> None:
    assert read_locality(text) == (locality, None)


@pytest.mark.parametrize("spill", ["spill 0%", "spill 101%", "spill 80", "spill", "80%", "spill 80% more", ""])
def test_a_wrong_spill_leaves_the_preference(spill: str) -> None:
    locality, complaint = read_locality(f"prefer-node,{spill}")
    assert locality == Locality("node", 100)
    assert complaint == f"is obeyed only in part: {spill!r} is not a spill, and 100% holds"


def test_no_locality() -> None:
    assert read_locality("nearest") == (None, "is not a locality; all servers count alike")


@given(st.text() | st.text("zonedpriflx/=,-% 0123456789"))
def test_any_text_gives_weights_within_bounds_or_a_complaint(text: str) -> None:
    weights, complaint = read_weights(text)
    numbers = [*weights.zones.values(), *weights.nodes.values()] if weights is not None else []
    assert all(0 <= it <= MAX_WEIGHT for it in numbers)
    assert numbers or complaint
    locality, complaint = read_locality(text)
    assert 1 <= locality.spill <= 100 if locality is not None else complaint


class TestObjects:
    """What a Node or a Pod weighs."""

    def test_nothing_said_is_one(self) -> None:
        assert weight_of(ObjectMeta("n1")) == Weighed(1)

    def test_the_annotation_goes_before_the_label(self) -> None:
        assert weight_of(ObjectMeta("n1", labels={WEIGHT: "3"})) == Weighed(3)
        assert weight_of(ObjectMeta("n1", labels={WEIGHT: "3"}, annotations={WEIGHT: " 0 "})) == Weighed(0)

    def test_a_wrong_annotation_counts_as_one_and_is_told(self) -> None:
        weighed = weight_of(ObjectMeta("n1", labels={WEIGHT: "3"}, annotations={WEIGHT: "x" * 5000}))
        assert weighed == Weighed(1, f"annotation kroute.io/weight={'x' * 80}...")


class TestServices:
    """The annotations are rows of the table, with the prefix of kroute alone."""

    def test_both_are_read(self) -> None:
        annotations = {"kroute.io/weights": "zone/a=3", "kroute.io/locality": "prefer-zone"}
        options, problems = apply_annotations(Options(), annotations)
        assert (options.asked, problems) == ((ServiceWeights({"a": 3}, {}), Locality("zone")), [])

    @pytest.mark.parametrize("prefix", ["", "kube-router.io/"])
    def test_words_that_others_may_use_mean_nothing(self, prefix: str) -> None:
        options, problems = apply_annotations(Options(), {f"{prefix}weights": "zone/a=3", f"{prefix}locality": "x"})
        assert (options, problems) == (Options(), [])

    def test_a_wrong_value_is_a_problem_that_says_what_is_allowed(self) -> None:
        _, [problem] = apply_annotations(Options(), {"kroute.io/weights": "zone/a=3,zone/b=-1"})
        assert problem.reason == "InvalidAnnotation"
        assert problem.message == (
            "annotation kroute.io/weights=zone/a=3,zone/b=-1 is obeyed only in part: 'zone/b=-1' has no weight from 0 "
            "to 65535. Allowed: zone/NAME=WEIGHT and node/NAME=WEIGHT, separated by commas, with weights from 0 to "
            "65535."
        )
