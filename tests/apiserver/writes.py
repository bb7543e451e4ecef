"""POST, PUT, PATCH and DELETE."""

import random
from typing import Any

from aiohttp import web

from tests.apiserver import status
from tests.apiserver.resources import Object, Target
from tests.apiserver.store import Store

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Of which the API server makes the end of a generated name: no vowels, so no words."""


async def write(store: Store, request: web.Request, target: Target) -> tuple[int, Object]:
    """Carry out a write; returns the status code and the object. Raises StatusError."""
    if request.method == "DELETE":
        return 200, store.delete(target.type, _existing(store, target))
    try:
        body = await request.json()
    except ValueError as error:
        raise status.bad_request(f"the object provided is unrecognized: {error}") from None
    if request.method == "PATCH":
        key = _existing(store, target)
        return 200, store.put(merge(store.current(target.type)[key], body))
    item = {"kind": target.type.kind, "apiVersion": target.type.api_version, **body}
    item["metadata"] = {**body.get("metadata", {})}
    if target.type.namespaced:
        item["metadata"].setdefault("namespace", target.namespace or "default")
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


def _create(store: Store, target: Target, item: Object) -> Object:
    metadata = item["metadata"]
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"] + "".join(random.choices(_SUFFIX_LETTERS, k=5))
    name = metadata.get("name")
    if not name:
        raise status.bad_request("name or generateName is required")
    created = Target(target.type, metadata.get("namespace"), name)
    if created.key in store.current(target.type):
        raise status.already_exists(target.type, name)
    return store.put(item)


def _create_by_update(store: Store, target: Target, item: Object) -> tuple[int, Object]:
    """Who has read an object and finds it gone has lost it to somebody else."""
    if item["metadata"].get("resourceVersion"):
        raise status.conflict(target.type, target.name or "")
    return 201, _create(store, target, item)


def _replace(store: Store, target: Target, item: Object) -> Object:
    key = _existing(store, target)
    version = item["metadata"].get("resourceVersion")
    if not version and not target.type.unconditional_update:
        raise status.no_resource_version(target.type, target.name or "")
    if version and version != store.current(target.type)[key]["metadata"]["resourceVersion"]:
        raise status.conflict(target.type, target.name or "")
    return store.put(item)


def _existing(store: Store, target: Target) -> str:
    if target.key not in store.current(target.type):
        raise status.no_such_object(target.type, target.name or "")
    return target.key
