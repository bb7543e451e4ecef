"""What `kroute check` says of a node whose pods kroute connects."""

from pathlib import Path

import pytest

from kroute.checks.finding import Level
from kroute.checks.node_checks import PLUGINS, check_pod_network
from kroute.kernel import modules
from tests.builders import settings


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that were asked for. The kernel has all but `fou6`."""
    asked: list[str] = []

    async def load(names: list[str]) -> list[str]:
        asked.extend(names)
        return [name for name in names if name == "fou6"]

    monkeypatch.setattr(modules, "load", load)
    return asked


def a_node(directory: Path, *configurations: str, plugins: tuple[str, ...] = PLUGINS) -> dict[str, Path]:
    places = {"cni_directory": directory / "net.d", "plugins": directory / "bin"}
    for place, names in zip(places.values(), (configurations, plugins), strict=True):
        place.mkdir()
        for name in names:
            (place / name).touch()
    return places


async def found(places: dict[str, Path], **given: object) -> list[tuple[Level, str]]:
    chosen = settings(**{"pod_network": True, "cni_directory": places["cni_directory"], **given})
    findings = await check_pod_network(chosen, ipv6=True, plugin_directories=[places["plugins"]])
    return [(it.level, it.message) for it in findings]


async def test_a_node_with_plugins_and_no_other_configuration_is_fine(tmp_path: Path, loaded: list[str]) -> None:
    places = a_node(tmp_path, "10-kroute.conflist", "20-later.conflist", ".hidden", "05-readme.txt")
    [(level, _)] = await found(places)
    assert level is Level.OK
    assert loaded == ["ipip", "ip6_tunnel"]


async def test_missing_plugins_an_earlier_configuration_and_missing_tunnels_are_said(tmp_path: Path) -> None:
    places = a_node(tmp_path, "05-calico.conflist", plugins=("bridge",))
    said = await found(places, overlay_encap="fou")
    assert [level for level, _ in said] == [Level.WARNING] * 3
    for (_, message), part in zip(said, ("host-local, portmap", "05-calico.conflist", "fou6"), strict=True):
        assert part in message


async def test_a_directory_that_is_not_there_yet_is_fine(tmp_path: Path) -> None:
    [(level, _)] = await found({**a_node(tmp_path), "cni_directory": tmp_path / "absent"}, overlay="off")
    assert level is Level.OK


async def test_without_the_setting_nothing_is_looked_at() -> None:
    assert await check_pod_network(settings(), ipv6=True) == []
