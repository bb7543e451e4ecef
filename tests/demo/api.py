"""The demo's API server: the stand-in as a process on node1, and a client for it."""

import http.client
import json
import subprocess
import sys
import time
from pathlib import Path

from tests.lab.cluster import Node
from tests.lab.objects import Object, identity

PORT = 6443
_COLLECTIONS = {
    "Service": "/api/v1/namespaces/default/services",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
}
_START_WITHIN = 60.0


class ApiServer:
    """A process in the host network of `node`, filled with the objects of `directory`; ends with `close`."""

    def __init__(self, node: Node, directory: Path) -> None:
        self._node = node
        with node.namespace.inside():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.apiserver", "--host", "0.0.0.0", "--port", str(PORT), str(directory)],
                stdout=subprocess.DEVNULL,
            )

    @property
    def url(self) -> str:
        """Where the cluster finds it."""
        return f"http://{self._node.ip}:{PORT}"

    def wait(self) -> None:
        """Return when it answers. Raises RuntimeError when it does not start."""
        deadline = time.monotonic() + _START_WITHIN
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._request("GET", "/readyz")
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise RuntimeError(f"the API server on {self.url} did not start")

    def apply(self, item: Object) -> float:
        """Replace an object; returns the time (time.monotonic) at which the server had taken it."""
        kind, _, name = identity(item)
        self._request("PUT", f"{_COLLECTIONS[kind]}/{name}", item)
        return time.monotonic()

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()

    def _request(self, method: str, path: str, body: Object | None = None) -> None:
        with self._node.namespace.inside():
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        connection.close()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text}")
