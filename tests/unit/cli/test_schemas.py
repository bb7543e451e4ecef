"""JSON and YAML documents have a version, a kind and a schema, and spell protocols as the Kubernetes API does.

The schemas are in `docs/schemas/`. `KROUTE_WRITE_GOLDEN=1 make unit` writes them again.
"""

import json
import os
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from jsonschema import Draft202012Validator

import kroute.cli
from kroute.cli.terminal import formats
from kroute.migration.leftovers import Leftovers
from kroute.model.document import API_VERSION, Document
from kroute.model.plan import VirtualServerKey
from tests.unit.cli.terminal_views import VIEWS

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(kind: type[Document]) -> dict[str, Any]:
    """The JSON schema of one kind of document, with all parts under `$defs`. Fields that it does not name may be added
    by a later version."""
    (reference,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    whole = dict(parts.pop(reference["$ref"].rpartition("/")[2]))
    head = {"apiVersion": {"const": API_VERSION}, "kind": {"const": kind.kind}}
    return {
        "$schema": DIALECT,
        "title": kind.kind,
        "type": "object",
        "description": _one_line(whole.get("description", "")),
        "properties": head | whole["properties"],
        "required": [*head, *whole.get("required", ())],
        "$defs": {name: _described(part) for name, part in sorted(parts.items())},
    }


def _described(part: dict[str, Any]) -> dict[str, Any]:
    return part | {"description": _one_line(part["description"])} if "description" in part else part


def _one_line(text: str) -> str:
    return " ".join(text.split())


def kinds(base: type[Document] = Document) -> Iterator[type[Document]]:
    """Every kind of document that has been imported."""
    for each in base.__subclasses__():
        yield each
        yield from kinds(each)


for _module in pkgutil.walk_packages(kroute.cli.__path__, "kroute.cli."):
    import_module(_module.name)
KINDS = {each.kind: each for each in kinds()}


def documents() -> dict[str, Document]:
    found = {name: view.found for name, view in VIEWS.items()}
    return {name: it.as_document() if isinstance(it, Leftovers) else it for name, it in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_its_schema_is_in_the_docs(kind: str) -> None:
    path, made = SCHEMAS / f"{kind}.json", json.dumps(schema(KINDS[kind]), indent=2) + "\n"
    if "KROUTE_WRITE_GOLDEN" in os.environ:
        path.parent.mkdir(exist_ok=True)
        path.write_text(made)
    assert path.read_text() == made
    Draft202012Validator.check_schema(json.loads(made))


def test_the_docs_have_no_other_schema() -> None:
    assert {path.stem for path in SCHEMAS.iterdir()} == set(KINDS)
    page = SCHEMAS.with_suffix(".md").read_text()
    assert set(re.findall(r"\(schemas/(\w+)\.json\)", page)) == set(KINDS)


@pytest.mark.parametrize("name", VIEWS)
def test_what_a_command_writes_is_as_its_schema_says(name: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    document = documents()[name]
    formats.show(document, "json", lambda _, __: None)
    written = json.loads(capfdbinary.readouterr().out)
    assert list(written)[:2] == ["apiVersion", "kind"]
    assert (written["apiVersion"], written["kind"]) == (API_VERSION, document.kind)
    Draft202012Validator(schema(type(document))).validate(written)
    assert not list(keys_with_underscores(written))
    formats.show(document, "yaml", lambda _, __: None)
    assert yaml.safe_load(capfdbinary.readouterr().out) == written


def keys_with_underscores(value: object) -> list[str]:
    match value:
        case dict():
            deeper = [it for each in value.values() for it in keys_with_underscores(each)]
            return [str(key) for key in value if "_" in str(key)] + deeper
        case list():
            return [it for each in value for it in keys_with_underscores(each)]
    return []


@pytest.mark.parametrize("kind", KINDS)
def test_no_part_is_an_array_whose_places_have_meanings(kind: str) -> None:
    """The kernel's key of a virtual server would be one, with the number of its protocol."""
    assert "prefixItems" in json.dumps(msgspec.json.schema(VirtualServerKey))
    assert "prefixItems" not in json.dumps(schema(KINDS[kind]))


@pytest.mark.parametrize("name", VIEWS)
def test_names_are_one_a_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    formats.show(documents()[name], "name", lambda _, __: None)
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert len(lines) == len(set(lines))
