"""YAML as Kubernetes reads it: a time stamp is a string. Imported only when there is YAML to read.

libyaml processes nesting by recursion in C, which ends the process at some 50,000 levels. An alias can stand for a
value of any size, even for itself. So a text is first read event by event, and refused if it exceeds the limits below.
"""

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from yaml import SafeLoader as FastestSafeLoader
else:
    FastestSafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MOST_LEVELS = 100
"""The most levels of nesting. A Service has seven, its `managedFields` some twenty."""
MOST_ALIASED = 100_000
"""The most values that all aliases of a text may stand for together."""

FAILURES = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that PyYAML raises for a text that it cannot convert to values, such as `!!int x`, `!!bool x` or `!!int
""`."""


class TextLoader(FastestSafeLoader):
    """The safe loader, by libyaml if that is installed, without dates."""


def load(text: bytes) -> list[Any]:
    """The documents of a text. Raises one of FAILURES."""
    _check(text)
    return list(yaml.load_all(text, TextLoader))


def _check(text: bytes) -> None:
    """Raise YAMLError for a text that is nested too deep, refers to itself, or stands for too many values."""
    measure = _Measure()
    for event in yaml.parse(text, TextLoader):
        match event:
            case yaml.DocumentStartEvent():
                measure = _Measure()
            case yaml.CollectionStartEvent():
                measure.begin(event)
            case yaml.CollectionEndEvent():
                measure.end()
            case yaml.ScalarEvent():
                measure.scalar(event)
            case yaml.AliasEvent():
                measure.alias(event)


class _Measure:
    """Counts the values of each open collection of a document, including those that aliases stand for."""

    def __init__(self) -> None:
        self._open: list[tuple[str | None, int]] = [(None, 0)]
        self._anchors: dict[str | None, int] = {}
        self._aliased = 0

    def begin(self, event: yaml.CollectionStartEvent) -> None:
        self._open.append((event.anchor, 1))
        self._anchors.pop(event.anchor, None)
        if len(self._open) > MOST_LEVELS:
            raise yaml.YAMLError(f"more than {MOST_LEVELS} levels of nesting{event.start_mark}")

    def end(self) -> None:
        anchor, size = self._open.pop()
        self._count(size)
        self._anchors[anchor] = size

    def scalar(self, event: yaml.ScalarEvent) -> None:
        self._count(1)
        self._anchors[event.anchor] = 1

    def alias(self, event: yaml.AliasEvent) -> None:
        if any(anchor == event.anchor for anchor, _ in self._open):
            raise yaml.YAMLError(f"the alias *{event.anchor} refers to itself{event.start_mark}")
        size = self._anchors.get(event.anchor, 1)  # the loader reports an unknown alias
        self._aliased += size
        if self._aliased > MOST_ALIASED:
            raise yaml.YAMLError(f"aliases for more than {MOST_ALIASED:,} values{event.start_mark}")
        self._count(size)

    def _count(self, size: int) -> None:
        anchor, before = self._open[-1]
        self._open[-1] = (anchor, before + size)


def _as_written(loader: TextLoader, node: Any) -> str:
    return str(loader.construct_scalar(node))


TextLoader.add_constructor("tag:yaml.org,2002:timestamp", _as_written)
