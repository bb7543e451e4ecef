"""Sysctls and modules of a real kernel."""

import pytest

from kroute.kernel import modules
from kroute.kernel.errors import KernelError
from kroute.kernel.sysctl import Sysctls
from tests.kernel.nodes import RealNode, run


def test_a_sysctl_is_read_and_written(node: RealNode) -> None:
    sysctls = Sysctls()
    sysctls.write("net.ipv4.vs.conntrack", "1")
    assert sysctls.read("net.ipv4.vs.conntrack") == "1"
    sysctls.write("net.ipv4.vs.conntrack", "0")
    assert run("sysctl -n net.ipv4.vs.conntrack").strip() == sysctls.read("net.ipv4.vs.conntrack") == "0"


def test_a_dot_in_an_interface_name_is_a_slash(node: RealNode) -> None:
    run("ip link add e0.7 type dummy")
    assert Sysctls().read("net.ipv4.conf.e0/7.arp_ignore") == "0"


def test_a_missing_sysctl_reads_as_none_and_cannot_be_written(node: RealNode) -> None:
    assert Sysctls().read("net.ipv4.no_such") is None
    with pytest.raises(KernelError, match=r"cannot set net\.ipv4\.no_such to 1"):
        Sysctls().write("net.ipv4.no_such", "1")


def test_a_refused_value_names_the_sysctl(node: RealNode) -> None:
    with pytest.raises(KernelError, match=r"net\.ipv4\.ip_forward to x: Invalid argument"):
        Sysctls().write("net.ipv4.ip_forward", "x")


async def test_what_cannot_be_loaded_is_named(node: RealNode) -> None:
    assert await modules.load(["ip_vs_rr", "no_such_module", "ip_vs"]) == ["no_such_module"]
    assert modules.kernel_version() >= (4, 1)
