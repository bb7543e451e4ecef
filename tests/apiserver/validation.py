"""What the API server refuses of an object: names, Events, Leases, and the status of Services (`ValidateObjectMeta`,
`ValidateEventCreate`, `ValidateEventUpdate`, `ValidateLease`, `ValidateLoadBalancerStatus` in kubernetes/kubernetes
1.36). Lengths are bytes, as in Go.
"""

import json
import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, NamedTuple

from tests.apiserver import status
from tests.apiserver.resources import EVENTS, LEASES, SERVICES, Object, ResourceType

NAME_LIMIT, LABEL_LIMIT = 253, 63
NOTE_LIMIT, WORD_LIMIT = 1024, 128
_IMMUTABLE = {
    "regarding": "involvedObject",
    "reason": "reason",
    "note": "message",
    "type": "type",
    "eventTime": "eventTime",
    "action": "action",
    "related": "related",
    "reportingController": "reportingController",
    "reportingInstance": "reportingInstance",
}
"""Fields of an Event that an update may not change, and what the answer calls them."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_NO_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_NO_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


class Cause(NamedTuple):
    """One thing that is wrong."""

    field: str
    reason: str
    problem: str
    """As the answer words it: what kind of error, the value, and why."""


def validate(type_: ResourceType, item: Object, previous: Object | None) -> None:
    """Raises StatusError: 400 for what cannot be decoded, 422 for what is not valid. `previous`: what it replaces."""
    _decode(type_, item)
    causes = [*_metadata(type_, item["metadata"]), *_fields(type_, item, previous)]
    if causes:
        raise status.invalid(type_, item["metadata"].get("name", ""), [cause._asdict() for cause in causes])


def validate_status(type_: ResourceType, service: Object) -> None:
    """Raises StatusError for what a write of a Service's status may not say."""
    causes = [*_load_balancer(service)]
    if causes:
        raise status.invalid(type_, service["metadata"]["name"], [cause._asdict() for cause in causes])


def is_qualified_name(text: str) -> bool:
    """Whether this may be the key of a label: a word, or a subdomain, a slash and a word."""
    prefix, slash, word = text.rpartition("/")
    return bool((not slash or _is_subdomain(prefix)) and len(word) <= LABEL_LIMIT and _WORD.fullmatch(word))


def is_label_value(text: str) -> bool:
    """Whether this may be the value of a label."""
    return len(text) <= LABEL_LIMIT and bool(not text or _WORD.fullmatch(text))


def _is_subdomain(text: str) -> bool:
    return len(text) <= NAME_LIMIT and bool(_SUBDOMAIN.fullmatch(text))


def _decode(type_: ResourceType, item: Object) -> None:
    """What Go's decoder refuses of the times and numbers."""
    spec = item.get("spec") or {}
    times = {
        EVENTS: [item.get("eventTime"), (item.get("series") or {}).get("lastObservedTime")],
        LEASES: [spec.get("acquireTime"), spec.get("renewTime")],
    }
    numbers = {
        EVENTS: [(item.get("series") or {}).get("count")],
        LEASES: [spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")],
    }
    for moment in times.get(type_, []):
        if moment is not None and not (isinstance(moment, str) and _MICRO_TIME.fullmatch(moment)):
            raise status.undecodable(type_, f'parsing time "{moment}" as "2006-01-02T15:04:05.000000Z07:00"')
    for number in numbers.get(type_, []):
        if number is not None and (not isinstance(number, int) or abs(number) >= 1 << 31):
            raise status.undecodable(type_, f"json: cannot unmarshal {number!r} into Go value of type int32")


def _metadata(type_: ResourceType, metadata: Object) -> Iterator[Cause]:
    form, limit, problem = (
        (_LABEL, LABEL_LIMIT, _NO_LABEL) if type_ is SERVICES else (_SUBDOMAIN, NAME_LIMIT, _NO_SUBDOMAIN)
    )
    generate = metadata.get("generateName")
    name = metadata.get("name")
    checked = {"generateName": _without_dash(generate) if generate else "", "name": name or ""}
    for field, text in checked.items():
        if not text:
            continue
        if len(text.encode()) > limit:
            yield _invalid(f"metadata.{field}", metadata[field], f"must be no more than {limit} characters")
        if not form.fullmatch(text):
            yield _invalid(f"metadata.{field}", metadata[field], problem)
    if not name:
        yield _required("metadata.name", "name or generateName is required")


def _without_dash(prefix: str) -> str:
    """Something takes the place of a dash at the end of a prefix, as the rest of the name will."""
    return prefix[:-2] + "a" if prefix.endswith("-") else prefix


def _fields(type_: ResourceType, item: Object, previous: Object | None) -> Iterator[Cause]:
    if type_ is EVENTS:
        yield from _event(item)
        yield from _series(item, previous)
        if previous is not None:
            yield from (
                _invalid(named, item.get(field), "field is immutable")
                for field, named in _IMMUTABLE.items()
                if item.get(field) != previous.get(field)
            )
    if type_ is LEASES:
        yield from _lease(item.get("spec") or {})


def _event(event: Object) -> Iterator[Cause]:
    namespace = event["metadata"].get("namespace", "")
    about = (event.get("regarding") or {}).get("namespace", "")
    if not about and namespace not in {"default", "kube-system"}:
        yield _invalid("involvedObject.namespace", about, "does not match event.namespace")
    if not event.get("eventTime"):
        yield _required("eventTime")
    controller = event.get("reportingController", "")
    if not controller:
        yield _required("reportingController")
    elif not is_qualified_name(controller):
        yield _invalid("reportingController", controller, "name part must consist of alphanumeric characters")
    for field in ("reportingInstance", "action", "reason"):
        text = event.get(field, "")
        if not text:
            yield _required(field)
        if len(text.encode()) > WORD_LIMIT:
            yield _invalid(field, "", f"can have at most {WORD_LIMIT} characters")
    if len(event.get("note", "").encode()) > NOTE_LIMIT:
        yield _invalid("message", "", f"can have at most {NOTE_LIMIT} characters")
    if event.get("type") not in {"Normal", "Warning"}:
        yield _invalid("type", "", f"has invalid value: {event.get('type', '')}")


def _series(event: Object, previous: Object | None) -> Iterator[Cause]:
    series = event.get("series")
    if series is None or (previous is not None and previous.get("series") == series):
        return
    if series.get("count", 0) < 2:
        yield _invalid("series.count", "", "should be at least 2")
    if not series.get("lastObservedTime"):
        yield _required("series.lastObservedTime")


def _lease(spec: Object) -> Iterator[Cause]:
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        yield _invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")
    if transitions is not None and transitions < 0:
        yield _invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")


def _load_balancer(service: Object) -> Iterator[Cause]:
    entries = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    if entries and (service.get("spec") or {}).get("type") != "LoadBalancer":
        why = "Forbidden: may only be used when `spec.type` is 'LoadBalancer'"
        yield Cause("status.loadBalancer.ingress", "FieldValueForbidden", why)
    for number, entry in enumerate(entries):
        try:
            ip_address(entry.get("ip") or "::")
        except ValueError:
            why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            yield _invalid(f"status.loadBalancer.ingress[{number}].ip", entry["ip"], why)


def _invalid(field: str, value: Any, problem: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f"Invalid value: {json.dumps(value, ensure_ascii=False)}: {problem}")


def _required(field: str, problem: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", f"Required value: {problem}".removesuffix(": "))
