"""Prometheus' text format, version 0.0.4.

The client library's metrics are objects with a lock each, and it writes a whole registry at once. Here the values are
counters that the agent has anyway. Some families have a series for each Service, so they are written in slices and a
scrape never blocks the event loop for long.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import NamedTuple

from kroute.base.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LINES_A_SLICE = 250

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Metric(NamedTuple):
    """A family of series: full name, `counter`, `gauge` or `histogram`, help text, and names of the labels."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


Value = float | Histogram
Samples = Iterable[tuple[tuple[str, ...], Value]]
"""The series of one family: the labels' values, in the order of the labels, and the value."""


async def write(families: Iterable[tuple[Metric, Samples]]) -> AsyncIterator[bytes]:
    """The text of these families, in slices; other tasks run in between. A family without series is left out."""
    lines: list[str] = []
    for metric, samples in families:
        heading = [
            f"# HELP {metric.name} {metric.help.translate(_HELP_ESCAPES)}",
            f"# TYPE {metric.name} {metric.kind}",
        ]
        for labels, value in samples:
            lines += heading
            heading = []
            lines += _lines(metric, labels, value)
            if len(lines) >= LINES_A_SLICE:
                yield _text(lines)
                lines = []
                await asyncio.sleep(0)
    yield _text(lines)


def _lines(metric: Metric, labels: tuple[str, ...], value: Value) -> Iterator[str]:
    pairs = [f'{name}="{text.translate(_ESCAPES)}"' for name, text in zip(metric.labels, labels, strict=True)]
    if isinstance(value, Histogram):
        for bound, count in value.cumulative.items():
            yield _line(f"{metric.name}_bucket", [*pairs, f'le="{_number(bound)}"'], count)
        yield _line(f"{metric.name}_bucket", [*pairs, 'le="+Inf"'], value.count)
        yield _line(f"{metric.name}_sum", pairs, value.sum)
        yield _line(f"{metric.name}_count", pairs, value.count)
    else:
        yield _line(metric.name, pairs, value)


def _line(name: str, pairs: list[str], value: float) -> str:
    return f"{name}{{{','.join(pairs)}}} {_number(value)}" if pairs else f"{name} {_number(value)}"


def _number(value: float) -> str:
    return repr(int(value)) if value == int(value) else repr(value)


def _text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
