"""Parsing of rule texts."""

import socket

import pytest

from kroute.kernel.iptables.rule import Extension, Parameter, parse_rule


def test_a_rule_with_everything() -> None:
    rule = parse_rule(
        "! -s 10.0.0.1/8 -d 10.1.0.1 -i eth+ ! -o lo -p tcp -m set ! --match-set S dst,dst "
        '-m comment --comment "two words" -j MASQUERADE --random-fully',
        socket.AF_INET,
    )
    assert (rule.source, rule.destination, rule.protocol) == ("!10.0.0.0/8", "10.1.0.1/32", "tcp")
    assert (rule.in_interface, rule.out_interface) == ("eth+", "!lo")
    assert rule.matches == (
        Extension("set", (Parameter("match-set", ("S", "dst,dst"), inverted=True),)),
        Extension("comment", (Parameter("comment", ("two words",), inverted=False),)),
    )
    assert rule.target == Extension("MASQUERADE", (Parameter("random-fully", (), inverted=False),))


def test_an_ipv6_rule() -> None:
    rule = parse_rule("-s fd00::1/64 -p ipv6-icmp -j RETURN", socket.AF_INET6)
    assert (rule.source, rule.protocol) == ("fd00::/64", "icmpv6")


def test_a_network_of_every_address_is_none_as_iptables_save_prints_it() -> None:
    assert parse_rule("-s 0.0.0.0/0 -d 10.0.0.0/8 -j RETURN", socket.AF_INET).source == ""


@pytest.mark.parametrize(
    "text",
    [
        "-s fd00::/64 -j RETURN",
        "-s 10.0.0.0/40 -j RETURN",
        "-m set --match-set S dst",
        "-j RETURN -j ACCEPT",
        "--dport 80 -j RETURN",
        "nonsense -j RETURN",
        "-s",
    ],
)
def test_what_is_no_ipv4_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_rule(text, socket.AF_INET)
