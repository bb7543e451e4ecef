"""Whatever a token file or a kubeconfig file contains, kroute says what is wrong with it and tries again."""

import json
from pathlib import Path
from typing import Any

import pytest

from kroute.settings import Settings
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.authentication import kubeconfig as by_file
from kroute.watchers.kubernetes.authentication.service_account import InClusterCredentials
from kroute.watchers.kubernetes.errors import ConfigurationError, UnreachableError
from tests.apiserver import ApiServer

NODES = "/api/v1/nodes"
WORN = {"a line feed": b"secret\n", "CR and LF": b"secret\r\n", "white space": b" \tsecret \n\n"}
SPOILT = {
    "empty": b"",
    "a line feed alone": b"\n",
    "two lines": b"secret\nX-Remote-User: admin\n",
    "NUL": b"sec\0ret",
    "Latin-1": b"s\xe9cret",
    "UTF-16": "secret".encode("utf-16"),
    "not ASCII": "sécret".encode(),
    "an escape": b"\x1b[2Jsecret",
    "huge": b"s" * (1 << 20),
}


def settings(kubeconfig: Path) -> Settings:
    return Settings(node_name="node1", kubeconfig=kubeconfig)


@pytest.fixture(autouse=True)
def always_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_file, "REFRESH_PERIOD", 0.0)


@pytest.mark.parametrize("text", WORN.values(), ids=WORN)
async def test_white_space_around_a_token_is_no_part_of_it(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(text)
    async with ApiServer(token="secret") as server:
        file = server.kubeconfig(tmp_path / "config", tokenFile=str(tmp_path / "token"))
        async with await Api.open(settings(file)) as api:
            await api.get(NODES)
        assert server.requests[-1].headers["Authorization"] == "Bearer secret"


async def test_an_empty_token_file_leaves_the_token_that_was_there(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    async with ApiServer(token="secret") as server:
        file = server.kubeconfig(tmp_path / "config", tokenFile=str(token))
        async with await Api.open(settings(file)) as api:
            token.write_text("")
            await api.get(NODES)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in SPOILT.items() if text])
async def test_a_spoilt_token_is_an_error_of_the_request_until_it_is_whole_again(text: bytes, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    async with ApiServer(token="secret") as server:
        file = server.kubeconfig(tmp_path / "config", tokenFile=str(token))
        async with await Api.open(settings(file)) as api:
            await api.get(NODES)
            token.write_bytes(text)
            asked = len(server.requests)
            with pytest.raises((UnreachableError, ConfigurationError)) as refusal:
                await api.get(NODES)
            assert len(server.requests) == asked
            assert len(str(refusal.value)) < 500
            token.write_text("secret")
            await api.get(NODES)


@pytest.mark.parametrize("text", (WORN | SPOILT).values(), ids=WORN | SPOILT)
async def test_the_token_of_a_service_account_may_be_anything(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_bytes(text)
    (tmp_path / "ca.crt").write_text("certificate")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    if text in WORN.values():
        assert InClusterCredentials(tmp_path).configuration.headers == {"authorization": "Bearer secret"}
    else:
        with pytest.raises(ConfigurationError) as refusal:
            InClusterCredentials(tmp_path)
        assert len(str(refusal.value)) < 500


def kubeconfig(**changes: Any) -> dict[str, Any]:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        **changes,
    }


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe",
        b"clusters: \xe9",
        b"[" * 1_000,
        b"&a [*a]",
        b"9" * 10_000,
        b"!!bool x",
        b'!!int ""',
        b"a: \0",
        b"",
        b"5",
        *(
            json.dumps(kubeconfig(**changes)).encode()
            for changes in (
                {"users": ["u"]},
                {"users": {"u": 1}},
                {"users": [{"name": "u", "user": "x"}]},
                {"users": [{"name": "u", "user": {"tokenFile": 5}}]},
                {"users": [{"name": "u", "user": {"tokenFile": "/nonexistent"}}]},
                {"users": [{"name": "u", "user": {"exec": []}}]},
                {"users": [{"name": "u", "user": {"exec": {"command": 5, "apiVersion": 5}}}]},
                {"users": [{"name": "u", "user": {"client-certificate-data": "\x00"}}]},
                {
                    "users": [
                        {"name": "u", "user": {"auth-provider": {"name": "oidc", "config": {"id-token": "a.W1tb.c"}}}}
                    ]
                },
                {"clusters": [{"name": "c", "cluster": {"server": 5}}]},
                {"clusters": [{"name": "c", "cluster": {}}]},
                {"clusters": [5]},
                {"contexts": [{"name": "c"}]},
                {"contexts": 5},
                {"current-context": {"a": 1}},
                {"current-context": "\x1b[2J"},
            )
        ),
    ],
    ids=lambda text: repr(text[:60]),
)
async def test_a_kubeconfig_file_may_be_anything(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(text)
    with pytest.raises((ConfigurationError, UnreachableError)):
        async with await Api.open(settings(tmp_path / "config")) as api:
            await api.get(NODES)


async def test_a_kubeconfig_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="more than 16 MiB"):
        await Api.open(settings(Path("/dev/zero")))
