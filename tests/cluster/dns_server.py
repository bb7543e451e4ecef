"""Stands in for CoreDNS in the cluster: names of Services and their endpoints, from the API server, by UDP and TCP.

On SIGTERM it answers on for a while, as CoreDNS with `lameduck` (of the plugin health) does.

https://github.com/kubernetes/dns/blob/master/docs/specification.md has the names. It runs in a pod, with the standard
library alone. Other names than the cluster's do not exist.
"""

import ipaddress
import json
import os
import signal
import socket
import socketserver
import ssl
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ZONE = ["cluster", "local"]
A, CNAME, PTR, AAAA, SRV, ANY = 1, 5, 12, 28, 33, 255
NO_ERROR, NO_SUCH_NAME = 0, 3
TTL = 5
LAMEDUCK = 15.0
"""Seconds. kubeadm sets 5, which is short on a busy machine: all proxies must have heard that the server ends."""
Objects = dict[tuple[str, str], dict[str, Any]]


class Names:
    """What the names of the cluster mean. The two dicts are changed by the threads that watch."""

    def __init__(self) -> None:
        self.services: Objects = {}
        self.slices: Objects = {}

    def look_up(self, labels: list[str], kind: int) -> tuple[int, list[tuple[int, bytes]]]:
        """The code, and the records of this kind (type and data) that the name has."""
        if labels[-1:] == ["arpa"]:
            found = self._reverse(labels)
            return (NO_ERROR if found else NO_SUCH_NAME), [(PTR, encode(name)) for name in found if kind in {PTR, ANY}]
        match labels[-2:] == ZONE and labels[:-2]:
            case [*parts, ("svc" | "pod") as below] if len(parts) < 2:
                exists = not parts or any(namespace == parts[0] for namespace, _ in list(self.services))
                return (NO_ERROR if exists and below == "svc" else NO_SUCH_NAME), []
            case [pod, _, "pod"]:
                return NO_ERROR, _addresses([pod.replace("-", "." if pod.count("-") == 3 else ":")], kind)
            case [*below, name, namespace, "svc"] if service := self.services.get((namespace, name)):
                return self._service(service, below, labels, kind)
        return NO_SUCH_NAME, []

    def _service(
        self, service: dict[str, Any], below: list[str], labels: list[str], kind: int
    ) -> tuple[int, list[tuple[int, bytes]]]:
        spec = service["spec"]
        if spec.get("type") == "ExternalName":
            return NO_ERROR, [(CNAME, encode(spec["externalName"].strip(".").split(".")))]
        if len(below) == 2 and below[0].startswith("_"):
            ports = [port for port in spec.get("ports", ()) if _is_named(port, below)]
            records = [(SRV, struct.pack("!HHH", 0, 100, port["port"]) + encode(labels[2:])) for port in ports]
            return (NO_ERROR if ports else NO_SUCH_NAME), [record for record in records if kind in {SRV, ANY}]
        if spec.get("clusterIP") != "None":
            found = [] if below else spec.get("clusterIPs", [])
        else:
            found = [ip for ip, hostname in self._endpoints(service) if not below or [hostname] == below]
        if below and not found:
            return NO_SUCH_NAME, []
        return NO_ERROR, _addresses(found, kind)

    def _endpoints(self, service: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
        """The addresses behind a Service, and the host names of their pods."""
        meta = service["metadata"]
        for (namespace, _), endpoint_slice in list(self.slices.items()):
            labels = endpoint_slice["metadata"].get("labels", {})
            if (namespace, labels.get("kubernetes.io/service-name")) == (meta["namespace"], meta["name"]):
                for endpoint in endpoint_slice.get("endpoints") or ():
                    if endpoint.get("conditions", {}).get("ready", True):
                        yield from ((address, endpoint.get("hostname")) for address in endpoint["addresses"])

    def _reverse(self, labels: list[str]) -> list[list[str]]:
        """The names of the address whose reverse name this is."""
        wanted = ".".join(labels)
        found = []
        for (namespace, name), service in list(self.services.items()):
            addresses = [(ip, None) for ip in service["spec"].get("clusterIPs", ()) if ip != "None"]
            for ip, hostname in addresses or self._endpoints(service):
                if ipaddress.ip_address(ip).reverse_pointer == wanted and (addresses or hostname):
                    found.append([*([hostname] if hostname else []), name, namespace, "svc", *ZONE])
        return found


def _is_named(port: dict[str, Any], below: list[str]) -> bool:
    return [f"_{port.get('name')}", f"_{port['protocol'].lower()}"] == below


def _addresses(addresses: list[str], kind: int) -> list[tuple[int, bytes]]:
    packed = [ipaddress.ip_address(address).packed for address in addresses]
    records = [(A if len(data) == 4 else AAAA, data) for data in packed]
    return [record for record in records if kind in {record[0], ANY}]


def encode(labels: list[str]) -> bytes:
    """A name as messages have it (RFC 1035), without compression."""
    return b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"


def answer(names: Names, query: bytes) -> bytes:
    """The message that answers a query with one question."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode().lower())
        at += 1 + length
    [kind] = struct.unpack_from("!H", query, at + 1)
    code, records = names.look_up(labels, kind)
    head = query[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(records), 0, 0)
    rest = (b"\xc0\x0c" + struct.pack("!HHIH", type_, 1, TTL, len(data)) + data for type_, data in records)
    return head + query[12 : at + 5] + b"".join(rest)


def follow(path: str, into: Objects, synced: threading.Event) -> None:
    """List and watch a kind for ever."""
    tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}{path}"
    if ":" in os.environ["KUBERNETES_SERVICE_HOST"]:
        server = server.replace(os.environ["KUBERNETES_SERVICE_HOST"], f"[{os.environ['KUBERNETES_SERVICE_HOST']}]")

    def get(query: str, timeout: float) -> Any:
        token = (ACCOUNT / "token").read_text()
        request = urllib.request.Request(server + query, headers={"Authorization": f"Bearer {token}"})
        return urllib.request.urlopen(request, timeout=timeout, context=tls)

    while True:
        try:
            listed = json.load(get("", 30))
            into.clear()
            into.update((_key(item), item) for item in listed["items"])
            synced.set()
            with get(
                f"?watch=1&timeoutSeconds=240&resourceVersion={listed['metadata']['resourceVersion']}", 260
            ) as lines:
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    if event["type"] == "DELETED":
                        into.pop(_key(event["object"]), None)
                    else:
                        into[_key(event["object"])] = event["object"]
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", flush=True)
            time.sleep(1)


def _key(item: dict[str, Any]) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: threading.Timer(LAMEDUCK, os._exit, [0]).start())
    names = Names()
    synced = [threading.Event(), threading.Event()]
    kinds = ("/api/v1/services", names.services), ("/apis/discovery.k8s.io/v1/endpointslices", names.slices)
    for (path, into), event in zip(kinds, synced, strict=True):
        threading.Thread(target=follow, args=(path, into, event), daemon=True).start()

    class Datagram(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            query, sender = self.request
            sender.sendto(answer(names, query), self.client_address)

    class Stream(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while len(length := self.rfile.read(2)) == 2:
                said = answer(names, self.rfile.read(*struct.unpack("!H", length)))
                self.wfile.write(struct.pack("!H", len(said)) + said)

    class Udp(socketserver.UDPServer):
        address_family = socket.AF_INET6

    class Tcp(socketserver.ThreadingTCPServer):
        address_family = socket.AF_INET6
        daemon_threads = True

    for event in synced:
        event.wait()
    tcp = Tcp(("::", 53), Stream)
    threading.Thread(target=tcp.serve_forever, daemon=True).start()
    Udp(("::", 53), Datagram).serve_forever()


if __name__ == "__main__":
    main()
