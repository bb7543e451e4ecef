"""The sysctls that a node needs for IPVS, as a table."""

import os
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

import msgspec
import structlog

from kroute.kernel.clients import SysctlClient
from kroute.kernel.errors import KernelError
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.ledger import Ledger, SysctlChanged
from kroute.settings import Settings

log = structlog.get_logger(__name__)


class Circumstances(msgspec.Struct, frozen=True):
    """The facts on which a row may depend. `ipv6`: whether an IPv6 Service is served."""

    kernel_version: tuple[int, int]
    ipv6: bool
    strict_arp: bool = True


def _always(_: Circumstances) -> bool:
    """The condition of a row that always applies."""
    return True


def _has_slow_port_reuse(circumstances: Circumstances) -> bool:
    return (4, 1) <= circumstances.kernel_version < (5, 9)


_serves_ipv6: Callable[[Circumstances], bool] = attrgetter("ipv6")
_has_strict_arp: Callable[[Circumstances], bool] = attrgetter("strict_arp")


class Row(msgspec.Struct, frozen=True):
    """One sysctl.

    `disturbs` are the sysctls that the kernel also changes when this one is written. `absent` is the next step where
    the kernel does not have it. If it is `optional`, its absence is no error. `at_least`: a greater number is as good.
    `needs` is a sysctl without which this one is of no use: when that cannot be set, this one is not tried.
    """

    name: str
    value: str
    meaning: str
    when: Callable[[Circumstances], bool] = _always
    disturbs: tuple[str, ...] = ()
    absent: str = "load its module, ip_vs"
    optional: bool = False
    at_least: bool = False
    needs: str = ""

    def is_met_by(self, value: str) -> bool:
        """Whether the sysctl may keep this value."""
        return value == self.value or (self.at_least and value.isdecimal() and int(value) >= int(self.value))


ACCEPT_REDIRECTS = "net.ipv4.conf.all.accept_redirects"
IPV6_FORWARDING = "net.ipv6.conf.all.forwarding"

SYSCTLS = (
    Row("net.ipv4.vs.conntrack", "1", "IPVS connections are in conntrack, so that they can be masqueraded"),
    Row("net.ipv4.vs.expire_nodest_conn", "1", "a connection to a deleted real server ends at once"),
    Row(
        "net.ipv4.vs.expire_quiescent_template",
        "1",
        "persistence does not lead new connections to a draining real server",
    ),
    Row(
        "net.ipv4.vs.conn_reuse_mode",
        "0",
        "no second of delay when a client reuses a port (since Linux 5.9 mode 1 has no such delay)",
        _has_slow_port_reuse,
    ),
    # Linux 7 makes IPVS's connection table larger as it fills. For a moment the kernel then finds a client's old
    # connection, which is about to expire, before the new one from the same port: packets go to the old pod, without
    # masquerading. If the table is largest from the first connections on, that moment passes before a port is reused.
    Row(
        "net.ipv4.vs.conn_lfactor",
        "-8",
        "IPVS's table of connections is not made larger while clients come back from the same ports",
        optional=True,
    ),
    Row("net.ipv4.ip_forward", "1", "packets pass between clients and pods", disturbs=(ACCEPT_REDIRECTS,)),
    Row(
        "net.ipv4.conf.all.arp_ignore",
        "1",
        "the node answers ARP only for addresses of the interface that is asked, and so not for VIPs",
        _has_strict_arp,
    ),
    Row("net.ipv4.conf.all.arp_announce", "2", "no ARP request is sent with a VIP as its source", _has_strict_arp),
    Row(IPV6_FORWARDING, "1", "packets of IPv6 pass between clients and pods", _serves_ipv6),
)

# A node takes no packet but a SYN for the first of a connection (ip_vs_proto_tcp.c, tcp_conn_schedule). With direct
# return the node's own address is in no packet. So a connection goes on by any node whose scheduler chooses its pod.
_SLOPPY_TCP = Row(
    "net.ipv4.vs.sloppy_tcp", "1", "an open connection that a router moves to this node goes on to its pod"
)


