"""docs/security.md is true: its examples are valid, and its limits and rights are those of the code."""

import importlib
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from kroute.checks.preflight import DIRECTOR, NODE
from kroute.cli.main import load
from kroute.firewall.backend import BACKENDS
from tests.unit.each import assert_each
from tests.unit.kubernetes_schemas import validate

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
UNITS = {"": 1, "characters": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20}
EXAMPLES = [
    item
    for block in re.findall(r"(?:^(?: {4}.*)?\n)+", PAGE, re.MULTILINE)
    for item in yaml.load_all(re.sub(r"^ {4}", "", block, flags=re.MULTILINE), yaml.CSafeLoader)
    if item
]
LIMITS = re.findall(r"^\| (.+?) \| ([\d,]+) ?(\w*) \| `(\S+)`(?: in `(\S+)`)? \|$", PAGE, re.MULTILINE)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("version", ["1.31.0", "1.37.0"])
@pytest.mark.parametrize("item", EXAMPLES, ids=lambda item: f"{item['kind']} {item['metadata']['name']}")
def test_every_policy_is_valid_by_the_schemas_of_kubernetes(item: dict[str, Any], version: str) -> None:
    validate(item, version)


def test_every_policy_is_bound_and_refuses_what_it_cannot_judge() -> None:
    policies = {it["metadata"]["name"]: it["spec"] for it in EXAMPLES if it["kind"] == "ValidatingAdmissionPolicy"}
    bindings = [it["spec"] for it in EXAMPLES if it["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert len(policies) >= 3
    assert policies.keys() == {it["policyName"] for it in bindings}
    assert all(it["validationActions"] == ["Deny"] for it in bindings)
    assert all(it["failurePolicy"] == "Fail" for it in policies.values())


def test_the_parentheses_of_every_expression_match() -> None:
    expressions = [
        rule["expression"]
        for item in EXAMPLES
        for name in ("variables", "matchConditions", "validations")
        for rule in item["spec"].get(name, ())
    ]
    assert len(expressions) >= 6
    for expression in expressions:
        rest = re.sub(r"'[^']*'|[^()\[\]]", "", expression)
        while (shorter := rest.replace("()", "").replace("[]", "")) != rest:
            rest = shorter
        assert rest == "", expression


def test_every_row_of_the_limits_can_be_checked() -> None:
    assert len(LIMITS) == section("Limits").count("\n| ") - 1


def test_each_limit_is_that_of_the_code() -> None:
    def check(row: tuple[str, str, str, str, str]) -> None:
        _, number, unit, name, file = row
        limit = int(number.replace(",", "")) * UNITS[unit]
        if file:
            module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
            assert limit == attrgetter(name)(module)
        else:
            [option] = [it for it in load("run").params if name in it.opts]
            assert limit == int(option.default)

    assert_each(LIMITS, check, name=lambda row: row[0])


def test_an_attempt_has_a_test() -> None:
    """Each row names a test file; test_documentation.py checks that the files exist."""
    rows = re.findall(r"^\| (?!attempt|mistake|---)(.*) \|$", section("What each of them can try"), re.MULTILINE)
    assert len(rows) > 25
    for row in rows:
        assert re.search(r"`tests/[\w/]+\.py`$", row), row


def test_the_capabilities_are_those_that_kroute_asks_for() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.*?) \| (.*?) \|", section("What kroute needs, and why"), re.MULTILINE)
    assert {name for name, agent, _ in rows if agent == "yes"} == {*NODE.capabilities}
    with_iptables = {name for name, agent, _ in rows if agent == "with `--firewall iptables`"}
    assert with_iptables == {*BACKENDS["iptables"].capabilities}
    assert {name for name, _, director in rows if director == "yes"} == {*DIRECTOR.capabilities}


def test_every_setting_that_is_named_exists() -> None:
    known = {word for name in ("run", "director") for option in load(name).params for word in option.opts}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known
