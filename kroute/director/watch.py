"""What a director follows in the API: Services with external IPs (or those of a selector), their slices, all Nodes."""

import asyncio
from dataclasses import replace

from kroute.watchers.kubernetes.reflector import Reflector
from kroute.watchers.kubernetes.requests import Requests
from kroute.watchers.kubernetes.resources import ENDPOINT_SLICES, NODES, SERVICES, Resource
from kroute.watchers.sink import Sink


def watched(selector: str) -> tuple[Resource, ...]:
    """The resources; no selector of the API knows external IPs, so it is planning that leaves out Services without."""
    labels = ",".join(filter(None, (SERVICES.label_selector, selector)))
    return replace(SERVICES, label_selector=labels), ENDPOINT_SLICES, NODES


async def follow(requests: Requests, selector: str, sink: Sink) -> None:
    """Pass every change on to the sink, until cancelled."""
    async with asyncio.TaskGroup() as group:
        for resource in watched(selector):
            group.create_task(Reflector(requests, resource, sink).run(), name=f"watch {resource.kind.__name__}")
