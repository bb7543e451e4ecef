"""Reduce Services for the catalog: keep only the fields that planning reads, and share equal values.

Many Services have equal ports, policies and states. Labels and annotations can be of any size, and planning reads few
of them: `kubectl apply` stores the whole object in an annotation.
"""

from collections.abc import Collection, Hashable
from functools import lru_cache
from typing import TypeVar

import msgspec

from kroute.model.objects import SERVICE_PROXY_NAME_LABEL, ObjectMeta, Service, ServiceSpec
from kroute.model.plan import shortened
from kroute.planning.features import KNOWN, unknown_names

T = TypeVar("T", bound=Hashable)

LARGEST_SHARED = 512
"""Bytes of a value, as JSON: half a dozen ports."""
SHARED_VALUES = 1 << 12
"""How many values are remembered at most: 2 MiB of JSON."""

_encode = msgspec.json.Encoder().encode
_LABEL_NAMES = frozenset({SERVICE_PROXY_NAME_LABEL})


def interned(service: Service) -> Service:
    """The Service with the fields that planning reads, in less memory. The watcher keeps the resourceVersion."""
    return Service(_metadata(service.metadata), _spec(service.spec), _shared(service.status))


def _metadata(metadata: ObjectMeta) -> ObjectMeta:
    return ObjectMeta(
        name=metadata.name,
        namespace=_shared(metadata.namespace),
        uid=metadata.uid,
        creation_timestamp=_shared(metadata.creation_timestamp),
        labels=_only(_LABEL_NAMES, metadata.labels),
        annotations=_annotations(metadata.annotations),
    )


def _annotations(annotations: dict[str, str] | None) -> dict[str, str] | None:
    """Those that kroute reads, and of those that only look so as much as a report needs."""
    kept = _only(KNOWN["Service"], annotations)
    unknown = unknown_names(annotations)
    if not unknown:
        return kept
    return (kept or {}) | {name: shortened((annotations or {}).get(name, "")) for name in unknown}


def _spec(spec: ServiceSpec) -> ServiceSpec:
    return msgspec.structs.replace(
        spec,
        type=_shared(spec.type),
        cluster_ip=spec.cluster_ips[0] if spec.cluster_ips else spec.cluster_ip,
        ports=_shared(spec.ports),
        session_affinity=_shared(spec.session_affinity),
        session_affinity_config=_shared(spec.session_affinity_config),
        internal_traffic_policy=_shared(spec.internal_traffic_policy),
        external_traffic_policy=_shared(spec.external_traffic_policy),
    )


def _only(names: Collection[str], texts: dict[str, str] | None) -> dict[str, str] | None:
    """The entries with these names, or None if there are none."""
    return {name: text for name, text in (texts or {}).items() if name in names} or None


def _shared(value: T) -> T:
    """The equal value that is in use already, or this one.

    Only small values are remembered, and beyond so many those unused for longest are forgotten: a tenant may edit a
    large value as often as it likes, and each version goes with its Service.
    """
    if value is None:
        return value
    is_small = len(value) <= LARGEST_SHARED if isinstance(value, str) else _is_small(value)
    return _known(value) if is_small else value  # type: ignore[return-value]  # equal to it, and of its type


def _is_small(value: Hashable) -> bool:
    try:
        return len(_encode(value)) <= LARGEST_SHARED
    except UnicodeEncodeError:  # a lone surrogate
        return False


@lru_cache(maxsize=SHARED_VALUES)
def _known(value: Hashable) -> Hashable:
    return value
