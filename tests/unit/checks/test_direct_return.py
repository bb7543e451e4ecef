"""`kroute check` says what prevents direct return on a node, before the first pod is refused."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kroute.checks.finding import Level
from kroute.checks.node_checks import DIRECT_RETURN_CAPABILITIES, INITIAL_PID_NAMESPACE, check_direct_return
from kroute.checks.preflight import CAPABILITY_NUMBERS
from kroute.kernel import modules
from tests.builders import settings

ALL = sum(1 << CAPABILITY_NUMBERS[name] for name in DIRECT_RETURN_CAPABILITIES)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node where nothing is missing."""
    (tmp_path / "self/ns").mkdir(parents=True)
    say(tmp_path)
    lacking(monkeypatch)
    return tmp_path


def say(proc: Path, *, capabilities: int = ALL, namespace: str = INITIAL_PID_NAMESPACE) -> None:
    (proc / "self/status").write_text(f"Name:\tkroute\nCapEff:\t{capabilities:016x}\n")
    (proc / "self/ns/pid").unlink(missing_ok=True)
    (proc / "self/ns/pid").symlink_to(namespace)


def lacking(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    async def load(asked: Sequence[str]) -> list[str]:
        return [it for it in asked if it in names]

    monkeypatch.setattr(modules, "load", load)


async def complaints(proc: Path, *, ipv6: bool = True) -> list[str]:
    found = await check_direct_return(settings(direct_return=True), ipv6=ipv6, proc=proc)
    assert all(it.level is Level.WARNING and it.next_step for it in found if it.level is not Level.OK)
    return [it.message for it in found if it.level is not Level.OK]


async def test_where_nothing_is_missing_it_says_so(proc: Path) -> None:
    assert await complaints(proc) == []
    [found] = await check_direct_return(settings(direct_return=True), ipv6=True, proc=proc)
    assert found.level is Level.OK


async def test_without_the_setting_nothing_is_asked(tmp_path: Path) -> None:
    assert await check_direct_return(settings(), ipv6=True, proc=tmp_path) == []


@pytest.mark.parametrize("name", DIRECT_RETURN_CAPABILITIES)
async def test_each_capability_is_named(proc: Path, name: str) -> None:
    say(proc, capabilities=ALL & ~(1 << CAPABILITY_NUMBERS[name]))
    [message] = await complaints(proc)
    assert f"CAP_{name} is missing" in message


async def test_a_pod_without_the_hosts_processes_is_told(proc: Path) -> None:
    say(proc, namespace="pid:[4026532000]")
    [message] = await complaints(proc)
    assert "PID namespace" in message


async def test_a_tunnel_that_the_kernel_lacks_is_named_for_served_families_only(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking(monkeypatch, "ipip", "ip6_tunnel")
    assert [it.split()[2] for it in await complaints(proc)] == ["ipip", "ip6_tunnel"]
    assert [it.split()[2] for it in await complaints(proc, ipv6=False)] == ["ipip"]
