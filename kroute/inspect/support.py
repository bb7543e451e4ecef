"""What a running agent or director gives to `kroute bundle`: its plans, the Services behind them, and its newest log.

A Service may carry secrets in its annotations and labels (`kubectl.kubernetes.io/last-applied-configuration` repeats
the whole object). So only those annotations are given that kroute reads, and no label.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from kroute.base import logs
from kroute.model.objects import ObjectKey, Service
from kroute.model.plan import Plan
from kroute.planning.catalog import Catalog
from kroute.planning.features import ANNOTATION_NAMES
from kroute.reconcile.batches import sliced

PLANS, OBJECTS, RECENT = "plans", "objects", "recent"
"""The questions. The answers are JSON texts of one line for each plan, Service or event."""

MOST_BYTES = 8 << 20
"""After so many bytes an answer ends with a line that says how much it leaves out."""

T = TypeVar("T")


async def plans_answer(plans: Iterable[Plan]) -> bytes:
    """The newest plans, one a line. Other tasks run in between."""
    return await _lines(list(plans), msgspec.json.encode)


async def objects_answer(catalog: Catalog, keys: Iterable[ObjectKey]) -> bytes:
    """The Services of these names as planning reads them, one a line, without what kroute does not read."""
    return await _lines(list(keys), lambda key: _service(catalog, key))


async def recent_answer(_about: str) -> bytes:
    """The newest events of this process' log, one a line, the newest first."""
    return b"".join(msgspec.json.encode(event) + b"\n" for event in logs.RECENT.newest_first)


def without_unread(service: Service) -> Service:
    """The Service without labels, and with only those annotations that kroute reads."""
    known = {name: value for name, value in (service.metadata.annotations or {}).items() if name in ANNOTATION_NAMES}
    return msgspec.structs.replace(
        service, metadata=msgspec.structs.replace(service.metadata, annotations=known, labels=None)
    )


def _service(catalog: Catalog, key: ObjectKey) -> bytes:
    service, slices = catalog.objects(key)
    shown = without_unread(service) if service is not None else None
    return msgspec.json.encode({"service": shown, "slices": [endpoints.name for endpoints in slices]})


async def _lines(items: list[T], encode: Callable[[T], bytes]) -> bytes:
    """One line for each item, up to MOST_BYTES."""
    lines: list[bytes] = []
    size = 0
    async for batch in sliced(items):
        for item in batch:
            lines.append(encode(item))
            size += len(lines[-1]) + 1
            if size > MOST_BYTES:
                omitted = msgspec.json.encode({"omitted": len(items) - len(lines)})
                return b"\n".join([*lines, omitted, b""])
    return b"\n".join([*lines, b""])
