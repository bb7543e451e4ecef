"""Which interfaces hear routers, as /proc/net/ipv6_route says."""

from pathlib import Path

import pytest

from kroute.kernel import sysctl
from kroute.kernel.sysctl import Sysctls

_ANY, _GATEWAY = "0" * 32, "fe80000000000000f026d2fffe1c4a11"
ROUTES = f"""\
{_ANY} 00 {_ANY} 00 {_GATEWAY} 00000400 00000001 00000000 00450003     eth0
{_ANY} 00 {_ANY} 00 {_GATEWAY} 00000400 00000001 00000000 00450003   bond0.7
{_ANY} 00 {_ANY} 00 {_GATEWAY} 00000400 00000001 00000000 00000003     eth1
fd000192016801230000000000000000 40 {_ANY} 00 {_ANY} 00000100 00000001 00000000 00040001     eth2
{_ANY} 00 {_ANY} 00 {_ANY} ffffffff 00000001 00000000 00200200       lo
"""


def test_an_interface_with_a_routers_route_hears_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = tmp_path / "ipv6_route"
    monkeypatch.setattr(sysctl, "IPV6_ROUTES", routes)
    assert Sysctls().hearing_routers() == [], "without IPv6"
    routes.write_text(ROUTES)
    assert Sysctls().hearing_routers() == ["bond0/7", "eth0", "eth2"]