def node_rows(settings: Settings) -> tuple[Row, ...]:
    """All rows for this node with these settings."""
    tracker = conntrack_rows(settings, os.cpu_count() or 1)
    direct = (_SLOPPY_TCP,) if settings.direct_return else ()
    return (*SYSCTLS, *direct, _ipv6_of_the_link(settings.dummy_interface), *_estimation_rows(settings), *tracker)


def _ipv6_of_the_link(interface: str) -> Row:
    """The row that lets the VIPs' link have IPv6 addresses where `default.disable_ipv6` gives new links none.

    The kernel refuses each with EACCES there (net/ipv6/addrconf.c, addrconf_add_dev). Without IPv6 it has no such file.
    """
    name = f"net.ipv6.conf.{interface.replace('.', '/')}.disable_ipv6"
    return Row(name, "0", "the VIPs' link can have IPv6 addresses", _serves_ipv6, optional=True)


def _estimation_rows(settings: Settings) -> tuple[Row, ...]:
    """The rows for IPVS's estimation; only those that the settings name.

    Every two seconds the kernel sums up the counters of each virtual and real server and computes their rates. Only
    `ipvsadm --stats` and `--rate` read these; no scheduler does. Before Linux 6.2 one processor does it in a timer,
    without a pause.
    """
    rows = []
    if settings.ipvs_estimation is not None:
        value = "1" if settings.ipvs_estimation else "0"
        meaning = "whether IPVS sums up the statistics of its servers"
        absent = "leave --ipvs-estimation out: the kernel is too old for that"
        rows.append(Row("net.ipv4.vs.run_estimation", value, meaning, absent=absent))
    if settings.ipvs_estimation_nice is not None:
        value = str(settings.ipvs_estimation_nice)
        meaning = "the niceness of the kernel's threads that do so"
        absent = "leave --ipvs-estimation-nice out: Linux 6.2 and later have it"
        rows.append(Row("net.ipv4.vs.est_nice", value, meaning, absent=absent))
    return tuple(rows)


MOST_CONNECTIONS = 1 << 20
"""The limit by processors is no more than this, however many there are."""

CONNECTIONS_A_BUCKET = 4

_CONNTRACK = "net.netfilter.nf_conntrack_"
_TIMEOUTS = {
    "tcp_timeout_established": "for how long an idle TCP connection is tracked",
    "tcp_timeout_close_wait": "for how long a half-closed TCP connection is tracked",
    "udp_timeout": "for how long UDP without an answer is tracked",
    "udp_timeout_stream": "for how long UDP with answers is tracked",
}
"""The settings that are sysctls of the same name, with their meanings."""


def most_connections(settings: Settings, processors: int) -> int:
    """How many connections the settings want to be tracked on a node with so many processors; 0: as many as now."""
    if not settings.conntrack_max_per_core:
        return 0
    scaled = settings.conntrack_max_per_core * processors
    return MOST_CONNECTIONS if scaled > MOST_CONNECTIONS else max(scaled, settings.conntrack_min)


