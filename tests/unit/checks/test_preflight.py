"""Missing prerequisites are reported before kroute starts, each with the next step."""

from pathlib import Path

import pytest

from kroute.checks import preflight
from kroute.kernel import modules


@pytest.mark.parametrize(("mask", "capable"), [("000001ffffffffff", True), ("0000000000001000", True), ("0", False)])
def test_the_effective_capabilities_count(mask: str, capable: bool, tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(f"Name:\tkroute\nCapPrm:\t000001ffffffffff\nCapEff:\t{mask}\n")
    assert preflight.has_capability("NET_ADMIN", tmp_path) is capable


async def test_each_missing_prerequisite_names_what_and_how(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(names: list[str]) -> list[str]:
        return ["ip_vs"]

    monkeypatch.setattr(modules, "load", load)
    monkeypatch.setattr(preflight, "has_capability", lambda *_: False)
    *capabilities, module = map(str, await preflight.findings(preflight.DIRECTOR))
    assert [text.split()[0] for text in capabilities] == ["CAP_NET_ADMIN", "CAP_NET_RAW"]
    assert "modprobe ip_vs" in module
