"""The proxies: how each is started on the node, and how the bench sees what it has written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.scale.control_plane import SERVICE_RANGE
from bench.workload import NODE, POD_NETWORK
from tests.lab.kube_proxy import METRICS_PORT
from tests.lab.kubernetes import required

KUBE_PROXY_METRICS = METRICS_PORT


@dataclass(frozen=True)
class Proxy:
    """A proxy. `command` makes its command line of the path of a kubeconfig; kroute has none, it runs like a Pod.

    `says_when`: its metrics say when it has written everything for the first time. `in_nft`: it writes nf_tables, not
    virtual servers.
    """

    title: str
    program: str = ""
    command: Callable[[Path], list[str]] | None = None
    says_when: bool = False
    in_nft: bool = False


def kube_proxy(mode: str) -> Callable[[Path], list[str]]:
    """The command line of kube-proxy in a mode."""

    def command(kubeconfig: Path) -> list[str]:
        options = {
            "proxy-mode": mode,
            "kubeconfig": kubeconfig,
            "hostname-override": NODE,
            "cluster-cidr": POD_NETWORK,
        }
        return [str(required("kube-proxy")), *(f"--{name}={value}" for name, value in options.items())]

    return command


def kube_router(kubeconfig: Path, *, firewall: bool = False) -> list[str]:
    """The command line of kube-router as a service proxy, which may enforce network policies as well."""
    options = {
        "run-service-proxy": "true",
        "run-firewall": str(firewall).lower(),
        **dict.fromkeys(("run-router", "run-loadbalancer", "enable-cni"), "false"),
        "kubeconfig": kubeconfig,
        "hostname-override": NODE,
        "service-cluster-ip-range": SERVICE_RANGE,
        "cache-sync-timeout": "5m",  # on a slow machine the default, a minute, is short for 10,000 Pods
    }
    return [str(required("kube-router")), *(f"--{name}={value}" for name, value in options.items())]


KROUTE = "kroute"
PROXIES: Mapping[str, Proxy] = {
    KROUTE: Proxy("kroute"),
    "nftables": Proxy("kube-proxy, nftables", "kube-proxy", kube_proxy("nftables"), says_when=True, in_nft=True),
    "ipvs": Proxy("kube-proxy, IPVS", "kube-proxy", kube_proxy("ipvs"), says_when=True),
    "kube-router": Proxy("kube-router", "kube-router", kube_router),
}
