"""A kubeconfig is read as client-go reads it: each field, and which goes before which."""

import asyncio
import base64
import json
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kroute.settings import Settings
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.authentication import kubeconfig as module
from kroute.watchers.kubernetes.authentication.configuration import Configuration, context_for
from kroute.watchers.kubernetes.authentication.kubeconfig import KubeconfigCredentials
from kroute.watchers.kubernetes.errors import ConfigurationError, UnreachableError
from tests.apiserver import ApiServer
from tests.unit.watchers.kubernetes.test_api import NODES, make_certificate

VERSION = "client.authentication.k8s.io/v1"
SERVER = "https://10.0.0.1:6443"


def write(directory: Path, user: dict[str, Any] | None = None, /, **cluster: Any) -> Path:
    """Write a kubeconfig with this user and cluster."""
    named = {name.replace("_", "-"): value for name, value in cluster.items()}
    content = {
        "current-context": "c",
        "clusters": [{"name": "other", "cluster": {}}, {"name": "k", "cluster": {"server": SERVER, **named}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "x"}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    file = directory / "config"
    file.write_text(json.dumps(content))
    return file


async def read(file: Path) -> Configuration:
    credentials = KubeconfigCredentials(file)
    await credentials.load()
    return credentials.configuration


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("user", "header"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"token": "T"}, "Bearer T", id="a token"),
        pytest.param({"tokenFile": "file"}, "Bearer from a file", id="a token file, beside the kubeconfig"),
        pytest.param({"token": "T", "tokenFile": "file"}, "Bearer from a file", id="the token file before the token"),
        pytest.param({"token": "T", "tokenFile": "empty"}, "Bearer T", id="the token while the file is empty"),
        pytest.param({"username": "me", "password": "p:w"}, "Basic " + in_base64("me:p:w"), id="a password"),
        pytest.param({"username": "me", "password": "", "token": "T"}, "Bearer T", id="a token before a password"),
        pytest.param({"username": "me"}, None, id="a name alone"),
    ],
)
async def test_its_user_authenticates_by(user: dict[str, Any], header: str | None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from a file\n")
    (tmp_path / "empty").write_text("")
    headers = (await read(write(tmp_path, user))).headers
    assert headers == ({} if header is None else {"authorization": header})


async def test_the_fields_of_its_cluster_are_followed(tmp_path: Path) -> None:
    assert await read(
        write(
            tmp_path,
            server="https://api.example:6443/",
            certificate_authority="pki/ca.crt",
            insecure_skip_tls_verify=True,
            tls_server_name="kubernetes",
            proxy_url="http://proxy:3128",
        )
    ) == Configuration(
        "https://api.example:6443",
        authority=tmp_path / "pki/ca.crt",
        verify_tls=False,
        tls_server_name="kubernetes",
        proxy="http://proxy:3128",
    )


async def test_data_goes_before_a_file(tmp_path: Path) -> None:
    user = {"client-certificate": "c", "client-key": "/k", "client-key-data": in_base64("key")}
    read_from = await read(
        write(tmp_path, user, certificate_authority="/a", certificate_authority_data=in_base64("ca"))
    )
    assert read_from.pems == ("ca", tmp_path / "c", "key")


async def test_lists_and_fields_may_be_null(tmp_path: Path) -> None:
    content = json.loads(write(tmp_path, {"exec": None, "token": None}).read_text())
    content["users"].append({"name": "nobody", "user": None})
    (tmp_path / "config").write_text(json.dumps(content))
    assert (await read(tmp_path / "config")).headers == {}
    content["users"], content["contexts"][0]["context"]["user"] = None, ""
    (tmp_path / "config").write_text(json.dumps(content))
    assert (await read(tmp_path / "config")).headers == {}


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        pytest.param({"auth-provider": {"name": "oidc", "config": {}}}, "has no auth-provider", id="auth-provider"),
        pytest.param({"token": 5}, r"Expected `str \| null`, got `int`", id="a token that is a number"),
        pytest.param({"tokenFile": "missing"}, "No such file", id="a token file that is missing"),
        pytest.param({"exec": {"apiVersion": VERSION}}, "missing required field `command`", id="exec without command"),
        pytest.param({"client-key-data": "A"}, "Incorrect padding|base64", id="data that is not base64"),
    ],
)
async def test_what_cannot_be_used_is_named(user: dict[str, Any], problem: str, tmp_path: Path) -> None:
    file = write(tmp_path, user)
    with pytest.raises(ConfigurationError, match=rf"^kubeconfig {file} cannot be used: .*({problem})"):
        await read(file)


