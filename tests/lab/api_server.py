"""API servers on a node of the lab, the stand-in and the real one, and a client for both."""

import http.client
import json
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.apiserver.kubeconfig import write as write_kubeconfig
from tests.apiserver.resources import BY_KIND
from tests.lab import control_plane
from tests.lab.hosts import Host
from tests.lab.kubernetes import required
from tests.lab.objects import Object
from tests.lab.topology import SERVICE_RANGE, SERVICE_RANGE6

PORT = 6443
SERVICES = "/api/v1/namespaces/default/services"
ENDPOINT_SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
TOKEN = "lab-token"
_START_WITHIN = 600.0


class RequestRefusedError(Exception):
    """The API server answered with an error."""


class ApiClient:
    """A client of an API server in the network of a host, `node`. `kubeconfig` is for other clients.

    `secure` has it use TLS and a token, whose files are then in a directory of the caller's.
    """

    def __init__(self, node: Host, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.node = node
        self._headers = {"Content-Type": "application/json"}
        self._tls: ssl.SSLContext | None = None
        write_kubeconfig(kubeconfig, f"http://{node.ip}:{PORT}", {})

    def secure(self, directory: Path, key: Path) -> None:
        """Create a certificate, its key and a token, and write the files that clients need into `directory`."""
        authority = directory / "ca.crt"
        what = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=lab"
        names = f"subjectAltName=IP:127.0.0.1,IP:{self.node.ip}"
        subprocess.run(
            ["openssl", *what.split(), "-addext", names, "-keyout", str(key), "-out", str(authority)],
            check=True,
            capture_output=True,
        )
        (directory / "token").write_text(TOKEN)
        (directory / "namespace").write_text("kube-system")
        self._headers["Authorization"] = f"Bearer {TOKEN}"
        self._tls = ssl.create_default_context(cafile=authority)
        write_kubeconfig(self.kubeconfig, f"https://{self.node.ip}:{PORT}", {"token": TOKEN}, authority)

    def create(self, item: Object) -> Object:
        """Create an object. Returns it as the server has stored it."""
        stored: Object = json.loads(self._request("POST", _collection(item), item))
        return stored

    def apply(self, item: Object, subresource: str = "") -> float:
        """Replace an object. Returns the time (time.monotonic) at which the server had stored it."""
        self._request("PUT", _path(item) + subresource, item)
        return time.monotonic()

    def delete(self, item: Object) -> None:
        """Delete an object."""
        self._request("DELETE", _path(item))

    def list(self, collection: str) -> list[Object]:
        """The objects of a collection."""
        return json.loads(self._request("GET", collection))["items"]

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

    def _answers(self, process: "subprocess.Popen[bytes]") -> bool:
        """Wait until the server is ready. Returns whether it is; otherwise its process has ended, or takes too long."""
        deadline = time.monotonic() + _START_WITHIN
        while time.monotonic() < deadline and process.poll() is None:
            try:
                self._request("GET", "/readyz")
            except (OSError, RequestRefusedError):
                time.sleep(0.1)
            else:
                return True
        return False


class ApiServer(ApiClient):
    """The stand-in: a process in the network of a host, `node`, that serves `items`. `start` it, `stop` it.

    `scratch` is a directory for its objects and for the kubeconfig of its clients. With `service_account` it uses TLS,
    requires a token, and that directory holds what the kubelet mounts into a pod.
    """

    def __init__(self, node: Host, scratch: Path, items: list[Object], *, service_account: Path | None = None) -> None:
        super().__init__(node, scratch / "kubeconfig")
        self._objects = scratch / "objects"
        self._objects.mkdir()
        (self._objects / "objects.json").write_text(json.dumps({"items": items}))
        self._process: subprocess.Popen[bytes] | None = None
        self._security: list[str] = []
        if service_account is not None:
            key = scratch / "key.pem"
            self.secure(service_account, key)
            self._security = ["--token", TOKEN, "--tls", str(service_account / "ca.crt"), str(key)]

    def start(self) -> None:
        """Start it with its first objects, and return when it answers. Raises RequestRefusedError if it does not."""
        arguments = ["--host", "0.0.0.0", "--port", str(PORT), *self._security, str(self._objects)]
        with self.node.namespace.inside():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.apiserver", *arguments], stdout=subprocess.DEVNULL
            )
        if not self._answers(self._process):
            raise RequestRefusedError(f"the API server on {self.node} did not start")

    def stop(self) -> None:
        """Kill it, so that its connections break."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def clear(self) -> None:
        """Forget every object, and that there ever was one: older resourceVersions are expired."""
        self._request("POST", "/clear")

    def store_deep(self, item: Object, levels: int) -> None:
        """Create or replace an object, with `managedFields` that are nested `levels` deep."""
        self._request("POST", "/deep", {"item": item, "levels": levels})

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


class RealApiServer(ApiClient):
    """kube-apiserver and etcd in the network of a host, with their files in `scratch`. `start` them, `stop` them.

    No controller runs, so an EndpointSlice is what a test has made of it. Everything is allowed: the server makes its
    roles within half a minute by its clock or ends, and a machine may stand still for longer.
    """

    def __init__(self, node: Host, scratch: Path) -> None:
        super().__init__(node, scratch / "kubeconfig")
        self._scratch = scratch
        self._key = scratch / "key.pem"
        self.secure(scratch, self._key)
        signing = ["openssl", "genrsa", "-out", f"{scratch}/signing.pem", "2048"]
        subprocess.run(signing, check=True, capture_output=True)
        (scratch / "tokens.csv").write_text(f'{TOKEN},admin,1,"system:masters"\n')
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start both, and return when the API server is ready. Raises RequestRefusedError if it does not get so far."""
        server = control_plane.api_server(
            required("kube-apiserver"),
            *("--bind-address=0.0.0.0", f"--advertise-address={self.node.ip}", "--authorization-mode=AlwaysAllow"),
            *("--runtime-config=rbac.authorization.k8s.io/v1=false", "--enable-priority-and-fairness=false"),
            *(f"--tls-cert-file={self._scratch}/ca.crt", f"--tls-private-key-file={self._key}"),
            services=f"{SERVICE_RANGE},{SERVICE_RANGE6}",
            signing_key=f"{self._scratch}/signing.pem",
            tokens=f"{self._scratch}/tokens.csv",
        )
        for command in (control_plane.etcd(required("etcd"), f"{self._scratch}/etcd"), server):
            log = self._scratch / f"{Path(command[0]).name}.log"
            with log.open("ab") as output, self.node.namespace.inside():
                self._processes.append(subprocess.Popen(command, stdout=output, stderr=output, cwd=self._scratch))
        if not self._answers(self._processes[-1]):
            raise RequestRefusedError(f"kube-apiserver on {self.node} did not start:\n{log.read_text()[-2000:]}")

    def stop(self) -> None:
        """Kill both."""
        while self._processes:
            process = self._processes.pop()
            process.kill()
            process.wait()


def _collection(item: Object) -> str:
    """The path of the collection that an object is in."""
    return BY_KIND[item["kind"]].collection(item["metadata"].get("namespace"))


def _path(item: Object) -> str:
    return f"{_collection(item)}/{item['metadata']['name']}"
