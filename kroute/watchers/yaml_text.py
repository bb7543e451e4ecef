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


def value_of(text: str) -> Any:
    """The only document of a text. Raises ValueError that quotes nothing of the text: it may hold a password."""
    try:
        documents = load(text.encode())
    except FAILURES as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"it is not YAML{f' (line {mark.line + 1})' if mark is not None else ''}") from None
    if len(documents) != 1:
        raise ValueError("it is not one document of YAML")
    return documents[0]


def _check(text: bytes) -> None:
    """Raise YAMLError for a text that is nested too deep, refers to itself, or stands for too many values."""
    collections: list[tuple[str | None, int]] = [(None, 0)]
    """The anchor of each open collection, and how many values it has so far, with those that aliases stand for."""
    sizes: dict[str | None, int] = {}
    aliased = 0
    for event in yaml.parse(text, TextLoader):
        size = 0
        match event:
            case yaml.DocumentStartEvent():
                collections, sizes, aliased = [(None, 0)], {}, 0
            case yaml.CollectionStartEvent():
                collections.append((event.anchor, 1))
                sizes.pop(event.anchor, None)
                if len(collections) > MOST_LEVELS:
                    raise yaml.YAMLError(f"more than {MOST_LEVELS} levels of nesting{event.start_mark}")
            case yaml.CollectionEndEvent():
                anchor, size = collections.pop()
                sizes[anchor] = size
            case yaml.ScalarEvent():
                size = sizes[event.anchor] = 1
            case yaml.AliasEvent():
                if any(anchor == event.anchor for anchor, _ in collections):
                    raise yaml.YAMLError(f"the alias *{event.anchor} refers to itself{event.start_mark}")
                size = sizes.get(event.anchor, 1)  # the loader reports an unknown alias
                aliased += size
                if aliased > MOST_ALIASED:
                    raise yaml.YAMLError(f"aliases for more than {MOST_ALIASED:,} values{event.start_mark}")
        anchor, before = collections[-1]
        collections[-1] = (anchor, before + size)


def _as_written(loader: TextLoader, node: Any) -> str:
    return str(loader.construct_scalar(node))


TextLoader.add_constructor("tag:yaml.org,2002:timestamp", _as_written)