async def test_a_context_of_a_user_that_is_missing_is_refused(tmp_path: Path) -> None:
    content = json.loads(write(tmp_path).read_text())
    content["users"] = []
    (tmp_path / "config").write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="no object with name u in users"):
        await read(tmp_path / "config")


class TestCertificates:
    """A server that asks for a client's certificate gets it, from files, from data, and from a plugin."""

    @pytest.fixture
    def pki(self, tmp_path: Path) -> dict[str, tuple[Path, Path]]:
        return {name: make_certificate(tmp_path, name) for name in ("server", "client")}

    @pytest.fixture
    def tls(self, pki: dict[str, tuple[Path, Path]]) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pki["client"][0])
        context.load_cert_chain(*pki["server"])
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def user(self, how: str, pki: dict[str, tuple[Path, Path]], tmp_path: Path) -> dict[str, Any]:
        certificate, key = pki["client"]
        texts = certificate.read_text(), key.read_text()
        match how:
            case "files":
                return {"client-certificate": certificate.name, "client-key": str(key)}
            case "one file":
                (tmp_path / "both").write_text("".join(texts))
                return {"client-certificate": "both"}
            case "data":
                return {
                    f"client-{part}-data": in_base64(text)
                    for part, text in zip(("certificate", "key"), texts, strict=True)
                }
        status = {"clientCertificateData": texts[0], "clientKeyData": texts[1]}
        return {"exec": plugin(tmp_path, json.dumps(status))}

    @pytest.mark.parametrize("how", ["files", "one file", "data", "plugin"])
    async def test_it_is_sent(
        self, how: str, pki: dict[str, tuple[Path, Path]], tls: ssl.SSLContext, tmp_path: Path
    ) -> None:
        async with ApiServer(tls=tls) as server:
            cluster = {"server": server.url, "certificate_authority_data": in_base64(pki["server"][0].read_text())}
            file = write(tmp_path, self.user(how, pki, tmp_path), **cluster)
            async with await Api.open(Settings("node1", kubeconfig=file)) as api:
                await api.get(NODES)
            async with await Api.open(Settings("node1", kubeconfig=write(tmp_path, **cluster))) as api:
                with pytest.raises(UnreachableError):
                    await api.get(NODES)

    async def test_the_name_in_the_servers_may_be_given(
        self, pki: dict[str, tuple[Path, Path]], tmp_path: Path
    ) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*pki["server"])
        async with ApiServer(tls=context) as server:
            for name, is_right in (("127.0.0.1", True), ("other.example", False)):
                cluster = {"server": server.url, "certificate_authority": "server.crt", "tls_server_name": name}
                async with await Api.open(Settings("node1", kubeconfig=write(tmp_path, **cluster))) as api:
                    if is_right:
                        await api.get(NODES)
                        continue
                    with pytest.raises(UnreachableError, match="its certificate is not trusted"):
                        await api.get(NODES)

    @pytest.mark.parametrize("field", ["authority", "certificate", "key"])
    def test_data_that_is_none_is_an_error_of_the_system(self, field: str, pki: dict[str, tuple[Path, Path]]) -> None:
        certificate, key = (file.read_text() for file in pki["client"])
        configuration = Configuration(SERVER, authority=certificate, certificate=certificate, key=key)
        context_for(configuration)
        setattr(configuration, field, "nothing")
        with pytest.raises(OSError, match=r"."):
            context_for(configuration)


