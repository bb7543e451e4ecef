"""The firewall of the lab's nodes: which tables this kernel has, and which backend of kroute's runs on it.

A machine of the lab says in `KROUTE_FIREWALL`, which kroute itself reads, what its kernel is for. On a host's own
kernel kroute uses iptables if there are legacy tables and ip_set, as the machines do.
"""

import contextlib
import errno
import functools
import os
import shutil
import socket
import struct
import subprocess

NFTABLES, IPTABLES = "nftables", "iptables"

_GET_INFO = 64
"""IPT_SO_GET_INFO and IP6T_SO_GET_INFO (linux/netfilter_ipv4/ip_tables.h)."""
_SIZE_OF_INFO = 84
"""struct ipt_getinfo; it begins with the name of the table that is asked for."""
_IPSET = 6
"""NFNL_SUBSYS_IPSET (linux/netfilter/nfnetlink.h); its command 1 asks for the protocol's version."""


def backend() -> str:
    """Return the backend that kroute uses here: nftables or iptables."""
    wish = os.environ.get("KROUTE_FIREWALL") or "auto"
    return wish if wish != "auto" else of_this_kernel()


def of_this_kernel() -> str:
    """Return the backend that the tests use on the running kernel if nobody says otherwise."""
    return IPTABLES if has_legacy() else NFTABLES


@functools.cache
def has_legacy() -> bool:
    """Whether the running kernel has legacy tables of both families, and ip_set."""
    return not legacy_refusals()


@functools.cache
def has_nf_tables() -> bool:
    """Whether the running kernel has tables of nft's families ip and ip6; Debian's 6.1 has neither."""
    nft = shutil.which("nft")
    trial = "add table ip lab-trial; add table ip6 lab-trial"
    return nft is not None and subprocess.run([nft, "--check", trial], capture_output=True, check=False).returncode == 0


def legacy_refusals() -> dict[str, str]:
    """Ask the kernel for what the iptables backend needs, without any tool; return what it refuses, and the error."""
    asked = {
        "ip_tables": lambda: _table(socket.AF_INET, socket.IPPROTO_IP),
        "ip6_tables": lambda: _table(socket.AF_INET6, socket.IPPROTO_IPV6),
        "ip_set": _sets,
    }
    refused = {}
    for name, ask in asked.items():
        try:
            ask()
        except OSError as error:
            refused[name] = errno.errorcode[error.errno or 0]
    return refused


def tool(address: str) -> str:
    """Return the name of iptables for an address or "IPv4", "IPv6", in the variant that this kernel has."""
    family = "ip6tables" if ":" in address or address == "IPv6" else "iptables"
    return f"{family}-{variant()}"


def variant() -> str:
    """Return the variant of iptables by which neighbours write their rules: legacy tables where there are any."""
    return "legacy" if has_legacy() else "nft"


def _table(family: int, level: int) -> None:
    """Ask as libiptc does, for a table without a name. Raises OSError if the kernel has no legacy tables."""
    with (
        socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw,
        contextlib.suppress(FileNotFoundError),  # no table is called so, which only legacy tables can say
    ):
        raw.getsockopt(level, _GET_INFO, _SIZE_OF_INFO)


def _sets() -> None:
    """Ask ip_set for its protocol. Raises OSError if there is none."""
    message = struct.pack("=IHHII", 28, _IPSET << 8 | 1, 1, 1, 0) + struct.pack("=BBHHHB3x", 0, 0, 0, 5, 1, 7)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as netlink:  # 12: NETLINK_NETFILTER
        netlink.settimeout(5)
        netlink.send(message)
        answer = netlink.recv(4096)
    (kind,) = struct.unpack_from("=H", answer, 4)
    if kind == 2:  # NLMSG_ERROR
        (code,) = struct.unpack_from("=i", answer, 16)
        raise OSError(-code, os.strerror(-code))
