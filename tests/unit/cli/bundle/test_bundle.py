"""`kroute bundle` holds what support needs, is bounded, and holds no secret, wherever one was planted."""

import asyncio
import io
import json
import stat
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from kroute.base import logs
from kroute.base.logs import RecentEvents
from kroute.cli.bundle import command, redaction
from kroute.cli.bundle.command import INDEX, Part, collect, pack
from kroute.cli.bundle.redaction import LONGEST_SECRET, REMOVED, Redaction
from kroute.inspect import agent_socket
from kroute.model.objects import Applied
from kroute.telemetry.answers import answers_of
from tests.apiserver.server import ApiServer
from tests.builders import LISTED, endpoint_slice, node, service
from tests.unit.command_line import exit_code
from tests.unit.load_balancer import ask_soon
from tests.unit.observed import Observed

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.c2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEplantedkey0123456789\nzplantedkey9876543210\n-----END RSA PRIVATE KEY-----"
SECRETS = {
    "bearer": "planted-bearer-0",
    "service account": "planted-account-1",
    "environment": "planted-environment-2",
    "unnamed variable": "planted-variable-3",
    "annotation": "planted-annotation-4",
    "last applied": "planted-applied-5",
    "label": "planted-label-6",
    "password": "planted-password-7",
    "exec": "planted-exec-8",
    "url": "planted-url-9",
    "header": "planted-header-10",
    "journal": "planted-journal-11",
}
LAST_APPLIED = json.dumps({"metadata": {"annotations": {"deploy/key": SECRETS["last applied"]}}})


def plain_lines() -> list[tuple[str, str]]:
    """Return log lines with secrets."""
    return [
        ("api.failed", f"Authorization: Bearer {SECRETS['header']}"),
        ("proxy.used", f"http://user:{SECRETS['url']}@proxy.example:3128/"),
        (
            "plugin.failed",
            f"token {SECRETS['service account']} was refused; {SECRETS['password']} {SECRETS['exec']} too",
        ),
        ("key.read", PEM),
        ("answer", f'{{"id_token": "{JWT}"}}'),
    ]


@pytest.fixture
async def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """A node with an agent and an API server, and a secret wherever one may be. Return the options of the command."""
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "token").write_text(SECRETS["service account"] + "\n")
    monkeypatch.setattr(redaction, "SERVICE_ACCOUNT", account)
    monkeypatch.setenv("DATABASE_PASSWORD", SECRETS["environment"])
    monkeypatch.setenv("GREETING", SECRETS["unnamed variable"])
    journal = tmp_path / "bin" / "journalctl"
    journal.parent.mkdir()
    journal.write_text(f"#!/bin/sh\necho 'unit said {SECRETS['environment']} and secret: {SECRETS['journal']}'\n")
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{journal.parent}:/usr/sbin:/usr/bin:/sbin:/bin")
    monkeypatch.setattr(logs, "RECENT", RecentEvents(20))
    for name, details in plain_lines():
        logs.RECENT.remember({"event": name, "level": "info", "details": details}, time.time())
    web = service(
        annotations={
            "team/secret": SECRETS["annotation"],
            "kubectl.kubernetes.io/last-applied-configuration": LAST_APPLIED,
            "kube-router.io/service.scheduler": "lc",
        },
        labels={"key": SECRETS["label"]},
    )
    async with ApiServer(token=SECRETS["bearer"]) as server:
        for item in (web, endpoint_slice("web", "10.244.1.5")):
            server.apply(
                {"apiVersion": "v1" if item is web else "discovery.k8s.io/v1", "kind": type(item).__name__}
                | msgspec.to_builtins(item)
            )
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        content = json.loads(kubeconfig.read_text())
        plugin = {"command": "/bin/false", "env": [{"name": "X", "value": SECRETS["exec"]}]}
        content["users"].append({"name": "other", "user": {"password": SECRETS["password"], "exec": plugin}})
        kubeconfig.write_text(json.dumps(content))
        agent = Observed(kubeconfig=kubeconfig, master=(f"http://user:{SECRETS['url']}@127.0.0.1:{server.port}",))
        agent.catalog.take([Applied(node()), Applied(web), Applied(endpoint_slice("web", "10.244.1.5")), *LISTED])
        agent.broadcaster.publish(agent.catalog.plan_marked())
        async with agent.running(), serving(tmp_path / "state", agent):
            await ask_soon(agent.metrics_port)
            yield ["--state-dir", str(tmp_path / "state")]


def serving(state_dir: Path, agent: Observed) -> object:
    state_dir.mkdir()
    (state_dir / "ledger").touch()
    answers = answers_of(agent.parts)
    return agent_socket.serve(state_dir, {**answers, **agent.observation.answers})


