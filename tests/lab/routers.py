"""Programs that speak BGP in hosts of the lab: BIRD 2 beside kroute, and two routers outside, BIRD and FRR.

The routers' configurations are those of an ordinary data centre: the nodes are external neighbours, whose routes are
taken, and all next hops of a VIP are in the router's kernel, which divides connections over them by a hash of addresses
and ports. Nothing in them is made for kroute; they only try again sooner than by
default, so that tests are short. FRR is Debian's: zebra, bgpd and bfdd.
"""

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, Self

from tests.lab.hosts import Host
from tests.lab.namespaces import CommandError

ENDS_WITHIN = 60.0
"""Seconds that only a program that hangs takes to end."""
ROUTER_AS, NODES_AS = 65000, 64512
FRR = Path("/usr/lib/frr")
_SYSCTLS = {
    "net.ipv4.ip_forward": 1,
    "net.ipv6.conf.all.forwarding": 1,
    "net.ipv4.fib_multipath_hash_policy": 1,
    "net.ipv6.fib_multipath_hash_policy": 1,
}

_BIRD = """\
log stderr all;
router id {id};
protocol device {{ }}
protocol bfd {{ interface "*" {{ interval 1 s; multiplier 5; }}; }}
protocol kernel {{ merge paths on; ipv4 {{ export all; }}; }}
protocol kernel {{ merge paths on; ipv6 {{ export all; }}; }}
template bgp node {{
  local {own} as {asn};
  connect delay time 1; error wait time 1, 5; {more}
  ipv4 {{ import all; export none; }};
  ipv6 {{ import all; export none; }};
}}
{sessions}
"""
_FRR = """\
router bgp {asn}
 bgp router-id {own}
 no bgp ebgp-requires-policy
 neighbor nodes peer-group
 neighbor nodes remote-as {nodes}
 neighbor nodes timers connect 1
{more} address-family ipv4 unicast
  neighbor nodes activate
 exit-address-family
 address-family ipv6 unicast
  neighbor nodes activate
 exit-address-family
"""


class Router(Protocol):
    """A router that runs."""

    host: Host

    def kill(self) -> None:
        """End it."""


class BirdProcess:
    """A BIRD in the foreground. `log` has what it says."""

    def __init__(self, host: Host, directory: Path, configuration: Path) -> None:
        self.host = host
        self._directory = directory
        self._configuration = configuration
        self._process: subprocess.Popen[bytes] | None = None
        self.log = directory / "bird.log"

    @classmethod
    def router(cls, host: Host, directory: Path, text: str) -> Self:
        """A router with this configuration, which runs."""
        directory.mkdir(parents=True)
        configuration = directory / "router.conf"
        configuration.write_text(text)
        made = cls(host, directory, configuration)
        made.start()
        return made

    def start(self) -> None:
        """Start it as docs/routing.md says."""
        command = ["bird", "-f", "-R", "-c", str(self._configuration), "-s", str(self._directory / "bird.ctl")]
        with self.log.open("ab") as log, self.host.namespace.inside():
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it by a signal, and wait for its end."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(ENDS_WITHIN)
            self._process = None

    def leave(self) -> None:
        """End it as docs/routing.md says: its routers are to keep what it has announced."""
        assert self._process is not None
        self.ask("graceful restart")
        self._process.wait(ENDS_WITHIN)
        self._process = None

    def pause(self) -> None:
        """Stop it without its end: it hangs."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def has_recovered(self) -> bool:
        """Whether it has told its routers again what they keep from before its restart."""
        return "recovery in progress" not in self.ask("show status")

    def learned(self, address: str) -> set[str]:
        """The next hops of an address that it has by BGP."""
        try:
            lines = self.ask(f"show route for {address} all").splitlines()
        except CommandError as error:
            if "not found" not in str(error):
                raise
            return set()
        return {line.split()[1] for line in lines if line.split()[:1] == ["via"]}

    def ask(self, command: str) -> str:
        """What it answers to a command of birdc."""
        return self.host.run("birdc", "-s", str(self._directory / "bird.ctl"), *command.split())


def bird_router(host: Host, nodes: Iterable[str], directory: Path, *, bfd: bool, password: str) -> Router:
    """BIRD as router of the nodes with these addresses, all of one family. `password`: of TCP MD5."""
    more = ("bfd on; " if bfd else "") + (f'password "{password}"; ' if password else "")
    sessions = "\n".join(f"protocol bgp from node {{ neighbor {node} as {NODES_AS}; }}" for node in nodes)
    own = host.ip6 if ":" in sessions else host.ip
    _route(host)
    return BirdProcess.router(
        host, directory, _BIRD.format(id=host.ip, own=own, asn=ROUTER_AS, more=more, sessions=sessions)
    )


class FrrRouter:
    """FRR as router of the nodes with these addresses, all of one family. `password`: of TCP MD5."""

    def __init__(self, host: Host, nodes: Iterable[str], _directory: Path, *, bfd: bool, password: str) -> None:
        more = " neighbor nodes bfd 5 1000 1000\n" if bfd else ""
        more += f" neighbor nodes password {password}\n" if password else ""
        more += "".join(f" neighbor {node} peer-group nodes\n" for node in nodes)
        text = _FRR.format(own=host.ip, asn=ROUTER_AS, nodes=NODES_AS, more=more)
        _route(host)
        self.host = host
        # They run as the user frr, who cannot enter the directories of tests.
        self._directory = Path(tempfile.mkdtemp(prefix="frr-", dir="/run"))
        shutil.chown(self._directory, "frr")
        self._processes = [self._started(name, text if name == "bgpd" else "") for name in ("zebra", "bfdd", "bgpd")]

    def kill(self) -> None:
        """Kill all of its programs, and wait for their end."""
        for process in reversed(self._processes):
            process.kill()
            process.wait(ENDS_WITHIN)
        shutil.rmtree(self._directory)

    def _started(self, name: str, text: str) -> subprocess.Popen[bytes]:
        here = self._directory
        (here / f"{name}.conf").write_text(f"hostname router\n{text}")
        command = [str(FRR / name), "-f", str(here / f"{name}.conf"), "-i", str(here / f"{name}.pid")]
        command += ["-z", str(here / "zserv.api"), "--vty_socket", str(here), "-P", "0"]
        command += ["--log", "stdout"] + (["--bfdctl", str(here / "bfdd.sock")] if name == "bfdd" else [])
        with (here / f"{name}.log").open("ab") as log, self.host.namespace.inside():
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def next_hops(router: Host, address: str, names: Mapping[str, str]) -> set[str]:
    """By whom a router's kernel sends packets to an address. `names` are by addresses, link-local ones among them."""
    family = "-6" if ":" in address else "-4"
    routes = json.loads(router.run("ip", family, "-j", "route", "show", "exact", address) or "[]")
    hops = [hop for route in routes for hop in route.get("nexthops", [route])]
    return {names.get(hop.get("gateway"), "nobody") for hop in hops}


def _route(host: Host) -> None:
    """Have a host forward packets, and divide connections over several next hops."""
    for sysctl, value in _SYSCTLS.items():
        host.sysctl(sysctl, value)
