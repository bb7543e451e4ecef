"""POST, PUT, PATCH and DELETE.

Held against kube-apiserver 1.36 (pkg/registry/core/service/strategy.go, and requests to it): a write of a Service's
status changes its metadata and status alone, and is refused as any other if the resourceVersion is old. A write of
the Service itself changes its status too, which the API server ignores: tests bring Services with their status.
"""

import random
from typing import Any

from aiohttp import web

from tests.apiserver import status
from tests.apiserver.resources import Object, Target
from tests.apiserver.store import Store
from tests.apiserver.validation import validate, validate_status

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Of which the API server makes the end of a generated name: no vowels, so no words."""
_LONGEST_PREFIX = 58
"""Characters of a generateName that are used."""
_MERGE_PATCH = "application/merge-patch+json"
"""The only patches that the stand-in carries out; the API server also takes JSON, strategic and apply patches."""


async def write(store: Store, request: web.Request, target: Target) -> tuple[int, Object]:
    """Carry out a write; returns the status code and the object. Raises StatusError."""
    if target.is_status and request.method in {"POST", "DELETE"}:
        raise status.no_such_path()
    if request.method == "DELETE":
        return 200, store.delete(target.type, _existing(store, target))
    body = await _read_body(request)
    if request.method == "PATCH":
        key = _existing(store, target)
        return 200, _replace(store, target, merge(store.current(target.type)[key], body))
    _check_type(target, body)
    item = {**body, "kind": target.type.kind, "apiVersion": target.type.api_version}
    item["metadata"] = {**(body.get("metadata") or {})}
    if target.type.namespaced and not item["metadata"].get("namespace"):
        item["metadata"]["namespace"] = target.namespace or "default"
    if request.method == "POST":
        return 201, _create(store, target, item)
    if target.type.created_on_update and target.key not in store.current(target.type):
        return _create_by_update(store, target, item)
    return 200, _replace(store, target, item)


def merge(item: Any, patch: Any) -> Any:
    """JSON merge patch, RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(item) if isinstance(item, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


async def _read_body(request: web.Request) -> Object:
    accepted = _MERGE_PATCH if request.method == "PATCH" else "application/json"
    if request.content_type != accepted:
        raise status.wrong_media_type([accepted])
    try:
        body = await request.json()
    except ValueError as error:
        raise status.bad_request(f"the object provided is unrecognized: {error}") from None
    if not isinstance(body, dict):
        raise status.bad_request("the object provided is unrecognized (must be of type object)")
    return body


def _check_type(target: Target, body: Object) -> None:
    """An object may leave out what it is. It may not say that it is something else."""
    for field, expected, called in (
        ("apiVersion", target.type.api_version, "API version"),
        ("kind", target.type.kind, "kind"),
    ):
        if body.get(field) not in {None, "", expected}:
            raise status.bad_request(
                f"the {called} in the data ({body[field]}) does not match the expected {called} ({expected})"
            )


def _check_address(target: Target, item: Object) -> None:
    """An object goes where its namespace and name say."""
    metadata = item["metadata"]
    if target.namespace and metadata["namespace"] != target.namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if target.name and metadata.get("name", target.name) != target.name:
        raise status.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
        )


def _create(store: Store, target: Target, item: Object) -> Object:
    metadata = item["metadata"]
    _check_address(target, item)
    if not metadata.get("name") and metadata.get("generateName"):
        suffix = "".join(random.choices(_SUFFIX_LETTERS, k=5))
        metadata["name"] = metadata["generateName"][:_LONGEST_PREFIX] + suffix
    validate(target.type, item, None)
    if metadata.get("resourceVersion"):
        raise status.version_on_create()
    created = Target(target.type, metadata.get("namespace"), metadata["name"])
    if created.key in store.current(target.type):
        raise status.already_exists(target.type, metadata["name"])
    return store.put(item)


def _create_by_update(store: Store, target: Target, item: Object) -> tuple[int, Object]:
    """Who has read an object and finds it gone has lost it to somebody else."""
    if item["metadata"].get("resourceVersion"):
        raise status.conflict(target.type, target.name or "")
    return 201, _create(store, target, item)


def _replace(store: Store, target: Target, item: Object) -> Object:
    previous = store.current(target.type)[_existing(store, target)]
    _check_address(target, item)
    version = item["metadata"].get("resourceVersion")
    if not version and not target.type.unconditional_update:
        raise status.no_resource_version(target.type, target.name or "")
    if version and version != previous["metadata"]["resourceVersion"]:
        raise status.conflict(target.type, target.name or "")
    if target.is_status:
        item = {**previous, "metadata": item["metadata"], "status": item.get("status", {})}
        validate_status(target.type, item)
    validate(target.type, item, previous)
    return store.put(item)


def _existing(store: Store, target: Target) -> str:
    if target.key not in store.current(target.type):
        raise status.no_such_object(target.type, target.name or "")
    return target.key
