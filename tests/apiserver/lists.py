"""Lists: snapshots, pages and continue tokens."""

import base64
import json
from collections.abc import Mapping
from typing import NamedTuple

from tests.apiserver import status
from tests.apiserver.options import EXACT
from tests.apiserver.resources import Object, Target
from tests.apiserver.selectors import Selection
from tests.apiserver.store import Store

FROM_NOW = -1
"""The revision in the token that a 410 offers: go on with what is there now."""


class _Token(NamedTuple):
    revision: int
    start: str

    def encode(self, *, slash: str = "/") -> str:
        value = {"v": "meta.k8s.io/v1", "rv": self.revision, "start": f"{slash}{self.start}\0"}
        return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def list_objects(
    store: Store, target: Target, query: Mapping[str, str], selection: Selection, *, watch_cache: bool
) -> Object:
    """The List for a request; raises StatusError."""
    limit = int(query.get("limit") or 0)
    token = _decode_token(query["continue"]) if query.get("continue") else None
    version = query.get("resourceVersion", "")
    if token is None:
        match = query.get("resourceVersionMatch", "")
        revision = _revision_to_list(store, version, exact=match == EXACT or (not match and limit > 0))
        if version == "0" and watch_cache:
            limit = 0  # what is at hand is given away whole
    else:
        revision = store.revision if token.revision == FROM_NOW else token.revision
        if revision < store.compacted:
            raise status.continue_expired(_Token(FROM_NOW, token.start).encode(slash=""))
    objects = store.current(target.type) if revision == store.revision else store.at(target.type, revision)
    prefix = f"{target.namespace}/" if target.namespace else ""
    keys = sorted(key for key in objects if key.startswith(prefix) and (not token or key > prefix + token.start))
    return _page(objects, keys, prefix, revision, limit, target, selection, bool(set(query) & _SELECTORS))


_SELECTORS = {"labelSelector", "fieldSelector"}


def _page(
    objects: Mapping[str, Object],
    keys: list[str],
    prefix: str,
    revision: int,
    limit: int,
    target: Target,
    selection: Selection,
    selective: bool,
) -> Object:
    items: list[Object] = []
    metadata: Object = {"resourceVersion": str(revision)}
    for index, key in enumerate(keys):
        if limit and len(items) == limit:
            metadata["continue"] = _Token(revision, keys[index - 1].removeprefix(prefix)).encode()
            if not selective:
                metadata["remainingItemCount"] = len(keys) - index
            break
        if selection(objects[key]):
            items.append({name: value for name, value in objects[key].items() if name not in {"kind", "apiVersion"}})
    return {
        "kind": f"{target.type.kind}List",
        "apiVersion": target.type.api_version,
        "metadata": metadata,
        "items": items,
    }


def _revision_to_list(store: Store, version: str, *, exact: bool) -> int:
    """The revision to list. Pages of a version that is not said to match in any way match exactly."""
    if version in {"", "0"}:
        return store.revision
    number = parse_version(version)
    if number > store.revision:
        raise status.version_too_large(number, store.revision)
    if not exact:
        return store.revision
    if number < store.compacted:
        raise status.version_expired(number, store.compacted)
    return number


def parse_version(text: str) -> int:
    if not text.isdecimal():
        raise status.bad_resource_version(text)
    return int(text)


def _decode_token(text: str) -> _Token:
    """What a token of `_Token.encode` says; raises StatusError for anything else."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise status.bad_continue_token("illegal base64 data at input byte 0") from None
    try:
        value = json.loads(raw)
    except ValueError:
        raise status.bad_continue_token(f"invalid character '\\u{raw[0]:04x}' looking for beginning of value") from None
    if not isinstance(value, dict) or value.get("v") != "meta.k8s.io/v1" or not value.get("rv"):
        raise status.bad_continue_token("server does not recognize this encoded version")
    start = value.get("start") or ""
    if not start.endswith("\0") or ".." in start:
        raise status.bad_continue_token(start)
    return _Token(value["rv"], start.removeprefix("/").removesuffix("\0"))
