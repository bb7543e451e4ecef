"""The policy for annotations in deploy/ is made from kroute's table, and judges values as kroute's parser does."""

import os
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kroute.planning.features import ANNOTATIONS, apply_annotations
from kroute.planning.options import PREFIX, Options
from tests.admission import policy, samples
from tests.examples import examples
from tests.lab.manifests import with_component
from tests.unit.kubernetes_schemas import NEWEST, OLDEST, validate

NAMES = [row.name.removeprefix(PREFIX) for row in ANNOTATIONS]
TELLING = ("wrr", "sh", "mh")
"""Schedulers of which one has every flag and every share."""


def complaints(name: str, value: str) -> list[str]:
    """What kroute says of a value with the scheduler that it fits best."""
    found = [apply_annotations(Options(it, has_counters=True), {PREFIX + name: value})[1] for it in TELLING]
    return [it.message for it in min(found, key=len)]


def admits(name: str, value: str) -> bool:
    return re.search(policy.pattern(name), value, re.ASCII) is not None


def test_the_manifest_is_what_the_table_says() -> None:
    if "KROUTE_WRITE_GOLDEN" in os.environ:
        policy.MANIFEST.write_text(policy.text())
    assert policy.MANIFEST.read_text() == policy.text()


def test_every_annotation_has_its_values() -> None:
    assert sorted(policy.VALUES) == sorted(samples.VALUES) == sorted(NAMES)
    assert {row.name for row in ANNOTATIONS if row.needs_shares} == {PREFIX + name for name in policy.FITTING}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_objects_are_valid_by_the_schemas_of_kubernetes(version: str) -> None:
    objects = list(yaml.safe_load_all(policy.MANIFEST.read_text()))
    for item in objects:
        validate(item, version)
    made, binding = objects
    assert binding["spec"]["policyName"] == made["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny"]


def test_the_component_adds_them(tmp_path: object) -> None:
    kinds = {it["kind"] for it in with_component("admission", tmp_path)}  # type: ignore[arg-type]
    assert {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "DaemonSet"} <= kinds


def test_a_value_is_admitted_if_kroute_obeys_it() -> None:
    values = [(name, value) for name, them in samples.VALUES.items() for value in them]
    assert [case for case in values if admits(*case) is bool(complaints(*case))] == []


@pytest.mark.parametrize("name", NAMES)
@examples(100)
@given(data=st.data())
def test_kroute_obeys_whatever_is_admitted(name: str, data: st.DataObject) -> None:
    value = data.draw(st.from_regex(re.compile(policy.pattern(name), re.ASCII), fullmatch=True))
    assert [it for it in complaints(name, value) if "is there twice" not in it] == []


@pytest.mark.parametrize("name", NAMES)
@examples(100)
@given(data=st.data())
def test_what_is_not_admitted_is_not_obeyed_either(name: str, data: st.DataObject) -> None:
    """But for three spellings: leading zeros, spaces beyond ASCII, and IPv6 addresses that end as IPv4 ones do."""
    known = st.sampled_from(samples.VALUES[name])
    piece = st.one_of(known, st.text("0123456789 ,./%=smhonOFFzadeprtunwilk-\u00e4\u2003", max_size=3))
    value = data.draw(st.lists(piece, max_size=4).map("".join))
    if not admits(name, value):
        is_odd = "000" in value or not value.isascii() or re.search(r":[0-9]+\.", value)
        assert complaints(name, value) != [] or is_odd


@examples(300)
@given(first=st.integers(0, 3000), length=st.integers(0, 3000), number=st.integers(0, 9999))
def test_numbers_of_a_range_are_told_from_others(first: int, length: int, number: int) -> None:
    matches = re.fullmatch(policy.numbers(first, first + length), str(number)) is not None
    assert matches is (first <= number <= first + length)
