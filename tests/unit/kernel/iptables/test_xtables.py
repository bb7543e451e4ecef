"""Parsing of rule texts, and the lock."""

import fcntl
import os
import socket
import threading
from pathlib import Path

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.iptables.rule import Extension, Parameter, parse_rule, set_names
from kroute.kernel.iptables.xtables import xtables_lock


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


def test_sets_are_found() -> None:
    text = "-m set --match-set A dst -m set ! --match-set B src,src -j KROUTE-X"
    assert set_names(text) == ["A", "B"]


def test_the_lock_is_released(tmp_path: Path) -> None:
    for _ in range(2):
        with xtables_lock(tmp_path / "lock", 0):
            pass


def test_the_lock_is_waited_for(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    threading.Timer(0.1, os.close, [descriptor]).start()
    with xtables_lock(tmp_path / "lock", 10):
        pass


def test_a_lock_that_another_keeps_is_an_error(tmp_path: Path) -> None:
    with (
        xtables_lock(tmp_path / "lock", 0),
        pytest.raises(KernelError, match="more than 0 s"),
        xtables_lock(tmp_path / "lock", 0),
    ):
        pass


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="mount the host's file there"), xtables_lock(tmp_path / "no" / "lock", 0):
        pass
