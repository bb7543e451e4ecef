"""The stand-in API server as a process on a node of the lab, and a client for it."""

import http.client
import json
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.apiserver.resources import BY_KIND
from tests.lab.hosts import Host
from tests.lab.objects import Object

PORT = 6443
SERVICES = "/api/v1/namespaces/default/services"
ENDPOINT_SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
_START_WITHIN = 600.0


class RequestRefusedError(Exception):
    """The API server answered with an error."""


class ApiServer:
    """A process in the network of a host, `node`, that serves `items`. `start` it, `stop` it.

    `scratch` is a directory for its objects and for the kubeconfig of its clients. With `service_account` it uses TLS,
    requires a token, and that directory holds what the kubelet mounts into a pod.
    """

    def __init__(self, node: Host, scratch: Path, items: list[Object], *, service_account: Path | None = None) -> None:
        self.kubeconfig = scratch / "kubeconfig"
        self.node = node
        self._objects = scratch / "objects"
        self._objects.mkdir()
        (self._objects / "objects.json").write_text(json.dumps({"items": items}))
        self.kubeconfig.write_text(json.dumps(_kubeconfig(f"http://{node.ip}:{PORT}")))
        self._process: subprocess.Popen[bytes] | None = None
        self._security: list[str] = []
        self._headers = {"Content-Type": "application/json"}
        self._tls: ssl.SSLContext | None = None
        if service_account is not None:
            self._secure(service_account, scratch / "key.pem")

    def start(self) -> None:
        """Start it with its first objects, and return when it answers. Raises RequestRefusedError if it does not."""
        arguments = ["--host", "0.0.0.0", "--port", str(PORT), *self._security, str(self._objects)]
        with self.node.namespace.inside():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.apiserver", *arguments], stdout=subprocess.DEVNULL
            )
        deadline = time.monotonic() + _START_WITHIN
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._request("GET", "/readyz")
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise RequestRefusedError(f"the API server on {self.node} did not start")

    def stop(self) -> None:
        """Kill it, so that its connections break."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def create(self, item: Object) -> Object:
        """Create an object. Returns it as the server has stored it."""
        stored: Object = json.loads(self._request("POST", _collection(item), item))
        return stored

    def apply(self, item: Object) -> float:
        """Replace an object. Returns the time (time.monotonic) at which the server had stored it."""
        self._request("PUT", _path(item), item)
        return time.monotonic()

    def delete(self, item: Object) -> None:
        """Delete an object."""
        self._request("DELETE", _path(item))

    def clear(self) -> None:
        """Forget every object, and that there ever was one: older resourceVersions are expired."""
        self._request("POST", "/clear")

    def store_deep(self, item: Object, levels: int) -> None:
        """Create or replace an object, with `managedFields` that are nested `levels` deep."""
        self._request("POST", "/deep", {"item": item, "levels": levels})

    def list(self, collection: str) -> list[Object]:
        """The objects of a collection."""
        return json.loads(self._request("GET", collection))["items"]

    def fault(self, **fault: Any) -> None:
        """Have the server misbehave, as tests/apiserver/faults.py describes."""
        self._request("POST", "/faults", fault)

    def forbid(self, *verbs: tuple[str, str]) -> None:
        """Have the server forbid exactly these verbs, each with the plural of its resource."""
        self._request("POST", "/forbidden", verbs)

    def answers(self, host: Host) -> bool:
        """Whether another host reaches it at the node's address."""
        with host.namespace.inside():
            connection = self._connection(self.node.ip)
            connection.request("GET", "/readyz")
            status = connection.getresponse().status
        connection.close()
        return status == 200

    def _secure(self, directory: Path, key: Path) -> None:
        """Create a certificate and a token, and write the files that clients need into `directory`."""
        authority = directory / "ca.crt"
        what = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=lab"
        names = f"subjectAltName=IP:127.0.0.1,IP:{self.node.ip}"
        subprocess.run(
            ["openssl", *what.split(), "-addext", names, "-keyout", str(key), "-out", str(authority)],
            check=True,
            capture_output=True,
        )
        (directory / "token").write_text("lab-token")
        (directory / "namespace").write_text("kube-system")
        self._security = ["--token", "lab-token", "--tls", str(authority), str(key)]
        self._headers["Authorization"] = "Bearer lab-token"
        self._tls = ssl.create_default_context(cafile=authority)

    def _connection(self, address: str) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(address, PORT, timeout=300)
        return http.client.HTTPSConnection(address, PORT, timeout=300, context=self._tls)

    def _request(self, method: str, path: str, body: Any = None) -> str:
        with self.node.namespace.inside():
            connection = self._connection("127.0.0.1")
            connection.request(method, path, json.dumps(body) if body is not None else None, self._headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        connection.close()
        if answer.status >= 300:
            raise RequestRefusedError(f"{method} {path}: {answer.status} {text}")
        return text


def _collection(item: Object) -> str:
    """The path of the collection that an object is in."""
    type_, namespace = BY_KIND[item["kind"]], item["metadata"].get("namespace")
    group = f"/apis/{type_.group}" if type_.group else "/api"
    return f"{group}/{type_.version}" + (f"/namespaces/{namespace}" if namespace else "") + f"/{type_.plural}"


def _path(item: Object) -> str:
    return f"{_collection(item)}/{item['metadata']['name']}"


def _kubeconfig(url: str) -> Object:
    """The content of a kubeconfig file for a server that requires no credentials."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "clusters": [{"name": "lab", "cluster": {"server": url}}],
        "users": [{"name": "lab", "user": {}}],
    }
