"""Whatever the Lease contains, no director fails because of it, and a Lease that can be read can be taken."""

from typing import Any

import msgspec
import pytest

from kroute.director.election import Election
from kroute.director.lease import LeaseLock, LeaseRole
from kroute.director.settings import LeaseSettings
from kroute.watchers.kubernetes.errors import ApiError
from tests.apiserver.encoding import encode, nested

LEASE = LeaseSettings("kube-system", "kroute-director", duration=15, renew_deadline=10, retry_period=2)


class Stored:
    """An API server with one Lease, made of any bytes."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.written: list[Any] = []

    async def get(self, _path: str) -> bytes:
        return self.body

    async def create(self, _path: str, _body: Any) -> None:
        raise ApiError(409, "AlreadyExists", "it is there")

    async def replace(self, _path: str, body: Any) -> bytes:
        self.written.append(body)
        self.body = msgspec.json.encode(body)
        return self.body


def candidate(requests: Stored) -> Election:
    lock = LeaseLock(requests, LEASE.namespace, LEASE.name)
    return Election(lock, "one", LEASE, lambda _role: None, lambda: True, new_identity=lambda: "two")


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata":{"managedFields":%b},"spec":{}}' % encode(nested(900)),
        b'{"metadata":{"name":"x"},"spec":{"leaseTransitions":2147483647,"leaseDurationSeconds":-5}}',
        b'{"metadata":5,"spec":null}',
    ],
    ids=["managedFields", "numbers at their end", "no metadata"],
)
async def test_a_lease_that_nobody_holds_is_taken(body: bytes) -> None:
    requests = Stored(body)
    one = candidate(requests)
    await one.attempt()
    assert one.role is LeaseRole.ACTIVE
    [written] = requests.written
    assert "managedFields" not in str(written)
    assert 0 <= written["spec"]["leaseTransitions"] < 2**31


@pytest.mark.parametrize(
    "body",
    [
        b'{"spec":{"holderIdentity":"\xff"}}',
        b'{"spec":{"holderIdentity":"\\ud800"}}',
        b'{"spec":{"leaseTransitions":%b}}' % (b"9" * 4_000),
        b'{"spec":{"leaseDurationSeconds":1e999}}',
        b'{"spec":5}',
        b'{"spec":{"holderIdentity":["x"]}}',
        b"[" * 100_000,
        b'{"metadata":{"managedFields":%b},"spec":{}}' % encode(nested(9_990)),
        b"[]",
        b"",
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_a_lease_that_cannot_be_read_is_left_alone(body: bytes) -> None:
    requests = Stored(body)
    one = candidate(requests)
    await one.attempt()
    assert one.role is LeaseRole.UNKNOWN
    await one.release()
    assert requests.written == []
