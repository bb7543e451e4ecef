"""Host ports, which the CNI plugin portmap serves, and a pod in the host's network, beside Services on their port."""

from collections.abc import Iterator

import pytest

from tests.cluster.machines import Cluster, Host
from tests.cluster.web import NODE_PORT, Web, pod, server, service

HOST_PORT, HOST_NETWORK_PORT = 80, 18081
"""The first one is the port of the Services, too: portmap takes it on every address that the node has."""
ASK_BY_UDP = """
import socket, sys
[(family, *_, address)] = socket.getaddrinfo(sys.argv[1], sys.argv[2], type=socket.SOCK_DGRAM)
asking = socket.socket(family, socket.SOCK_DGRAM)
asking.settimeout(15)
asking.sendto(b"hostname", address)
print(asking.recv(100).decode())
"""


@pytest.fixture(scope="module")
def node(cluster: Cluster, web: Web) -> Iterator[Host]:
    """The node with both pods, and with a Service of both protocols for the pods of `web`."""
    node = next(iter(cluster.nodes.values()))
    ports = [
        {"containerPort": port, "hostPort": HOST_PORT, "protocol": protocol}
        for port, protocol in ((8080, "TCP"), (8081, "UDP"))
    ]
    udp = {"name": "udp", "port": HOST_PORT, "targetPort": 8081, "protocol": "UDP"}
    with cluster.having(
        pod("host-port", node.name, server(ports=ports)),
        pod("host-network", node.name, {**server(HOST_NETWORK_PORT), "hostNetwork": True}),
        service("web-udp", selector={"app": "web"}, ports=[udp]),
    ):
        names = ("pod/host-port", "pod/host-network")
        cluster.kubectl("wait", "--for=condition=Ready", *names, "--timeout=10m")
        yield node


def url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def test_host_port_and_host_network_beside_a_node_port(web: Web, node: Host) -> None:
    for address in node.place.addresses:
        assert web.answers_from_wire(url(address, HOST_PORT), 1) == {"host-port"}
        assert web.answers_from_pod("node2", url(address, HOST_PORT), 1) == {"host-port"}
        assert web.answers_from_wire(url(address, HOST_NETWORK_PORT), 1) == {node.name}
        assert web.answers_from_wire(url(address, NODE_PORT)) == web.names()


def test_a_host_port_takes_no_call_to_a_service_on_the_same_port(cluster: Cluster, web: Web, node: Host) -> None:
    for address in web.addresses:
        assert web.answers_from_pod(node.name, url(address, HOST_PORT), 2) <= web.names()
        assert web.answers_from_node(node.name, url(address, HOST_PORT), 2) <= web.names()
    for address in cluster.addresses("web-udp"):
        ask = f"python3 -c '{ASK_BY_UDP}' {address} {HOST_PORT}"
        assert cluster.kubectl("exec", f"client-{node.name}", "--", "sh", "-c", ask).strip() in web.names()
        assert cluster.on(node, ask).strip() in web.names()
