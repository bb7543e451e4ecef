"""Requests to the API: the server's address, the credentials, and the errors."""

import asyncio
import contextlib
import json
import ssl
import subprocess
from pathlib import Path

import pytest

from kroute.settings import Settings
from kroute.watchers.kubernetes.api import HEADERS_TIMEOUT, Api
from kroute.watchers.kubernetes.authentication import kubeconfig as by_file
from kroute.watchers.kubernetes.authentication import service_account
from kroute.watchers.kubernetes.errors import ApiError, ConfigurationError, UnreachableError
from kroute.watchers.kubernetes.http.connection import READ_AHEAD
from tests.apiserver import ApiServer
from tests.unit.watching import eventually, node, service
from tests.virtual_time import virtual

NODES = "/api/v1/nodes"
ASYNCIO_READS_AT_ONCE = 256 << 10


def settings(**values: object) -> Settings:
    return Settings(node_name="node1", **values)  # type: ignore[arg-type]


async def asked_by(server: ApiServer, api: Api) -> str | None:
    """Return the credentials with which a request arrives."""
    await api.get(NODES)
    return server.requests[-1].headers.get("Authorization")


class TestCredentials:
    async def test_the_token_of_a_kubeconfig_file_is_sent(self, tmp_path: Path) -> None:
        async with ApiServer(token="secret") as server:
            file = server.kubeconfig(tmp_path / "config")
            async with await Api.open(settings(kubeconfig=file)) as api:
                assert await asked_by(server, api) == "Bearer secret"
                assert server.requests[-1].headers["User-Agent"].startswith("kroute/")

    async def test_a_master_url_needs_no_file_and_has_no_credentials(self) -> None:
        async with ApiServer() as server, await Api.open(settings(master=(server.url,))) as api:
            assert await asked_by(server, api) is None

    async def test_a_master_url_replaces_the_address_in_the_file(self, tmp_path: Path) -> None:
        async with ApiServer(token="secret") as elsewhere, ApiServer(token="secret") as server:
            file = elsewhere.kubeconfig(tmp_path / "config")
            async with await Api.open(settings(kubeconfig=file, master=(server.url,))) as api:
                assert await asked_by(server, api) == "Bearer secret"
                assert elsewhere.requests == []

    async def test_a_rotated_token_file_is_read_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(by_file, "REFRESH_PERIOD", 0.0)
        token = tmp_path / "token"
        token.write_text("first")
        async with ApiServer(token="first") as server:
            file = server.kubeconfig(tmp_path / "config", tokenFile=str(token))
            async with await Api.open(settings(kubeconfig=file)) as api:
                assert await asked_by(server, api) == "Bearer first"
                server.token = "second"
                token.write_text("second")
                assert await asked_by(server, api) == "Bearer second"

    async def test_a_rejected_token_is_fetched_anew_for_the_next_request(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("first")
        async with ApiServer(token="first") as server:
            file = server.kubeconfig(tmp_path / "config", tokenFile=str(token))
            async with await Api.open(settings(kubeconfig=file)) as api:
                server.token = "second"
                token.write_text("second")
                with pytest.raises(ApiError, match="401 Unauthorized"):
                    await api.get(NODES)
                assert await asked_by(server, api) == "Bearer second"

    async def test_a_plugin_is_asked_for_the_token(self, tmp_path: Path) -> None:
        answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "T"}}
        plugin = {"apiVersion": answer["apiVersion"], "command": "echo", "args": [json.dumps(answer)]}
        async with ApiServer(token="T") as server:
            file = server.kubeconfig(tmp_path / "config", exec=plugin)
            async with await Api.open(settings(kubeconfig=file)) as api:
                assert await asked_by(server, api) == "Bearer T"

    async def test_a_changed_kubeconfig_file_is_read_again(self, tmp_path: Path) -> None:
        file = tmp_path / "config"
        async with ApiServer() as old, ApiServer(token="secret") as new:
            old.kubeconfig(file)
            async with await Api.open(settings(kubeconfig=file)) as api:
                await api.get(NODES)
                new.kubeconfig(file)
                assert await asked_by(new, api) == "Bearer secret"

    async def test_a_kubeconfig_file_that_broke_is_an_error_of_the_request(self, tmp_path: Path) -> None:
        async with ApiServer() as server:
            file = server.kubeconfig(tmp_path / "config")
            async with await Api.open(settings(kubeconfig=file)) as api:
                file.write_text("clusters: [")
                with pytest.raises(UnreachableError, match="is not YAML"):
                    await api.get(NODES)
                server.kubeconfig(file)
                await api.get(NODES)


