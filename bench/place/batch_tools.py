"""The batch tools in C, timed on the content that kroute writes for the same workload.

Each gets all of it in one process on its standard input, in a network namespace that has nothing else: `ipvsadm -R` the
virtual and real servers, `ip -batch` the addresses and then the routes, `ipset restore` the entries.
"""

import os
import time

from bench.place.kernel_content import INTERFACE, count
from bench.workload import NODE_ADDRESS, POD_NETWORK, PORT, TARGET_PORT, Workload
from tests.lab.namespaces import Namespace

_SETS = {"CLUSTER-IP": "hash:ip,port", "HAIRPIN": "hash:ip,port,ip", "VIP": "hash:ip", "POD-NETWORK": "hash:net"}


def measure(services: int, endpoints: int) -> dict[str, float]:
    """Seconds that each tool takes. Raises ValueError if the kernel does not hold everything afterwards."""
    workload = Workload(services, endpoints)
    place = Namespace(f"kl-tools-{os.getpid()}")
    try:
        place.ip(
            f"link set lo up\naddress add {NODE_ADDRESS}/24 dev lo\n"
            f"link add {INTERFACE} type dummy\nlink set {INTERFACE} up\n"
        )
        seconds = {
            "ipvsadm": _time(place, virtual_servers(workload), "ipvsadm", "-R"),
            "ip_routes": _time(place, routes(workload), "ip", "-batch", "-"),
            "ip_addresses": _time(place, addresses(workload), "ip", "-batch", "-"),
            "ipset": _time(place, entries(workload), "ipset", "restore"),
        }
        with place.inside():
            made = count()
    finally:
        place.delete()
    expected = expected_content(workload)
    if made != expected:
        raise ValueError(f"the batch tools made {made} instead of {expected}")
    return seconds


def expected_content(workload: Workload) -> dict[str, int]:
    """What the kernel holds when the whole workload is served, in the form of `kernel_content.count`."""
    services = workload.services
    return {
        "virtual_servers": services,
        "real_servers": workload.pods,
        "addresses": services,
        "routes": services,
        "entries": 2 * services + len(workload.local_pods()) + 1,
    }


def virtual_servers(workload: Workload) -> str:
    """The virtual and real servers as `ipvsadm -R` reads them."""
    lines = []
    for number in range(workload.services):
        server = f"-t {workload.cluster_ip(number)}:{PORT}"
        lines.append(f"-A {server} -s rr\n")
        lines += [f"-a {server} -r {address}:{TARGET_PORT} -m -w 1\n" for address in workload.pod_ips(number)]
    return "".join(lines)


def addresses(workload: Workload) -> str:
    """The VIPs as `ip -batch` reads them."""
    numbers = range(workload.services)
    return "".join(f"address add {workload.cluster_ip(it)}/32 dev {INTERFACE} scope link\n" for it in numbers)


def routes(workload: Workload) -> str:
    """The source routes as `ip -batch` reads them."""
    end = f"dev {INTERFACE} table local proto kernel scope host src {NODE_ADDRESS}\n"
    return "".join(f"route add local {workload.cluster_ip(it)} {end}" for it in range(workload.services))


def entries(workload: Workload) -> str:
    """The sets and their entries as `ipset restore` reads them."""
    lines = [f"create KROUTE-{name} {kind} hashsize 1024 maxelem 262144\n" for name, kind in _SETS.items()]
    for number in range(workload.services):
        address = workload.cluster_ip(number)
        lines.append(f"add KROUTE-CLUSTER-IP {address},tcp:{PORT}\nadd KROUTE-VIP {address}\n")
    lines += [f"add KROUTE-HAIRPIN {address},tcp:{TARGET_PORT},{address}\n" for _, address in workload.local_pods()]
    return "".join([*lines, f"add KROUTE-POD-NETWORK {POD_NETWORK}\n"])


def _time(place: Namespace, content: str, *command: str) -> float:
    started = time.monotonic()
    place.run(*command, stdin=content, timeout=600)
    return time.monotonic() - started