def conntrack_rows(settings: Settings, processors: int) -> Iterator[Row]:
    """The rows of the connection tracker, for the settings that are not 0.

    The rules are those of kube-proxy (pkg/proxy/conntrack, `setSysctls`): the limit is never lowered, and the hash
    table has a bucket for every four connections. In a network namespace that is not the initial one, the limit and the
    table can only be read; time-outs belong to each namespace.
    """
    absent = "load nf_conntrack"
    if most := most_connections(settings, processors):
        meaning = "how many connections can be tracked; only the initial network namespace can set it"
        limit = Row(f"{_CONNTRACK}max", str(most), meaning, absent=absent, at_least=True)
        buckets = str(most // CONNECTIONS_A_BUCKET)
        yield limit
        yield Row(f"{_CONNTRACK}buckets", buckets, "the table of these", at_least=True, needs=limit.name)
    for name, meaning in _TIMEOUTS.items():
        if seconds := getattr(settings, f"conntrack_{name}"):
            yield Row(_CONNTRACK + name, str(seconds), meaning, absent=absent)
    if settings.conntrack_tcp_be_liberal:
        yield Row(f"{_CONNTRACK}tcp_be_liberal", "1", "TCP packets outside the window are not invalid", absent=absent)


class NodeSysctls:
    """Sets the sysctls whose rows apply, and records their previous values in the ledger."""

    def __init__(self, sysctls: SysctlClient, ledger: Ledger, rows: Iterable[Row] = SYSCTLS) -> None:
        self._sysctls = sysctls
        self._ledger = ledger
        self._rows = tuple(rows)
        self._failed: set[str] = set()

    def ensure(self, circumstances: Circumstances) -> list[str]:
        """Set the sysctls that differ from the table; returns a sentence for each that another program has changed.

        A failure is logged once, with the sysctl's name, and the other rows go on.
        """
        drift = []
        for row in self._rows:
            if not row.when(circumstances) or row.needs in self._failed:
                continue
            was_set = row.name in self._ledger.sysctls
            try:
                changed = self._set(row)
            except KernelError as error:
                if row.name not in self._failed:
                    log.warning("sysctl.failed", sysctl=row.name, meaning=row.meaning, error=str(error))
                self._failed.add(row.name)
                continue
            self._failed.discard(row.name)
            if changed and was_set:
                drift.append(f"sysctl {row.name} was changed")
        return drift

    def restore(self, report: CleanupReport) -> None:
        """Restore the values from the ledger, where the present value is still the one that kroute set.

        A sysctl that another one disturbs is behind it in the ledger, and so is restored after it.
        """
        ours = {name: change for name, change in self._ledger.sysctls.items() if self._sysctls.read(name) == change.new}
        for name, change in ours.items():
            if self._sysctls.read(name) != change.old:
                with report.step(f"sysctl {name}"):
                    self._sysctls.write(name, change.old)
                    report.add(f"set {name} back to {change.old}")

    def _set(self, row: Row) -> bool:
        old = self._sysctls.read(row.name)
        if (old is None and row.optional) or (old is not None and row.is_met_by(old)):
            return False
        if old is None:
            raise KernelError(f"cannot set {row.name} to {row.value}: this kernel has no such sysctl ({row.absent})")
        if row.name == IPV6_FORWARDING:
            self._go_on_hearing_routers()
        disturbed = {name: self._sysctls.read(name) for name in row.disturbs}
        self._change(row.name, old, row.value)
        changed = disturbed | ({row.name: row.value} if row.at_least else {})  # the kernel may have rounded it up
        self._ledger.record(
            SysctlChanged(name, before, after)
            for name, before in changed.items()
            if before is not None and (after := self._sysctls.read(name)) is not None
        )
        return True

    def _go_on_hearing_routers(self) -> None:
        """Let the interfaces by which the node has learned IPv6 routes from routers go on doing so when it forwards.

        A kernel that begins to forward deletes these routes, the node's default route often among them, and learns none
        any more, unless `accept_ra` is 2 (net/ipv6/route.c, rt6_purge_dflt_routers). Others are left as they are:
        pods' links had better not hear routers.
        """
        for interface in self._sysctls.hearing_routers():
            name = f"net.ipv6.conf.{interface}.accept_ra"
            if (old := self._sysctls.read(name)) == "1":
                self._change(name, old, "2")

    def _change(self, name: str, old: str, new: str) -> None:
        """Set a sysctl. The ledger has the old value before it is gone."""
        self._ledger.record([SysctlChanged(name, old, new)])
        self._sysctls.write(name, new)
        log.info("sysctl.set", sysctl=name, value=new, was=old)