def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1 and its key; return both paths."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    what = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -addext subjectAltName=IP:127.0.0.1"
    )
    command = ["openssl", *what.split(), "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def tls_server(certificate: Path, key: Path, **options: object) -> ApiServer:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return ApiServer(tls=context, **options)  # type: ignore[arg-type]


class TestCertificates:
    async def test_a_rotated_authority_is_loaded_for_the_next_request(self, tmp_path: Path) -> None:
        old, new = make_certificate(tmp_path, "old"), make_certificate(tmp_path, "new")
        authority = tmp_path / "ca.crt"
        authority.write_bytes(old[0].read_bytes())
        file = tmp_path / "config"
        async with tls_server(*old) as server:
            self.trust(server, file, authority)
            api = await Api.open(settings(kubeconfig=file))
            await api.get(NODES)
            port = server.port
        async with api, tls_server(*new, port=port):
            with pytest.raises(UnreachableError, match="certificate"):
                await api.get(NODES)
            authority.write_bytes(b"-----BEGIN")
            with pytest.raises(UnreachableError, match="cannot be used"):
                await api.get(NODES)
            authority.write_bytes(new[0].read_bytes())
            await api.get(NODES)

    async def test_an_authority_that_is_written_again_as_it_was_ends_no_watch(self, tmp_path: Path) -> None:
        """The kubelet does so with each new token: its volumes are replaced as a whole (AtomicWriter)."""
        certificate, key = make_certificate(tmp_path, "cluster")
        authority, again = tmp_path / "ca.crt", tmp_path / "again"
        authority.write_bytes(certificate.read_bytes())
        async with tls_server(certificate, key) as server:
            self.trust(server, tmp_path / "config", authority)
            async with await Api.open(settings(kubeconfig=tmp_path / "config")) as api:
                watch = api.stream(NODES, {"watch": "true", "resourceVersion": "0"})
                server.apply(node("node1"))
                await anext(watch)
                again.write_bytes(authority.read_bytes())
                again.replace(authority)
                await api.get(NODES)
                server.apply(node("node2"))
                [line] = await anext(watch)
                assert b"node2" in line
                await watch.aclose()

    async def test_a_pod_uses_its_service_account(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        certificate, key = make_certificate(tmp_path, "cluster")
        (tmp_path / "token").write_text("pod-token")
        (tmp_path / "ca.crt").write_bytes(certificate.read_bytes())
        monkeypatch.setattr(service_account, "DIRECTORY", tmp_path)
        async with tls_server(certificate, key, token="pod-token") as server:
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
            async with await Api.open(settings()) as api:
                assert await asked_by(server, api) == "Bearer pod-token"

    async def test_an_authority_that_is_none_is_named(self, tmp_path: Path) -> None:
        authority = tmp_path / "ca.crt"
        authority.write_text("nothing")
        async with tls_server(*make_certificate(tmp_path, "server")) as server:
            self.trust(server, tmp_path / "config", authority)
            with pytest.raises(ConfigurationError, match=f"certificates {authority} cannot be used"):
                await Api.open(settings(kubeconfig=tmp_path / "config"))

    @staticmethod
    def trust(server: ApiServer, file: Path, authority: Path) -> None:
        config = json.loads(server.kubeconfig(file).read_text())
        config["clusters"][0]["cluster"]["certificate-authority"] = str(authority)
        file.write_text(json.dumps(config))


def kubeconfig(**changes: object) -> str:
    return json.dumps(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {}}],
            **changes,
        }
    )


