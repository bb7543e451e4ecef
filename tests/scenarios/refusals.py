"""What "refused" means: the client gets an error at once, over TCP and over UDP."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tests.lab.hosts import Host

AT_ONCE = 0.9
"""Seconds. A client whose SYN is dropped repeats it after 1 s, and some refusals answer only the repeated SYN."""

_ERROR_LIMITS = ("net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit")


async def is_refused(caller: Host, address: str, tcp: int, udp: int) -> None:
    """Expect a TCP reset or an ICMP error, at once; a dropped packet fails the test."""
    for ask, port in ((caller.http, tcp), (caller.udp, udp)):
        try:
            answer = await ask(address, port, timeout=AT_ONCE)
        except ConnectionRefusedError:
            continue
        except TimeoutError:
            raise AssertionError(f"{caller} was told nothing by {address} port {port}") from None
        raise AssertionError(f"{caller} was answered by {address} port {port}: {answer}")


@contextmanager
def unlimited_errors(hosts: Iterable[Host]) -> Iterator[None]:
    """Have the hosts report every refused datagram: the default, about one a second, is too slow for tests."""
    before = [(host, limit, host.sysctl(limit)) for host in hosts for limit in _ERROR_LIMITS]
    for host, limit, _ in before:
        host.sysctl(limit, 0)
    try:
        yield
    finally:
        for host, limit, value in before:
            host.sysctl(limit, value)
