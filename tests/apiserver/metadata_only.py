"""Objects as `PartialObjectMetadata`, where a request accepts that (apiserver/pkg/endpoints/handlers/response.go)."""

from collections.abc import Callable, Mapping

from tests.apiserver.encoding import encode
from tests.apiserver.resources import Object
from tests.apiserver.status import StatusError

GROUP_VERSION = "meta.k8s.io/v1"
ONE, LIST = "PartialObjectMetadata", "PartialObjectMetadataList"


def asked_for(headers: Mapping[str, str], *, lists: bool) -> bool:
    """Whether the first type that the request accepts is the metadata alone. Raises StatusError for the wrong one."""
    _, *parameters = headers.get("Accept", "").partition(",")[0].split(";")
    named = dict(it.strip().partition("=")[::2] for it in parameters)
    kind = named.get("as")
    if kind is None:
        return False
    if kind not in {ONE, LIST} or (named.get("g"), named.get("v")) != ("meta.k8s.io", "v1"):
        raise not_acceptable("only the following media types are accepted: application/json")
    if lists != (kind == LIST):
        what = "is a list" if lists else "is not a list"
        raise not_acceptable(f"you requested {kind}, but the requested object {what}")
    return True


def answer(headers: Mapping[str, str], found: Object) -> Object:
    """A list as the request wants it."""
    if not asked_for(headers, lists=True):
        return found
    return {**found, "kind": LIST, "apiVersion": GROUP_VERSION, "items": [of_object(it) for it in found["items"]]}


def line_of(headers: Mapping[str, str], whole: Callable[[Object], bytes]) -> Callable[[Object], bytes]:
    """How an event is written as the request wants it; `whole` writes whole objects."""
    return (lambda event: encode(of_event(event))) if asked_for(headers, lists=False) else whole


def of_event(event: Object) -> Object:
    return {**event, "object": of_object(event["object"])} if event["type"] != "ERROR" else event


def of_object(item: Object) -> Object:
    return {"kind": ONE, "apiVersion": GROUP_VERSION, "metadata": item["metadata"]}


def not_acceptable(message: str) -> StatusError:
    return StatusError(406, "NotAcceptable", message)
