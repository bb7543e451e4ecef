"""What a director follows in the API: Services with external IPs (or those of a selector), their slices, all Nodes."""

from dataclasses import replace

from kroute.director.catalog import KINDS
from kroute.model.kinds import SERVICES, WatchedKind
from kroute.watchers.kubernetes.requests import Requests
from kroute.watchers.kubernetes.watcher import KubernetesWatcher
from kroute.watchers.sink import Sink


def watched(selector: str) -> tuple[WatchedKind, ...]:
    """The kinds; no selector of the API knows external IPs, so it is planning that leaves out Services without."""
    labels = ",".join(filter(None, (SERVICES.label_selector, selector)))
    return tuple(replace(kind, label_selector=labels) if kind is SERVICES else kind for kind in KINDS)


async def follow(requests: Requests, selector: str, sink: Sink) -> None:
    """Pass every change on to the sink, until cancelled."""
    await KubernetesWatcher(requests, sink, kinds=watched(selector)).run()
