"""The table of values in the chart's README.md: names and defaults of values.yaml, with the comments above them."""

import json
import re
from collections.abc import Iterator

import yaml

from tests.lab.chart import CHART
from tests.unit.chart_schema import Schema, schema

README = CHART / "README.md"
_HEADING = "## Values\n\n"


def text() -> str:
    """The content of README.md: its own text as it is, and the table."""
    own, heading, _ = README.read_text().partition(_HEADING)
    rows = [f"| `{name}` | {default} | {meaning} |" for name, default, meaning in values()]
    return own + heading + "\n".join(["| value | default | meaning |", "|---|---|---|", *rows]) + "\n"


def values() -> Iterator[tuple[str, str, str]]:
    """Each value that the schema does not divide further: its name, its default as code, and its comment."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    comment: list[str] = []
    path: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        if said := re.fullmatch(r" *# ?(.*)", line):
            comment.append(said[1])
            continue
        if found := re.match(r"((?:  )*)([\w.-]+):", line):
            path = [*path[: len(found[1]) // 2], found[2]]
            if _is_divided(path):
                assert not comment, f"{path}: say it of the values below"
            elif _is_known(path):
                assert comment, f"{path} has no comment"
                yield ".".join(path), _default(defaults, path), " ".join(comment)
        comment = []


def _schema_of(path: list[str]) -> Schema:
    found = schema()
    for name in path:
        found = found.get("properties", {}).get(name, {})
    return found


def _is_divided(path: list[str]) -> bool:
    return _schema_of(path).get("additionalProperties") is False and path != ["settings"] and path[-1] not in _WHOLE


def _is_known(path: list[str]) -> bool:
    return path == ["settings"] or (path[0] != "settings" and not _WHOLE & {*path[:-1]} and bool(_schema_of(path)))


_WHOLE = {"resources", "updateStrategy"}
"""Parts of Kubernetes' own objects, with one comment each."""


def _default(defaults: object, path: list[str]) -> str:
    for name in path:
        assert isinstance(defaults, dict)
        defaults = defaults[name]
    return f"`{json.dumps(defaults)}`"
