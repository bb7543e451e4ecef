"""What a running kube-proxy answers and writes, for the comparison of the lab's stand-in with the real one.

`python -m tests.lab.run .venv/bin/python -m tests.real_proxies.running MODE` prints it for the real kube-proxy, on the
kernel that KROUTE_KERNEL names; `kube-proxy-MODE/running.json` holds what 1.36.2 did.
"""

import asyncio
import http.client
import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.lab import firewall, kubernetes
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.deployment import eventually
from tests.lab.feed import ApiFeed, control_plane
from tests.lab.kube_proxy import HEALTH_PORT, METRICS_PORT
from tests.lab.kube_proxy_process import KubeProxy
from tests.lab.objects import endpoint_slices, node, service
from tests.lab.world import FAMILIES
from tests.real_proxies import DIRECTORY

REQUESTS = [
    (method, port, path)
    for port, paths in {
        METRICS_PORT: ("/proxyMode", "/healthz", "/livez", "/"),
        HEALTH_PORT: ("/healthz", "/livez", "/readyz", "/proxyMode", "/"),
    }.items()
    for path in paths
    for method in ("GET", "HEAD")
]
VIPS = [family.service_ip for family in FAMILIES]
CALLS = [(VIPS[0], 8080), (VIPS[1], 8080)]
PAUSE = 0.5
"""Seconds between two looks at the tables: the programs that print them would take all of the machine's processor."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")

Observed = dict[str, Any]


def recorded(mode: str) -> Observed:
    """What the real kube-proxy did."""
    observed: Observed = json.loads((DIRECTORY / f"kube-proxy-{mode}" / "running.json").read_text())
    return observed


async def observe(mode: str, program: Path | None) -> Observed:
    """Run kube-proxy, the real one if `program` is given, on a node with two Services, and look at it."""
    async with Cluster.start("node1", "node2") as cluster:
        at, feed = cluster.node("node1"), ApiFeed(control_plane(cluster))
        pods = [await it.pod(f"web-{n}", http=8080) for n, it in enumerate((at, at, cluster.node("node2")), 1)]
        for item in (
            *map(node, cluster.nodes.values()),
            service("web", *VIPS, node_ports={"TCP": 31080}, externalIPs=["203.0.113.80"]),
            service("none", "10.254.0.77"),
            *endpoint_slices("web", pods),
        ):
            feed.put(item)
        proxy = KubeProxy(at, mode, control_plane(cluster), program)
        try:
            await proxy.start()
            return await _observe(proxy, feed, pods)
        finally:
            proxy.close()


async def _observe(proxy: KubeProxy, feed: ApiFeed, pods: list[Pod]) -> Observed:
    at = proxy.node
    await eventually(lambda: _names(at, pods, []), within=60)
    seen: Observed = {
        "answers": {f"{method} {port}{path}": _answer(at, method, port, path) for method, port, path in REQUESTS},
        "metrics": _metrics(at),
        "listens": _listens(at),
        "tables": tables(at),
    }
    for item in endpoint_slices("web", pods[:2]):
        feed.put(item)
    await eventually(lambda: _names(at, pods[:2], pods[2:]), within=60)
    seen["tables with an endpoint less"] = tables(at)
    for ip, port in CALLS:
        assert (await pods[0].http(ip, port)).host in {"web-1", "web-2"}
    proxy.end()
    assert tables(at)["iptables"] == seen["tables with an endpoint less"]["iptables"], "SIGTERM leaves all"
    seen["tables stay"] = proxy.has_tables
    return seen


async def _names(at: Node, pods: list[Pod], others: list[Pod]) -> None:
    """Assert that the tables have these pods, and not the others."""
    await asyncio.sleep(PAUSE)
    text = json.dumps(tables(at))
    assert all(ip in text for pod in pods for ip in (pod.ip, pod.ip6))
    assert not [pod for pod in others if pod.ip in text or pod.ip6 in text]


def _answer(at: Node, method: str, port: int, path: str) -> Observed:
    status, headers, body = ask(at, method, port, path)
    kept = {name: value for name, value in headers.items() if name not in {"Date", "Content-Length"}}
    return {"status": status, "headers": {**kept, "Date": "TIME"}, "body": _TIME.sub("TIME", body)}


def _metrics(at: Node) -> list[str]:
    status, headers, body = ask(at, "GET", METRICS_PORT, "/metrics")
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
    assert headers["Process-Start-Time-Unix"].isdecimal()
    return sorted({line.split()[2] for line in body.splitlines() if line.startswith("# HELP")})


def ask(at: Node, method: str, port: int, path: str) -> tuple[int, dict[str, str], str]:
    """Send a request to a port of the node's loopback address; returns status, headers and body."""
    with at.namespace.inside():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def _listens(at: Node) -> list[str]:
    """The addresses of the sockets that listen."""
    return sorted(line.split()[3] for line in at.run("ss", "-Hlnt").splitlines())


# ---- tables ------------------------------------------------------------------------------------------------------


def tables(at: Node) -> Observed:
    """What of kube-proxy's is in the node's kernel: without counters, handles, and the order of hashed things."""
    found: Observed = {
        "ipvs": sorted(at.run("ipvsadm", "-Sn").splitlines()),
        "addresses": sorted(at.addresses("kube-ipvs0")),
        "iptables": {},
        "ipset": [],
        "nft": [],
    }
    if firewall.has_legacy():
        found["ipset"] = sorted(re.sub(r" hashsize.*", "", it) for it in at.run("ipset", "save").splitlines())
        for tool in ("iptables", "ip6tables"):
            found["iptables"][tool] = _chains(at.run(f"{tool}-legacy-save"))
    if firewall.has_nf_tables():
        found["nft"] = [it for family in ("ip", "ip6") for it in _nft(at, family)]
    return found


def _chains(saved: str) -> dict[str, list[str]]:
    """The rules of each chain that are kube-proxy's, by table and chain."""
    chains: dict[str, list[str]] = {}
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":KUBE-"):
            chains.setdefault(f"{table} {line.split()[0][1:]}", [])
        elif line.startswith("-A") and "KUBE-" in line:
            _, chain, rule = line.split(" ", 2)
            chains.setdefault(f"{table} {chain}", []).append(rule)
    return dict(sorted(chains.items()))


def _nft(at: Node, family: str) -> list[str]:
    """The objects of kube-proxy's table in a family, each as JSON; the rules of a chain in their order."""
    if f"table {family} kube-proxy" not in at.run("nft", "list", "tables").splitlines():
        return []
    listed = json.loads(at.run("nft", "-j", "list", "table", family, "kube-proxy"))["nftables"]
    found = []
    for entry in listed:
        [(kind, what)] = entry.items()
        if kind == "metainfo":
            continue
        what.pop("handle", None)
        if "elem" in what:
            what["elem"] = sorted(what["elem"], key=json.dumps)
        chain = what.get("chain", what.get("name", ""))
        found.append((kind, chain, json.dumps({kind: what}, sort_keys=True)))
    return [text for _, _, text in sorted(found, key=lambda it: it[:2])]


if __name__ == "__main__":
    real = kubernetes.program("kube-proxy")
    assert real is not None, kubernetes.missing("kube-proxy")
    print(json.dumps(asyncio.run(observe(sys.argv[1], real)), indent=1))
