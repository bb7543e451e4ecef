"""What a director watches: Services with external IPs (or those of a selector), their slices, all Nodes."""

from msgspec.structs import replace

from kroute.director.catalog import KINDS
from kroute.model.kinds import SERVICES, WatchedKind
from kroute.watchers import Sink
from kroute.watchers.kubernetes.requests import Requests
from kroute.watchers.kubernetes.watcher import KubernetesWatcher


def watched(selector: str) -> tuple[WatchedKind, ...]:
    """The kinds with `selector` applied.

    No API selector knows external IPs: planning leaves out Services without any.
    """
    labels = ",".join(filter(None, (SERVICES.label_selector, selector)))
    return tuple(replace(kind, label_selector=labels) if kind is SERVICES else kind for kind in KINDS)


async def follow(requests: Requests, selector: str, sink: Sink) -> None:
    """Pass every change on to the sink until cancelled."""
    await KubernetesWatcher(requests, sink, kinds=watched(selector)).run()
