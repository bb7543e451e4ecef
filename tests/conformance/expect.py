"""Expectations about calls, each within the time that the end-to-end tests allow.

An address is one address, or whatever has one of each family: a host, the addresses of a Service. Then both are called.
"""

from functools import partial

import msgspec

from tests.lab.deployment import eventually
from tests.lab.hosts import Host
from tests.lab.servers import Answer
from tests.lab.world import TwoAddresses

WITHIN = 30.0
"""Seconds, before the lab's slowness counts: KubeProxyEndpointLagTimeout of the end-to-end tests."""

_CALL_TIMEOUT = 2.0


def each_of(address: str | TwoAddresses) -> tuple[str, ...]:
    """Return the address, or both."""
    return (address,) if isinstance(address, str) else (address.ip, address.ip6)


async def served_by(
    client: Host,
    address: str | TwoAddresses,
    port: int,
    names: set[str],
    protocol: str = "http",
    within: float = WITHIN,
) -> None:
    """Expect that all of `names` answer in turn, and no others."""

    async def answers(at: str) -> None:
        answered = {(await _ask(client, at, port, protocol)).host for _ in range(2 * len(names))}
        assert answered == names, f"{client} asked {at} {port}: {answered} answered"

    for each in each_of(address):
        await eventually(partial(answers, each), within)


async def answers_with(client: Host, address: str | TwoAddresses, port: int) -> list[Answer]:
    """Return the answers to one call of each address."""
    return [await _ask(client, each, port, "http") for each in each_of(address)]


async def refused(
    client: Host, address: str | TwoAddresses, port: int, protocol: str = "http", within: float = WITHIN
) -> None:
    """Expect that a call is refused at once: by a TCP reset or ICMP port unreachable, not by silence."""
    await _comes_to("refused", client, address, port, protocol, within)


async def dropped(
    client: Host, address: str | TwoAddresses, port: int, protocol: str = "http", within: float = WITHIN
) -> None:
    """Expect that a call gets no answer of any kind."""
    await _comes_to("silence", client, address, port, protocol, within)


async def unrouted(
    client: Host, address: str | TwoAddresses, port: int, protocol: str = "http", within: float = WITHIN
) -> None:
    """Expect that a node says it has no route to the address: it is nobody's in the cluster."""
    await _comes_to("unrouted", client, address, port, protocol, within)


async def _comes_to(
    expected: str, client: Host, address: str | TwoAddresses, port: int, protocol: str, within: float
) -> None:
    async def it_does(at: str) -> None:
        outcome = await outcome_of(client, at, port, protocol)
        assert outcome == expected, f"{client} asked {at} {port}: {outcome}"

    for each in each_of(address):
        await eventually(partial(it_does, each), within)


async def outcome_of(client: Host, address: str, port: int, protocol: str = "http") -> str:
    """Make one call; return who answered ("answered by web-1"), or `refused`, `unrouted` or `silence`.

    What is no server of the lab, such as kroute's health check of a Service, is "answered by a stranger".
    """
    try:
        return f"answered by {(await _ask(client, address, port, protocol)).host}"
    except msgspec.ValidationError:
        return "answered by a stranger"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silence"
    except OSError:
        return "unrouted"


async def _ask(client: Host, address: str, port: int, protocol: str) -> Answer:
    ask = {"http": client.http, "udp": client.udp, "sctp": client.sctp}[protocol]
    return await ask(address, port, timeout=_CALL_TIMEOUT)
