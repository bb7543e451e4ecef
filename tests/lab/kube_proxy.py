"""A stand-in for kube-proxy 1.36: `python -m tests.lab.kube_proxy MODE --master URL --node NAME` in a node's namespace.

It answers at kube-proxy's ports, writes kube-proxy's tables for the Services of an API server, and leaves them when it
ends. `tests/scenarios/test_kube_proxy.py` compares its answers and tables with those of the real kube-proxy.

It does less than kube-proxy: TCP only, and the policy Cluster without session affinity; any other Service ends it with
an error. It asks the API server for everything twice a second instead of watching, and writes all of its rules where
kube-proxy writes the changed ones, when a Service has changed and every SYNC_PERIOD. It has a few of the metrics. Like
kube-proxy it has no handler for SIGTERM, and tries again every RETRY_PERIOD to listen on a port that somebody else has.
"""

import argparse
import contextlib
import datetime as dt
import http.server
import json
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

from tests.lab.hosts import Host
from tests.lab.kube_proxy_rules import Served, iptables_rules, nftables_ruleset
from tests.lab.namespaces import CommandError, Namespace
from tests.lab.other_proxies import drop_stale, kube_proxy_leftovers, restore
from tests.lab.topology import NODES
from tests.lab.traffic import Traffic

METRICS_PORT, HEALTH_PORT = 10249, 10256
SYNC_PERIOD = 30.0
"""Seconds: kube-proxy's `--sync-period`."""
RETRY_PERIOD = 5.0
POLL = 0.5
STARTED = time.time()
VERSION = "v1.36.2"
_PLAIN = "text/plain; charset=utf-8"
_METRICS = """\
# HELP kubernetes_build_info [BETA] A metric with a constant '1' value labeled by version.
# TYPE kubernetes_build_info gauge
kubernetes_build_info{{git_version="{version}"}} 1
# HELP kubeproxy_sync_proxy_rules_last_timestamp_seconds [ALPHA] The last time proxy rules were successfully synced
# TYPE kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge
kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family="IPv4"}} {synced}
kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family="IPv6"}} {synced}
# HELP process_start_time_seconds [STABLE] Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds {started}
"""

Object = dict[str, Any]
Answers = Callable[[str], tuple[str, str]]
"""Returns media type and body for a path. Raises KeyError if there is nothing."""


class StandIn:
    """What a running kube-proxy knows: its mode, and when it wrote last (Unix time)."""

    def __init__(self, mode: str, host: Host, variant: str) -> None:
        self.mode = mode
        self._host = host
        self._variant = variant
        self.synced = STARTED

    def metrics_port(self, path: str) -> tuple[str, str]:
        """What GET answers at METRICS_PORT."""
        return {
            "/proxyMode": lambda: (_PLAIN, self.mode),
            "/healthz": lambda: (_PLAIN, "ok"),
            "/metrics": lambda: (
                "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
                _METRICS.format(version=VERSION, synced=self.synced, started=STARTED),
            ),
        }[path]()

    def health_port(self, path: str) -> tuple[str, str]:
        """What GET answers at HEALTH_PORT."""
        status = {family: {"lastUpdated": _time(self.synced), "healthy": True} for family in ("IPv4", "IPv6")}
        eligible = {"/healthz": {"nodeEligible": True}, "/livez": {}}[path]
        now = _time(time.time())
        body = {"lastUpdated": now, "currentTime": now, **eligible, "healthy": True, "status": status}
        return "application/json", json.dumps(body, separators=(",", ":"))

    def clean_up(self) -> None:
        """Remove IPVS's virtual servers and `kube-ipvs0` at the start, as kube-proxy does in the mode nftables.

        Whosever they are: pkg/proxy/ipvs CleanupLeftovers, called by platformCleanup.
        """
        if self.mode == "nftables":
            self._host.run("ipvsadm", "-C")
            with contextlib.suppress(CommandError):  # there may be none
                self._host.run("ip", "link", "delete", "kube-ipvs0")

    def sync(self, services: list[Served]) -> None:
        """Write everything that these Services need, and remove what they do not."""
        if self.mode == "ipvs":
            kube_proxy_leftovers(self._host, services, self._variant)
            drop_stale(self._host, services)
        elif self.mode == "iptables":
            self._host.sysctl("net.ipv4.conf.all.route_localnet", 1)
        for is_ipv6, node_address in ((False, self._host.ip), (True, self._host.ip6)):
            of_family = [it for it in services if it.is_ipv6 is is_ipv6]
            if self.mode == "iptables":
                restore(self._host, iptables_rules(of_family, is_ipv6), is_ipv6, self._variant, own=_OF_SERVICES)
            elif self.mode == "nftables":
                table = f"table {'ip6' if is_ipv6 else 'ip'} kube-proxy"
                ruleset = nftables_ruleset(of_family, is_ipv6, node_address)
                self._host.run("nft", "-f", "-", stdin=f"add {table}\ndelete {table}\n{ruleset}")
        self.synced = time.time()


