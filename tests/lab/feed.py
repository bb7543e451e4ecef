"""How objects get to the agents of the lab: as files of a directory, or through the stand-in API server on the wire."""

import json
from pathlib import Path
from typing import Protocol

from tests.lab.api_server import ApiServer
from tests.lab.cluster import Cluster
from tests.lab.feeds import API, wanted
from tests.lab.objects import Object, identity
from tests.lab.topology import CONTROL_PLANE


class Feed(Protocol):
    """A source of objects. `flags` tell kroute of it."""

    @property
    def flags(self) -> tuple[str, ...]: ...

    def put(self, item: Object) -> Object:
        """Create or replace an object. Returns it as agents see it: an API server adds when it was created."""

    def delete(self, item: Object) -> None:
        """Delete an object."""


class ManifestFeed:
    """A directory with a file for each object. A file is replaced in one step."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.flags = ("--manifests", str(directory))

    def put(self, item: Object) -> Object:
        path = self._path(item)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(item))
        unfinished.replace(path)
        return item

    def delete(self, item: Object) -> None:
        self._path(item).unlink()

    def _path(self, item: Object) -> Path:
        return self._directory / ("_".join(identity(item)).lower() + ".json")


class ApiFeed:
    """An API server that has no objects yet. Every request goes over the wire, and is refused as a real one refuses."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._created: dict[tuple[str, str, str], str] = {}
        self.flags = ("--kubeconfig", str(server.kubeconfig))
        server.clear()

    def put(self, item: Object) -> Object:
        key = identity(item)
        if key in self._created:
            self._server.apply(item)
        else:
            self._created[key] = self._server.create(item)["metadata"]["creationTimestamp"]
        return {**item, "metadata": {**item["metadata"], "creationTimestamp": self._created[key]}}

    def delete(self, item: Object) -> None:
        self._server.delete(item)
        del self._created[identity(item)]


def feed_for(cluster: Cluster, directory: Path) -> Feed:
    """The first feed that `KROUTE_FEED` allows, without objects. `directory` is for its files."""
    if wanted()[0] == API:
        return ApiFeed(control_plane(cluster))
    manifests = directory / "manifests"
    manifests.mkdir()
    return ManifestFeed(manifests)


def control_plane(cluster: Cluster) -> ApiServer:
    """The cluster's API server, on a machine of its own. It is started for whoever asks first, and ends with it."""
    if cluster.api_server is None:
        scratch = cluster.directory / "control-plane"
        scratch.mkdir()
        cluster.api_server = ApiServer(cluster.host("control-plane", CONTROL_PLANE), scratch, [])
        cluster.api_server.start()
    return cluster.api_server
