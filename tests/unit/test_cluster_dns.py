"""The cluster's names, as the specification of DNS for Kubernetes has them, and as messages have them."""

import ipaddress
import struct
from typing import Any

import pytest

from tests.cluster.dns_server import AAAA, ANY, CNAME, PTR, SRV, A, Names, answer, encode

SPECS: dict[str, dict[str, Any]] = {
    "web": {
        "clusterIP": "10.96.0.5",
        "clusterIPs": ["10.96.0.5", "fd00:10:96::5"],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    },
    "pods": {"clusterIP": "None", "clusterIPs": ["None"]},
    "elsewhere": {"type": "ExternalName", "externalName": "example.com"},
}
ENDPOINTS = [
    {"addresses": ["10.244.1.2"], "hostname": "first", "conditions": {"ready": True}},
    {"addresses": ["10.244.1.3"], "conditions": {"ready": True}},
    {"addresses": ["10.244.1.4"], "hostname": "late", "conditions": {"ready": False}},
]
NAMES = Names()
NAMES.services.update(
    {("ns", name): {"metadata": {"namespace": "ns", "name": name}, "spec": spec} for name, spec in SPECS.items()}
)
NAMES.slices["ns", "pods-1"] = {
    "metadata": {"labels": {"kubernetes.io/service-name": "pods"}},
    "endpoints": ENDPOINTS,
}


def packed(*addresses: str) -> list[bytes]:
    return [ipaddress.ip_address(address).packed for address in addresses]


def name(text: str) -> bytes:
    return encode(text.split("."))


@pytest.mark.parametrize(
    ("asked", "kind", "code", "found"),
    [
        ("web.ns.svc.cluster.local", A, 0, packed("10.96.0.5")),
        ("web.ns.svc.cluster.local", AAAA, 0, packed("fd00:10:96::5")),
        ("web.ns.svc.cluster.local", ANY, 0, packed("10.96.0.5", "fd00:10:96::5")),
        (
            "_http._tcp.web.ns.svc.cluster.local",
            SRV,
            0,
            [b"\0\0\0\x64\0\x50" + name("web.ns.svc.cluster.local")],
        ),
        ("_http._udp.web.ns.svc.cluster.local", SRV, 3, []),
        ("one.web.ns.svc.cluster.local", A, 3, []),
        ("pods.ns.svc.cluster.local", A, 0, packed("10.244.1.2", "10.244.1.3")),
        ("first.pods.ns.svc.cluster.local", A, 0, packed("10.244.1.2")),
        ("late.pods.ns.svc.cluster.local", A, 3, []),
        ("elsewhere.ns.svc.cluster.local", A, 0, [name("example.com")]),
        ("elsewhere.ns.svc.cluster.local", CNAME, 0, [name("example.com")]),
        ("10-244-1-2.ns.pod.cluster.local", A, 0, packed("10.244.1.2")),
        ("5.0.96.10.in-addr.arpa", PTR, 0, [name("web.ns.svc.cluster.local")]),
        ("2.1.244.10.in-addr.arpa", PTR, 0, [name("first.pods.ns.svc.cluster.local")]),
        ("9.0.96.10.in-addr.arpa", PTR, 3, []),
        ("ns.svc.cluster.local", A, 0, []),
        ("none.ns.svc.cluster.local", A, 3, []),
        ("web.ns.svc", A, 3, []),
        ("example.com", A, 3, []),
    ],
)
def test_a_name_means_what_the_specification_says(asked: str, kind: int, code: int, found: list[bytes]) -> None:
    said, records = NAMES.look_up(asked.split("."), kind)
    assert said == code
    assert [content for _, content in records] == found


def test_a_query_is_answered_with_its_own_number_and_question() -> None:
    question = name("WEB.ns.svc.cluster.local") + struct.pack("!HH", A, 1)
    said = answer(NAMES, struct.pack("!HHHHHH", 77, 0x0100, 1, 0, 0, 0) + question)
    assert struct.unpack_from("!HHHHHH", said) == (77, 0x8580, 1, 1, 0, 0)
    assert said[12 : 12 + len(question)] == question
    assert said.endswith(struct.pack("!HHIH", A, 1, 5, 4) + packed("10.96.0.5")[0])