_OF_SERVICES = ("KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-")


def served(services: Iterable[Object], slices: Iterable[Object], node: str) -> list[Served]:
    """What kube-proxy on `node` makes of these objects. Raises ValueError for what the stand-in does not do."""
    endpoints: dict[tuple[str, str], list[Object]] = {}
    for item in slices:
        metadata = item["metadata"]
        key = (metadata["namespace"], metadata["labels"]["kubernetes.io/service-name"])
        endpoints.setdefault(key, []).append(item)
    found: list[Served] = []
    for item in sorted(services, key=lambda it: it["metadata"]["name"]):
        spec, metadata = item["spec"], item["metadata"]
        if spec["clusterIP"] == "None":
            continue
        if spec.get("sessionAffinity", "None") != "None" or "Local" in (
            spec.get("externalTrafficPolicy"),
            spec.get("internalTrafficPolicy"),
        ):
            raise ValueError(f"the stand-in does not serve Service {metadata['name']}: {spec}")
        found += [
            _port(metadata, spec, port, vip, endpoints, node) for port in spec["ports"] for vip in spec["clusterIPs"]
        ]
    return found


def _port(
    metadata: Object, spec: Object, port: Object, vip: str, endpoints: dict[tuple[str, str], list[Object]], node: str
) -> Served:
    if port.get("protocol", "TCP") != "TCP":
        raise ValueError(f"the stand-in does not serve {port} of Service {metadata['name']}")
    family = "IPv6" if ":" in vip else "IPv4"
    ready = [
        (endpoint, target["port"])
        for piece in endpoints.get((metadata["namespace"], metadata["name"]), ())
        if piece["addressType"] == family
        for target in piece["ports"]
        if target["name"] == port["name"]
        for endpoint in piece["endpoints"]
        if endpoint["conditions"].get("ready", True)
    ]
    return Served(
        vip,
        port["port"],
        [(endpoint["addresses"][0], number) for endpoint, number in ready],
        port.get("nodePort", 0),
        [ip for ip in spec.get("externalIPs", ()) if (":" in ip) is (":" in vip)],
        [endpoint["addresses"][0] for endpoint, _ in ready if endpoint.get("nodeName") == node],
        f"{metadata['namespace']}/{metadata['name']}:{port['name']}",
    )


def _time(seconds: float) -> str:
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond * 1000:09d}Z"


def _listener(answers: Answers, family: socket.AddressFamily, address: str, port: int) -> http.server.HTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                kind, body = answers(self.path)
                code = 200
            except KeyError:
                code, kind, body = 404, _PLAIN, "404 page not found\n"
            self.send_response_only(code)
            self.send_header("Content-Type", kind)
            if self.path == "/metrics":
                self.send_header("Process-Start-Time-Unix", str(int(STARTED)))
            else:
                self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Date", self.date_time_string())
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_HEAD = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Listener(http.server.ThreadingHTTPServer):
        address_family = family
        request_queue_size = 128

        def server_bind(self) -> None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.address_family == socket.AF_INET6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self.socket.bind(self.server_address)

    return Listener((address, port), Handler)


def _listen(answers: Answers, family: socket.AddressFamily, address: str, port: int) -> None:
    while True:
        with contextlib.suppress(OSError), _listener(answers, family, address, port) as listener:
            listener.serve_forever()
        print(f"port {port} is somebody else's; trying again in {RETRY_PERIOD:.0f} s", flush=True)
        time.sleep(RETRY_PERIOD)


def _list(url: str) -> list[Object]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        items: list[Object] = json.load(answer)["items"]
    return items


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(prog="tests.lab.kube_proxy", description=__doc__)
    parser.add_argument("mode", choices=("iptables", "ipvs", "nftables"))
    parser.add_argument("--master", required=True, help="the URL of the API server")
    parser.add_argument("--node", required=True)
    parser.add_argument("--variant", default="legacy", help="of iptables: legacy or nft")
    asked = parser.parse_args()
    place = NODES[asked.node]
    host = Host(asked.node, Namespace.current(), Traffic(), place.ip, place.ip6)
    proxy = StandIn(asked.mode, host, asked.variant)
    for listener in (
        (proxy.metrics_port, socket.AF_INET, "127.0.0.1", METRICS_PORT),
        (proxy.health_port, socket.AF_INET6, "::", HEALTH_PORT),
    ):
        threading.Thread(target=_listen, args=listener, daemon=True).start()
    proxy.clean_up()
    written: list[Served] | None = None
    while True:
        slices = f"{asked.master}/apis/discovery.k8s.io/v1/endpointslices"
        try:
            wanted = served(_list(f"{asked.master}/api/v1/services"), _list(slices), asked.node)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"the API server does not answer: {error}", flush=True)
        else:
            if wanted != written or time.time() > proxy.synced + SYNC_PERIOD:
                proxy.sync(wanted)
                written = wanted
                print(f"wrote {len(wanted)} ports of Services", flush=True)
        time.sleep(POLL)


if __name__ == "__main__":
    main()
