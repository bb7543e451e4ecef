"""The rules of direct return on a kernel without IPv6 (ipv6.disable=1), which refuses to list or to write its own."""

import errno
from collections.abc import Callable, Sequence
from socket import AF_INET6

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.net.steering import Steering
from kroute.kernel.netlink.message import HEADER

MARK = 0x2000


class WithoutIpv6:
    """Lists the rules that were written. Refuses as fib_nl_dumprule and fib_nl_newrule do (net/core/fib_rules.c)."""

    def __init__(self) -> None:
        self.rules: list[bytes] = []

    async def request(self, query: bytes, parse: Callable[[bytes], bytes | None]) -> list[bytes]:
        if query[HEADER.size] == AF_INET6:
            raise KernelError("refused", errno=errno.EAFNOSUPPORT)
        return [rule for payload in self.rules if (rule := parse(payload)) is not None]

    async def transact(self, messages: Sequence[bytes]) -> dict[int, int]:
        payloads = [it[HEADER.size :] for it in messages]
        self.rules += [it for it in payloads if it[0] != AF_INET6]
        return {at: errno.EAFNOSUPPORT for at, it in enumerate(payloads) if it[0] == AF_INET6}


async def test_a_kernel_without_ipv6_lacks_no_rule_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    steering = Steering()
    monkeypatch.setattr(steering, "netlink", WithoutIpv6())
    assert len(await steering.ensure_rules(MARK)) == 1
    assert await steering.ensure_rules(MARK) == []
    assert await steering.has_rules(MARK)
