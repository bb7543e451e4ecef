"""One Service of one pod, which answers on this machine; for programs that run in a machine."""

import http.server
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

NODE, VIP = "192.168.9.1", "10.96.0.9"
WITHIN = 600.0
"""Seconds for each of the agent's answers, though it resyncs every 2 s: only what hangs takes so long."""

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"clusterIP": VIP, "clusterIPs": [VIP], "ports": [{"port": 80, "targetPort": 8080}]},
}
SLICE = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "ports": [{"name": "", "port": 8080}],
    "endpoints": [{"addresses": [NODE], "conditions": {"ready": True}}],
}


class _Pages(http.server.SimpleHTTPRequestHandler):
    """Answers as many requests of a connection as the client likes."""

    protocol_version = "HTTP/1.1"


def run(command: str) -> bool:
    """Run a command; return whether it succeeded. One that hangs fails the program, and is left behind."""
    process = subprocess.Popen(command.split(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return process.wait(WITHIN) == 0
    except subprocess.TimeoutExpired:
        waits_in = Path(f"/proc/{process.pid}/stack").read_text()
        raise AssertionError(f"{command} has not ended; it waits in\n{waits_in}") from None


def eventually(what: str, condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline, f"not {what}"
        time.sleep(0.1)
    print(f"ok: {what}", flush=True)


def answers() -> bool:
    try:
        with urllib.request.urlopen(f"http://{VIP}/", timeout=30) as answer:
            return bool(answer.read())
    except OSError:
        return False


def serve_pod() -> None:
    """Give the machine a node's address, at which a pod's port answers."""
    for command in (
        "ip link add v0 type veth peer name v1",
        f"ip addr add {NODE}/24 dev v0",
        "ip link set v0 up",
        "ip link set v1 up",
        "ip link set lo up",
    ):
        assert run(command), command
    server = http.server.ThreadingHTTPServer((NODE, 8080), _Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
