"""The bundle of kernel clients has one shape: real, recording and fake."""

import inspect

import pytest

from kroute.inspect.recording import Recorder, recording
from kroute.kernel import clients
from kroute.kernel.errors import KernelError
from kroute.kernel.node_kernel import NodeKernel, open_kernel
from tests.fakes.kernel import FakeKernel
from tests.fakes.node_kernel import FakeNodeKernel, open_fake_kernel

PROTOCOLS = {
    "links": clients.LinkClient,
    "ipvs": clients.IpvsClient,
    "addresses": clients.AddressClient,
    "routes": clients.RouteClient,
    "ipset": clients.IpsetClient,
    "conntrack": clients.ConntrackClient,
    "xtables": clients.XtablesClient,
    "nftables": clients.NftablesClient,
    "sysctls": clients.SysctlClient,
    "tunnels": clients.TunnelClient,
    "pod_network": clients.PodNetworkClient,
}


def members(kernel: NodeKernel) -> dict[str, list[object]]:
    """Return the clients by the name of their field."""
    found = {name: getattr(kernel, name) for name in PROTOCOLS}
    return {name: list(it.values()) if isinstance(it, dict) else [it] for name, it in found.items()}


async def test_every_bundle_answers_what_the_protocols_ask() -> None:
    fake = FakeNodeKernel.of(FakeKernel())
    async with open_kernel(only=("xtables", "ipset", "nftables")) as real:
        for kernel in (real, fake, recording(fake, Recorder())):
            for name, each in members(kernel).items():
                asked = inspect.getmembers(PROTOCOLS[name], inspect.isfunction)
                assert all(hasattr(client, method) for client in each for method, _ in asked if method[0] != "_")
    assert PROTOCOLS.keys() | {"version", "monitor", "sockets"} == {*NodeKernel.__struct_fields__}


async def test_only_the_clients_that_are_asked_for_are_open() -> None:
    async with open_kernel(only=("links",)) as kernel:
        assert await kernel.links.read("lo") is not None
        with pytest.raises(KernelError, match="not open"):
            await kernel.addresses.read("lo")
        with pytest.raises(KernelError, match="nftables is not open"):
            await kernel.nftables.tables()
        assert kernel.sockets.keys() == {"links"}
        assert kernel.sockets["links"].sends == 1
    with pytest.raises(KernelError, match="not open"):
        await kernel.links.read("lo")


async def test_the_fake_one_is_used_like_the_real_one() -> None:
    fake = FakeKernel()
    async with open_fake_kernel(fake) as kernel, kernel.monitor(only_interface="d0") as events:
        await kernel.links.create_dummy("d0")
        assert [event.interface for event in await events.next()] == ["d0"]
        assert kernel.version == fake.version