def plugin(directory: Path, status: str, command: str = "./plugin") -> dict[str, Any]:
    """Write a plugin that answers with this status and counts its runs, beside the kubeconfig. Returns its `exec`."""
    answer = f'{{"apiVersion":"{VERSION}","kind":"ExecCredential","status":{status}}}'
    (directory / "answer").write_text(answer)
    program = directory / "plugin"
    program.write_text('#!/bin/sh\nset -e\ncd "${0%/*}"\necho "$FOR $1 $KUBERNETES_EXEC_INFO" >> runs\ncat answer\n')
    program.chmod(stat.S_IRWXU)
    return {"apiVersion": VERSION, "command": command, "args": ["get-token"], "env": [{"name": "FOR", "value": "k"}]}


class TestPlugin:
    @pytest.fixture(autouse=True)
    def ask_again_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "REFRESH_PERIOD", 0.0)

    async def test_it_gets_its_arguments_and_variables(self, tmp_path: Path) -> None:
        await read(write(tmp_path, {"exec": plugin(tmp_path, '{"token":"T"}')}))
        for_whom, argument, information = (tmp_path / "runs").read_text().split(maxsplit=2)
        assert (for_whom, argument) == ("k", "get-token")
        assert json.loads(information) == {
            "apiVersion": VERSION,
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }

    @pytest.mark.parametrize(
        ("lasts", "runs"),
        [
            pytest.param(None, 3, id="without an end it is run again"),
            pytest.param(timedelta(minutes=4), 3, id="shortly before its end it is run again"),
            pytest.param(timedelta(minutes=6), 1, id="before that it is not"),
        ],
    )
    async def test_it_is_asked_no_more_often_than_needed(
        self, lasts: timedelta | None, runs: int, tmp_path: Path
    ) -> None:
        ends = f', "expirationTimestamp": "{(datetime.now(UTC) + lasts).isoformat()}"' if lasts else ""
        credentials = KubeconfigCredentials(write(tmp_path, {"exec": plugin(tmp_path, f'{{"token":"T"{ends}}}')}))
        await credentials.load()
        await credentials.refresh()
        await credentials.refresh()
        assert len((tmp_path / "runs").read_text().splitlines()) == runs
        await credentials.refresh(rejected=True)
        assert len((tmp_path / "runs").read_text().splitlines()) == runs + 1

    @pytest.mark.parametrize("status", ["{}", '{"token":""}', '{"clientCertificateData":"x"}'])
    async def test_an_answer_without_a_credential_is_refused(self, status: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="neither a token nor a certificate with its key"):
            await read(write(tmp_path, {"exec": plugin(tmp_path, status)}))

    @pytest.mark.parametrize(
        "status", ['{"token":5}', '{"token":"T","expirationTimestamp":"2030-01-01T00:00:00"}', "[]", "null"]
    )
    async def test_an_answer_of_another_form_is_refused(self, status: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="lacks apiVersion, kind or status"):
            await read(write(tmp_path, {"exec": plugin(tmp_path, status)}))

    async def test_an_answer_of_another_version_is_refused(self, tmp_path: Path) -> None:
        said = {**plugin(tmp_path, '{"token":"T"}'), "apiVersion": "client.authentication.k8s.io/v1beta1"}
        with pytest.raises(ConfigurationError, match=f"answers {VERSION}, not .*v1beta1"):
            await read(write(tmp_path, {"exec": said}))

    async def test_one_that_fails_later_leaves_the_credentials_as_they_were(self, tmp_path: Path) -> None:
        credentials = KubeconfigCredentials(write(tmp_path, {"exec": plugin(tmp_path, '{"token":"T"}')}))
        await credentials.load()
        (tmp_path / "answer").unlink()
        with pytest.raises(ConfigurationError, match="returned 1"):
            async with asyncio.timeout(60):
                await credentials.refresh()
        assert credentials.configuration.headers == {"authorization": "Bearer T"}