class TestMistakes:
    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            pytest.param(None, "cannot be read: No such file or directory", id="missing"),
            pytest.param("a: [", "is not YAML", id="not YAML"),
            pytest.param("just text", "it must be a mapping", id="not a mapping"),
            pytest.param("{}", "has no clusters", id="empty"),
            pytest.param(kubeconfig(**{"current-context": ""}), "has no current-context", id="no current context"),
            pytest.param(kubeconfig(**{"current-context": "x"}), "object with name x in", id="unknown context"),
            pytest.param(kubeconfig(clusters=[{"name": "other"}]), "object with name k in", id="unknown cluster"),
            pytest.param(kubeconfig(clusters="k"), "cannot be used", id="clusters that are no list"),
            pytest.param(kubeconfig(contexts=[7]), "cannot be used", id="a context that is a number"),
        ],
    )
    async def test_a_wrong_kubeconfig_file_is_told_in_one_line(
        self, content: str | None, problem: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "config"
        if content is not None:
            file.write_text(content)
        with pytest.raises(ConfigurationError) as raised:
            await Api.open(settings(kubeconfig=file))
        assert str(raised.value).startswith(f"kubeconfig {file} ")
        assert problem in str(raised.value)
        assert "\n" not in str(raised.value)

    async def test_outside_a_cluster_the_ways_to_name_a_server_are_reported(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        with pytest.raises(ConfigurationError, match="give --kubeconfig FILE, --master URL or --manifests DIR"):
            await Api.open(settings())


class TestAnswers:
    async def test_an_error_carries_status_reason_and_pause(self) -> None:
        async with ApiServer() as server, await Api.open(settings(master=(server.url,))) as api:
            server.faults.add("answer", status=429, retry_after=3)
            with pytest.raises(ApiError) as raised:
                await api.get(NODES)
            assert (raised.value.status, raised.value.retry_after) == (429, 3.0)
            with pytest.raises(ApiError, match='404 NotFound: nodes "x" not found'):
                await api.get(f"{NODES}/x")

    def test_an_answer_that_is_no_status_is_quoted(self) -> None:
        error = ApiError.from_status(b"<html>Bad Gateway</html>\n", 502)
        assert str(error) == "502 : <html>Bad Gateway</html>"

    async def test_a_server_that_is_away_is_named(self) -> None:
        async with ApiServer() as server:
            url = server.url
        async with await Api.open(settings(master=(url,))) as api:
            with pytest.raises(UnreachableError, match=f"{url} does not answer"):
                await api.get(NODES)

    async def test_a_stream_whose_headers_do_not_come_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kroute.watchers.kubernetes.api.HEADERS_TIMEOUT", 0.05)
        async with ApiServer() as server, await Api.open(settings(master=(server.url,))) as api:
            server.faults.add("delay", where="watch", seconds=60)
            with pytest.raises(UnreachableError, match="does not answer: nothing whole came within"):
                await anext(api.stream(NODES, {"watch": "true"}))
            assert api.presence.is_away

    async def test_that_says_nothing_about_a_server_that_has_answered_another_meanwhile(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kroute.watchers.kubernetes.api.HEADERS_TIMEOUT", 0.2)
        async with ApiServer() as server, await Api.open(settings(master=(server.url,))) as api:
            server.faults.add("delay", where="watch", seconds=60)
            hanging = asyncio.create_task(anext(api.stream(NODES, {"watch": "true"})))
            await eventually(lambda: bool(server.requests))
            await api.get(NODES)
            with pytest.raises(UnreachableError, match="does not answer: nothing whole came within"):
                await hanging
            assert not api.presence.is_away

    @virtual()
    async def test_a_stream_may_be_silent_after_its_headers(self) -> None:
        async with ApiServer() as server, await Api.open(settings(master=(server.url,))) as api:
            later = 2 * HEADERS_TIMEOUT
            asyncio.get_running_loop().call_later(later, server.apply, {"kind": "Node", "metadata": {"name": "a"}})
            async with contextlib.aclosing(api.stream(NODES, {"watch": "true"})) as lines:
                assert b'"name":"a"' in (await anext(lines))[0].replace(b" ", b"")
            assert asyncio.get_running_loop().time() >= later

    async def test_objects_are_created(self) -> None:
        async with ApiServer() as server, await Api.open(settings(master=(server.url,))) as api:
            path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
            lease = {"metadata": {"name": "director"}, "spec": {"holderIdentity": "one"}}
            await api.create(path, lease)
            with pytest.raises(ApiError, match="409 AlreadyExists"):
                await api.create(path, lease)
            (stored,) = server.objects("Lease")
            assert stored["spec"] == lease["spec"]

    async def test_objects_are_patched(self) -> None:
        async with ApiServer() as server, await Api.open(settings(master=(server.url,))) as api:
            server.apply(service("web", annotation="old"))
            path = "/api/v1/namespaces/default/services"
            await api.patch(f"{path}/web", {"spec": {"annotation": "new"}})
            (patched,) = server.objects("Service")
            assert patched["spec"]["annotation"] == "new"
            with pytest.raises(ApiError, match="404 NotFound"):
                await api.patch(f"{path}/other", {"spec": {}})

    async def test_lines_come_whole_whatever_the_pieces(self) -> None:
        async with ApiServer(second=0.1) as server, await Api.open(settings(master=(server.url,))) as api:
            sizes = [1, 70_000, 3_000_000, 10]
            for number, size in enumerate(sizes):
                server.apply(service(f"s{number}", annotation="x" * size))
            stream = api.stream("/api/v1/services", {"watch": "1", "timeoutSeconds": "1"})
            lines = [line async for batch in stream for line in batch]
        assert [len(json.loads(line)["object"]["spec"]["annotation"]) for line in lines] == sizes

    async def test_a_slow_reader_is_not_read_ahead_of(self) -> None:
        async with ApiServer(second=0.1) as server, await Api.open(settings(master=(server.url,))) as api:
            for number in range(300):
                server.apply(service(f"s{number}", annotation="x" * 30_000))
            stream = api.stream("/api/v1/services", {"watch": "1", "timeoutSeconds": "1"})
            pieces = []
            async for lines in stream:
                pieces.append(sum(map(len, lines)))
                await asyncio.sleep(0.05)
        assert sum(pieces) > 9_000_000
        assert max(pieces) < 2 * READ_AHEAD + ASYNCIO_READS_AT_ONCE + 31_000


async def test_requests_are_counted_by_method_and_status_as_client_go_counts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ApiServer() as server, await Api.open(settings(master=(server.url,))) as api:
        await api.get(NODES)
        await api.get(NODES)
        with pytest.raises(ApiError):
            await api.get("/api/v1/no-such-kind")
        host = server.url.removeprefix("http://")
        await server.close_port()
        monkeypatch.setattr("kroute.watchers.kubernetes.api.READ_TIMEOUT", 0.1)
        with pytest.raises(UnreachableError):
            await api.get(NODES)
    [series] = api.requests.series()
    assert (series.host, series.method) == (host, "GET")
    assert series.codes == {"200": 2, "404": 1, "<error>": 1}
    assert series.seconds.count == 4
    assert series.seconds.sum > 0
