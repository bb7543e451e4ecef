"""Whatever the annotations of an object are named, what they cost and what is said of them is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from kroute.planning.features import (
    ANNOTATION_NAMES,
    MOST_REPORTED,
    MOST_UNKNOWN,
    Annotated,
    apply_annotations,
    unknown_annotations,
)
from kroute.planning.interning import interned
from kroute.planning.options import Options
from tests.builders import service
from tests.unit.fuzz.fields import annotation_names, texts
from tests.unit.fuzz.strategies import fuzzed

any_text = st.text(st.characters(), max_size=400)
"""Lone surrogates as well: manifests and fakes may hold what the API server refuses."""
names = st.one_of(annotation_names, any_text.map("kroute.io/".__add__), any_text)
many = st.builds(
    lambda text, count: {f"kroute.io/{text}{number}": text for number in range(count)},
    any_text,
    st.sampled_from((0, 3, 4, 20, 21, 3000)),
)
annotations = st.builds(dict.__or__, many, st.dictionaries(names, texts, max_size=8))


@fuzzed
@given(found=annotations, kind=st.sampled_from(("Service", "Node")))
def test_what_is_said_of_unknown_annotations_is_bounded(found: dict[str, str], kind: Annotated) -> None:
    problems = unknown_annotations(found, kind)
    assert len(problems) <= MOST_REPORTED + 1
    assert len({it.subject for it in problems}) == len(problems)
    for problem in problems:
        assert len(problem.message) < 1024, "what fits into an Event"
        assert len(problem.subject) < 128


@fuzzed
@given(found=annotations)
def test_the_kept_part_of_annotations_means_the_same_and_is_bounded(found: dict[str, str]) -> None:
    kept = interned(service(annotations=found)).metadata.annotations or {}
    known = {name: value for name, value in found.items() if name in ANNOTATION_NAMES}
    assert known.items() <= kept.items()
    assert len(kept) <= len(known) + MOST_UNKNOWN
    assert all(len(name) <= 100 for name in kept)
    assert unknown_annotations(kept) == unknown_annotations(found)
    before = Options("rr", is_open=True)
    assert apply_annotations(before, kept) == apply_annotations(before, found) == apply_annotations(before, known)
