"""Services as the catalog keeps them: of an object only what planning reads, and of equal parts one.

Services have few ports, policies and states between them, but labels and annotations of any size that are others'
business (`kubectl apply` leaves the whole object in one).
"""

from collections.abc import Collection, Hashable
from functools import lru_cache
from typing import TypeVar, cast

import msgspec

from kroute.model.objects import HEADLESS_LABEL, SERVICE_PROXY_NAME_LABEL, ObjectMeta, Service, ServiceSpec
from kroute.planning.annotations import ANNOTATION_NAMES

T = TypeVar("T", bound=Hashable)

_LABEL_NAMES = frozenset({HEADLESS_LABEL, SERVICE_PROXY_NAME_LABEL})


def condensed(service: Service) -> Service:
    """The same Service to planning, in little memory. Its resourceVersion is the watcher's to remember."""
    return Service(_metadata(service.metadata), _spec(service.spec), _shared(service.status))


def _metadata(metadata: ObjectMeta) -> ObjectMeta:
    return ObjectMeta(
        name=metadata.name,
        namespace=_shared(metadata.namespace),
        uid=metadata.uid,
        creation_timestamp=_shared(metadata.creation_timestamp),
        labels=_only(_LABEL_NAMES, metadata.labels),
        annotations=_only(ANNOTATION_NAMES, metadata.annotations),
    )


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
    """Those of these names; None if there are none."""
    return {name: text for name, text in (texts or {}).items() if name in names} or None


def _shared(value: T) -> T:
    """An equal value that others hold already, as far as there are not too many."""
    return cast("T", _known(value))


@lru_cache(maxsize=1 << 12)
def _known(value: Hashable) -> Hashable:
    return value
