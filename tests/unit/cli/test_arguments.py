"""Addresses, ports and Services as arguments of commands."""

import pytest

from kroute.cli.parameters.arguments import (
    PodPort,
    ServicePorts,
    parse_client,
    parse_frontend,
    parse_service,
    parse_target,
)
from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.settings.text import parse_address


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("10.0.0.1:80", VirtualServerKey(Protocol.TCP, "10.0.0.1", 80)),
        ("10.0.0.1:53/udp", VirtualServerKey(Protocol.UDP, "10.0.0.1", 53)),
        ("[FD00:0::1]:80/SCTP", VirtualServerKey(Protocol.SCTP, "fd00::1", 80)),
    ],
)
def test_a_frontend(text: str, key: VirtualServerKey) -> None:
    assert parse_frontend(text) == key


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", ":80", "[10.0.0.1]:80", "fd00::1:80", "web:80"]
)
def test_what_is_no_frontend(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an (IP )?address"):
        parse_frontend(text)


def test_an_address_is_canonical() -> None:
    assert parse_address("FD00:0:0::1") == "fd00::1"


def test_a_service_has_a_namespace() -> None:
    assert parse_service("default/web") == ObjectKey("default", "web")
    for text in ("web", "/web", "default/", "a/b/c", "a b/c"):
        with pytest.raises(ValueError, match="NAMESPACE/NAME"):
            parse_service(text)


WEB = ObjectKey("default", "web")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("10.0.0.1:80", VirtualServerKey(Protocol.TCP, "10.0.0.1", 80)),
        ("10.0.0.1:53/UDP", VirtualServerKey(Protocol.UDP, "10.0.0.1", 53)),
        ("[fd00::1]:80", VirtualServerKey(Protocol.TCP, "fd00::1", 80)),
        ("default/web", ServicePorts(WEB)),
        ("default/web:http", ServicePorts(WEB, "http")),
        ("default/web:53/udp", ServicePorts(WEB, "53", Protocol.UDP)),
        ("web.default", ServicePorts(WEB, by_name=True)),
        ("web.default:http", ServicePorts(WEB, "http", by_name=True)),
        ("web.default:53/udp", ServicePorts(WEB, "53", Protocol.UDP, by_name=True)),
        ("web.default.svc:80", ServicePorts(WEB, "80", by_name=True)),
        ("web.default.svc.cluster.local:http", ServicePorts(WEB, "http", by_name=True)),
        ("pod/default/web:80", PodPort(WEB, 80, Protocol.TCP)),
        ("pod/default/web:53/udp", PodPort(WEB, 53, Protocol.UDP)),
        ("pod/web", ServicePorts(ObjectKey("pod", "web"))),
        ("pod/web:53/udp", ServicePorts(ObjectKey("pod", "web"), "53", Protocol.UDP)),
    ],
)
def test_a_target_is_an_address_and_port_or_a_service(text: str, target: object) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    ["10.0.0", "[10.0.0.1]", "web", "web:80", "10.0.0.1/icmp", "10.0.0.1:80/icmp", "a/b/c", "A.default:80", "[fd00::1"],
)
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_target(text)


@pytest.mark.parametrize("text", ["pod/default/web", "pod/default/web:0", "pod/default/web:65536"])
def test_a_pod_needs_a_port(text: str) -> None:
    with pytest.raises(ValueError, match="is not a pod and port"):
        parse_target(text)


def test_a_client_is_an_address_or_a_pod() -> None:
    assert [parse_client(text) for text in ("default/web", "pod/default/web")] == [WEB, WEB]
    assert [parse_client(text) for text in ("10.0.0.1", "FD00:0::1")] == ["10.0.0.1", "fd00::1"]
    for text in ("pod/a/b/c", "web", "pod/default/web:80"):
        with pytest.raises(ValueError, match="is not an IP address"):
            parse_client(text)
