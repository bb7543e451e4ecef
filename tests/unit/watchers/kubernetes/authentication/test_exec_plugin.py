"""A credential plugin that never ends, or prints too much, is killed and delays nothing else."""

import asyncio
import stat
from pathlib import Path

import pytest
import yaml

from kroute.watchers.kubernetes.authentication import exec_plugin
from kroute.watchers.kubernetes.authentication.kubeconfig import KubeconfigCredentials
from kroute.watchers.kubernetes.errors import ConfigurationError
from tests.unit.watching import eventually

VERSION = "client.authentication.k8s.io/v1"
ANSWER = f'{{"apiVersion":"{VERSION}","kind":"ExecCredential","status":{{"token":"secret"}}}}'


async def headers(tmp_path: Path, script: str) -> dict[str, str]:
    """Return the headers with which a kubeconfig with this plugin authenticates."""
    plugin, kubeconfig = tmp_path / "plugin", tmp_path / "kubeconfig"
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(stat.S_IRWXU)
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "https://10.0.0.1:6443"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "users": [{"name": "a", "user": {"exec": {"apiVersion": VERSION, "command": str(plugin)}}}],
    }
    kubeconfig.write_text(yaml.safe_dump(content))
    credentials = KubeconfigCredentials(kubeconfig)
    await credentials.load()
    return credentials.configuration.headers


async def test_its_token_is_used(tmp_path: Path) -> None:
    assert await headers(tmp_path, f"echo '{ANSWER}'") == {"authorization": "Bearer secret"}


async def test_much_on_standard_error_keeps_nobody_waiting(tmp_path: Path) -> None:
    script = f"head -c 300000 /dev/zero >&2; echo '{ANSWER}'"
    assert await headers(tmp_path, script) == {"authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("cat /dev/zero", "wrote more than 1 MiB and was killed"),
        ("cat /dev/zero >&2", "wrote more than 1 MiB and was killed"),
        ("head -c 100000 /dev/zero | tr '\\0' '['", "is not JSON"),
        ("echo '[]'", "lacks apiVersion"),
        ("echo broken >&2; exit 3", "returned 3: broken"),
    ],
)
async def test_a_bad_one_is_one_sentence(tmp_path: Path, script: str, sentence: str) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(ConfigurationError, match=sentence) as refused:
            await headers(tmp_path, script)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize("script", ["sleep 1000", "exec sleep 1000 >&- 2>&-"])
async def test_one_that_does_not_end_is_killed(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_plugin, "TIME_OUT", 0.5)
    async with asyncio.timeout(60):
        with pytest.raises(ConfigurationError, match=r"took more than 0\.5 s and was killed"):
            await headers(tmp_path, script)


async def test_what_it_started_goes_with_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="was killed"):
        await headers(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/child; cat /dev/zero")
    child = int((tmp_path / "child").read_text())
    await eventually(lambda: not _runs(child))


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
