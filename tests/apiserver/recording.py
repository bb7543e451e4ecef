"""The recordings of a real kube-apiserver (1.36) that the stand-in is held against."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any, Self

from tests.apiserver.encoding import Verbatim
from tests.apiserver.resources import BY_KIND, Object, key_of
from tests.apiserver.store import Store

DIRECTORY = Path(__file__).parent / "recordings"
NAMES = tuple(sorted(path.stem for path in DIRECTORY.glob("*.json")))


class Recording:
    """One request and its answer."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.name: str = content["name"]
        request = content["request"]
        self.method: str = request.get("method", "GET")
        self.path: str = request["path"]
        self.request_headers: dict[str, str] = request.get("headers", {})
        self.request_body: str | None = request.get("body")
        self._response: dict[str, Any] = content["response"]
        self.status: int = self._response["status"]
        self.headers: dict[str, str] = self._response["headers"]

    @classmethod
    def load(cls, name: str) -> Self:
        return cls(json.loads((DIRECTORY / f"{name}.json").read_text()))

    @property
    def is_write(self) -> bool:
        return self.method != "GET"

    @property
    def is_stream(self) -> bool:
        return "stream" in self._response

    @property
    def lines(self) -> list[bytes]:
        """The lines of a watch."""
        return [entry["line"].encode() for entry in self._response["stream"] if "line" in entry]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def body(self) -> bytes:
        """The body of any other answer, decompressed."""
        if "body_base64" in self._response:
            return gzip.decompress(base64.b64decode(self._response["body_base64"]))
        return str(self._response["body"]).encode()

    @property
    def item(self) -> Object:
        """The object in any other answer."""
        item: Object = json.loads(self.body)
        return item

    @property
    def items(self) -> list[Object]:
        """The objects of a list, each with its kind."""
        content = json.loads(self.body)
        kind = content["kind"].removesuffix("List")
        return [{"kind": kind, "apiVersion": content["apiVersion"], **item} for item in content["items"]]


def deep_service() -> Object:
    """The Service that a real API server stored and gave out with `managedFields` nested 1,100 deep."""
    recorded = json.loads((DIRECTORY / "stored" / "service-deep-managed-fields.json").read_text())
    body: str = recorded["response"]["body"]
    start = body.index('"managedFields":') + len('"managedFields":')
    end = body.rindex('},"spec":')
    item: Object = json.loads(f"{body[:start]}null{body[end:]}")
    item["metadata"]["managedFields"] = Verbatim(body[start:end].encode())
    return item


def recorded_objects() -> list[Object]:
    """What the recorded cluster held in the namespace `rec` at revision 4477, and its node."""
    services = Recording.load("list-services").items
    slices = Recording.load("list-endpointslices").items
    return [*services, *slices, *Recording.load("list-nodes-field-selector").items]


def replay(store: Store, name: str) -> None:
    """Make the changes that a recorded watch reports."""
    for event in Recording.load(name).events:
        if event["type"] == "DELETED":
            item = event["object"]
            store.advance(int(item["metadata"]["resourceVersion"]) - 1)
            store.delete(BY_KIND[item["kind"]], key_of(item))
        elif event["type"] in {"ADDED", "MODIFIED"}:
            store.put(event["object"], verbatim=True)