def unpacked(packed: bytes) -> dict[str, bytes]:
    """Return the files by their names without the directory."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = {it.name.partition("/")[2]: archive.extractfile(it) for it in archive.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


async def test_no_secret_is_in_the_bundle_wherever_it_was_planted(planted: list[str], tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    assert await asyncio.to_thread(exit_code, "bundle", "--file", target, *planted) == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    files = unpacked(target.read_bytes())
    everything = b"\n".join(files.values()).decode()
    found = {name: secret for name, secret in SECRETS.items() if secret in everything}
    assert found == {}
    for piece in ("MIIEplantedkey", "zplantedkey", *JWT.split(".")):
        assert piece not in everything


async def test_the_bundle_has_every_part_or_its_reason(planted: list[str], tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    await asyncio.to_thread(exit_code, "bundle", "--file", target, *planted)
    files = unpacked(target.read_bytes())
    index = json.loads(files[INDEX])
    assert (index["apiVersion"], index["kind"]) == ("kroute.io/v1", "BundleIndex")
    assert {it["name"] for it in index["parts"] if not it["reason"]} == files.keys() - {INDEX}
    assert {
        *("version.json", "settings.json", "status.json", "checks.json", "show.json", "plans.jsonl", "services.jsonl"),
        *("shared.json", "statistics.json", "metrics.txt", "ledger.txt", "journal.txt", "recent.jsonl"),
        *("policies.json", "peers.json", "routes.json", "pod-routes.json"),
        *("kernel/version.txt", "kernel/sysctls.json", "kernel/conntrack.json"),
    } <= files.keys() | {it["name"] for it in index["parts"] if "could not answer" in it["reason"]}
    assert json.loads(files["status.json"])["kind"] == "Status"
    [plan] = [it for it in map(json.loads, files["plans.jsonl"].splitlines()) if it.get("virtual_servers")]
    assert plan["virtual_servers"][0]["scheduler"] == "lc"
    [told] = map(json.loads, files["services.jsonl"].splitlines())
    assert told["service"]["metadata"]["annotations"] == {"kube-router.io/service.scheduler": "lc"}
    lines = [json.loads(line) for line in files["recent.jsonl"].splitlines()]
    assert len(lines) == len(plain_lines())
    assert b"unit said [removed]" in files["journal.txt"]
    assert index["removed"] >= 5


async def test_a_bundle_replaces_no_file(planted: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "bundle.tar.gz"
    target.write_text("something else")
    assert await asyncio.to_thread(exit_code, "bundle", "--file", target, *planted) == 1
    assert target.read_text() == "something else"
    assert "File exists" in capfd.readouterr().err


async def never() -> bytes:
    await asyncio.Event().wait()
    return b""


async def broken() -> bytes:
    raise OSError("no such device, password=planted-in-error")


async def large() -> bytes:
    return b"x" * 1000


async def small() -> dict[str, object]:
    return {"a": 1}


async def test_a_part_that_fails_hangs_or_is_large_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PART_SECONDS", 0.01)
    monkeypatch.setattr(command, "PART_BYTES", 100)
    parts = [Part(it.__name__, "", it) for it in (never, broken, large, small)]
    index, contents = await collect("node1", parts, Redaction(()))
    reasons = {it.name: it.reason for it in index.parts}
    assert reasons["never"] == "not collected within 0.01 s"
    assert reasons["broken"] == f"no such device, password={REMOVED}"
    assert (reasons["large"], reasons["small"]) == ("", "")
    assert {name: len(content) for name, content in contents.items()} == {"large": 100, "small": len('{\n  "a": 1\n}')}
    assert [it.omitted for it in index.parts if it.name == "large"] == [900]
    assert unpacked(pack("kroute-bundle", index, contents)).keys() == {INDEX, "large", "small"}


async def test_all_parts_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ALL_BYTES", 2500)
    parts = [Part(str(number), "", large) for number in range(5)]
    index, contents = await collect("node1", parts, Redaction(()))
    assert [len(it) for it in contents.values()] == [1000, 1000, 500]
    assert all("left out" in it.reason for it in index.parts[3:])
    monkeypatch.setattr(command, "ALL_SECONDS", 0)
    index, contents = await collect("node1", parts, Redaction(()))
    assert contents == {}
    assert all("left out" in it.reason for it in index.parts)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ('{"password": "hunter22", "port": 80}', f'{{"password":"{REMOVED}","port":80}}'),
        ('{"password": null, "token": ""}', '{"password": null, "token": ""}'),
        ("Bearer abcdefgh", f"Bearer {REMOVED}"),
        ("https://10.0.0.1:6443/api", "https://10.0.0.1:6443/api"),
        ("https://me:pw@host/", f"https://{REMOVED}@host/"),
        ("service.scheduler=lc default/tokens", "service.scheduler=lc default/tokens"),
        ("a known-value here", f"a {REMOVED} here"),
        ("a=b=token=hunter22, port=80", f"a=b=token={REMOVED}, port=80"),
        (f"x-{JWT} of a.b", f"x-{REMOVED} of a.b"),
        ("eyJa.b", "eyJa.b"),
        (f"before {PEM} after", f"before {REMOVED}\n{REMOVED}\n{REMOVED}\n{REMOVED} after"),
        (PEM.replace("\n", "\\n") + ' "port"', f'{REMOVED} "port"'),
        ("a -----BEGIN A----- b\nand more words", f"a {REMOVED} b\nand more words"),
        ("-----BEGIN A-----\nvip.bound 10.0.0.1\n", f"{REMOVED}\nvip.bound 10.0.0.1\n"),
        (
            "10:00 kroute: -----BEGIN A-----\n10:00 kroute: MIIEplantedkey0123456789\n10:01 kroute: AbC=\n10:02 none\n",
            f"10:00 kroute: {REMOVED}\n10:00 kroute: {REMOVED}\n10:01 kroute: {REMOVED}\n10:02 none\n",
        ),
        (
            "-----BEGIN A-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,0A\n\nMIIEplantedkey0123456789\n",
            f"{REMOVED}\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,0A\n\n{REMOVED}\n",
        ),
    ],
)
def test_secrets_are_removed_and_the_rest_stays(text: str, cleaned: str) -> None:
    assert Redaction(["known-value"]).clean(text) == cleaned


@pytest.mark.parametrize("marker", ["-----BEGIN A-----", "token=", "Bearer ", "://", f"{JWT[:30]}.", '\\", "token": "'])
def test_a_marker_removes_no_more_than_its_own_string(marker: str) -> None:
    """Whatever a tenant writes into an annotation, support sees the Services after it, and JSON stays JSON."""
    lines = [{"service": "tenant/x", "annotations": {"kroute.io/weights": f"{marker}aaaa", "b": "c"}}]
    lines += [{"service": f"victim/{number}", "vips": ["10.0.0.1"]} for number in range(3)]
    cleaned = Redaction(()).clean("".join(f"{json.dumps(line)}\n" for line in lines))
    found = [json.loads(line) for line in cleaned.splitlines()]
    assert found[1:] == lines[1:]
    assert found[0]["annotations"]["b"] == "c"
    assert found[0]["service"] == "tenant/x"
    assert json.loads(Redaction(()).clean(json.dumps(lines, indent=2)))[1:] == lines[1:]


HOSTILE = ["client-", "eyJ-", "eyJaaaaaaaa.", "://", "://a@", "token-", "token=", "bearer ", "x=", "\\", "{", "\n"]
HOSTILE += ["-----BEGIN A-----", "-----BEGIN A-----\n", "-----BEGIN A-----\\n", "-----END A-----"]


@pytest.mark.parametrize("in_json", [False, True], ids=["text", "JSON"])
@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_the_time_grows_with_the_text_and_no_faster(piece: str, in_json: bool) -> None:
    size = 32 << 10

    def seconds(text: str) -> float:
        began = time.process_time()
        Redaction(()).clean(json.dumps({"a": text}) if in_json else text)
        return time.process_time() - began

    harmless = min(seconds("a word " * (size // 7)) for _ in range(3))
    assert min(seconds(piece * (size // len(piece))) for _ in range(3)) < 50 * harmless


def test_cleaning_ends_with_its_time() -> None:
    line = json.dumps({"service": "default/web", "message": "x" * 80})
    for text in (f"{line}\n" * 20_000, "x=" * 500_000):
        with pytest.raises(TimeoutError):
            Redaction(()).clean(text, time.monotonic() - 1)


async def test_a_part_that_cannot_be_cleaned_in_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> str:
        raise TimeoutError

    monkeypatch.setattr(Redaction, "clean", late)
    index, contents = await collect("node1", [Part("large", "", large)], Redaction(()))
    assert (contents, index.parts[0].reason) == ({}, "not collected within 15 s")


async def test_a_secret_at_the_end_of_what_is_read_is_not_cut_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PART_BYTES", 1 << 20)

    async def much() -> bytes:
        return b"x" * (100 + LONGEST_SECRET - 5) + b"known-value" + b"x" * 1000

    index, contents = await collect("node1", [Part("much", "", much)], Redaction(["known-value"]))
    assert b"known" not in contents["much"]
    assert index.parts[0].bytes == index.parts[0].omitted + len(contents["much"])


def test_a_name_for_a_file_is_made_of_harmless_characters() -> None:
    assert command.bundle_name("../../n\x1b1").startswith("kroute-bundle-.._.._n_1-20")
