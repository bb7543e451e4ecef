"""A bad file in the directory, of any kind, affects only its own objects."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.model.objects import KubernetesObject
from kroute.watchers import manifests as module
from kroute.watchers import yaml_text
from kroute.watchers.manifests import Faulty, UnreadableError, read_manifest
from tests.unit.watchers.test_manifests import WEB, events, following, write
from tests.unit.watching import service

BILLION = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGED = "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1},*a{n - 1}]}}\n" for n in range(1, 40))

UNREADABLE = {
    "latin-1.json": b'{"kind":"Service","metadata":{"name":"\xe9"}}',
    "latin-1.yaml": b"kind: Service\nmetadata: {name: \xe9}\n",
    "surrogate.json": b'{"kind":"Service","metadata":{"name":"\\ud800"}}',
    "surrogate.yaml": b'kind: Service\nmetadata: {name: "\\ud800"}\n',
    "deep.json": b'{"kind":"Service","metadata":{"name":"a","x":%b}}' % (b"[" * 9_990 + b"]" * 9_990),
    "number.json": b"9" * 10_000,
    "number.yaml": b"9" * 10_000,
    "infinite.json": b"1e999",
    "no-number.yaml": b"!!int x",
    "no-text.yaml": b'!!int ""',
    "no-bool.yaml": b"!!bool x",
    "no-float.yaml": b'!!float ""',
    "object.yaml": b"!!python/object/apply:os.system [exit 1]",
    "deep.yaml": b"[" * 100_000 + b"]" * 100_000,
    "deep-block.yaml": b"- " * 100_000,
    "deep-keys.yaml": b"? " * 100_000,
    "unclosed.json": b"[" * 100_000,
    "itself.yaml": b"&a [*a]",
    "itself-as-key.yaml": b"&a {*a : 1}",
    "itself-merged.yaml": b"&a {<<: *a}",
    "billion.yaml": BILLION.encode(),
    "merged.yaml": MERGED.encode(),
    "key.yaml": b"{[a]: 1}",
    "nul.yaml": b"a: \0",
    "nothing.yaml": b"",
    "unfinished.yaml": b"a: [",
    "unknown-alias.yaml": b"*a",
}
FAULTY = {
    "lists.json": b'{"kind":"List","items":[' * 400 + b"]}" * 400,
    "list-of-itself.json": b'{"kind":"ServiceList","items":[{"items":[1]},[[]],null,5]}',
    "keys.yaml": b"{kind: Service, metadata: {name: a}, 1: 2, null: 3}",
    "keys-within.yaml": b"{kind: Service, metadata: {name: a, 5: 6}}",
    "name.json": b'{"kind":"Service","metadata":{"name":5}}',
    "long-name.json": b'{"kind":"Service","metadata":{"name":"%b"}}' % (b"a" * 254),
    "escape.json": b'{"kind":"Service","metadata":{"name":"a\\u001b[2J"}}',
    "namespace.json": b'{"kind":"Service","metadata":{"name":"a","namespace":["a"]}}',
    "port.json": b'{"kind":"Service","metadata":{"name":"a"},"spec":{"ports":[{"port":%b}]}}' % (b"9" * 4000),
    "kind.json": b'{"kind":["Service"],"metadata":{"name":"a"}}',
    "kinds.yaml": b"{kind: !!set {Service, Node}}",
}


@pytest.mark.parametrize(("name", "text"), UNREADABLE.items(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(name: str, text: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(UnreadableError) as refusal:
        read_manifest(tmp_path / name)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(("name", "text"), FAULTY.items(), ids=FAULTY)
def test_an_object_that_cannot_be_read_costs_itself(name: str, text: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text)
    assert not any(isinstance(part, KubernetesObject) for part in read_manifest(tmp_path / name))


def test_aliases_that_stand_for_little_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Service\nmetadata: {name: &n a, labels: {x: *n}}\n---\n*n\n")
    with pytest.raises(UnreadableError, match="undefined alias"):
        read_manifest(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("kind: Service\nmetadata: {name: &n a, labels: {x: *n}}\n---\n")
    [found] = read_manifest(tmp_path / "a.yaml")
    assert isinstance(found, KubernetesObject)
    assert found.metadata.labels == {"x": "a"}


def test_the_pure_loader_refuses_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    monkeypatch.setattr(yaml_text, "TextLoader", type("Pure", (yaml.SafeLoader,), {}))
    for name, text in UNREADABLE.items():
        if name.endswith(".yaml") and not name.startswith("surrogate"):
            (tmp_path / name).write_bytes(text)
            with pytest.raises(UnreadableError):
                read_manifest(tmp_path / name)
    (tmp_path / "s.yaml").write_bytes(UNREADABLE["surrogate.yaml"])
    assert [type(part) for part in read_manifest(tmp_path / "s.yaml")] == [Faulty]


@pytest.mark.parametrize("what", ["pipe", "device", "loop", "directory", "socket", "huge", "secret"])
async def test_what_is_no_readable_file_keeps_nobody_waiting(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_FILE", 1 << 20)
    bad = tmp_path / "bad.json"
    match what:
        case "pipe":
            os.mkfifo(bad)
        case "device":
            bad.symlink_to("/dev/zero")
        case "loop":
            bad.symlink_to("bad.json")
        case "directory":
            bad.mkdir()
        case "socket":
            import socket

            with socket.socket(socket.AF_UNIX) as unix_socket:
                unix_socket.bind(str(bad))
        case "huge":
            with bad.open("wb") as file:
                file.truncate(1 << 40)
        case "secret":
            bad.symlink_to("/proc/self/mem")
    write(tmp_path, "good.json", service("victim"))
    with capture_logs() as logs:
        async with following(tmp_path) as follower:
            assert follower.names == {"victim"}
            write(tmp_path, "good.json", service("victim"), service("another"))
            await follower.until(lambda: "another" in follower.names)
    assert [entry["file"] for entry in events(logs, "manifest.unreadable")] == [str(bad)]


def test_what_waits_in_a_pipe_is_not_read(tmp_path: Path) -> None:
    """A program that writes to it would wait for another reader, or serve what no file says."""
    pipe = tmp_path / "a.yaml"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    try:
        os.write(writer, WEB.encode())
        with pytest.raises(UnreadableError, match="not a regular file"):
            read_manifest(pipe)
        assert os.read(writer, 1 << 16) == WEB.encode()
    finally:
        os.close(writer)


async def test_bad_files_cost_the_others_nothing(tmp_path: Path) -> None:
    for name, text in (UNREADABLE | FAULTY).items():
        (tmp_path / name).write_bytes(text)
    (tmp_path / "web.yaml").write_text(WEB)
    async with following(tmp_path) as follower:
        assert follower.names == {"web"}
        for name in UNREADABLE | FAULTY:
            (tmp_path / name).touch()
        write(tmp_path, "last.json", service("last"))
        await follower.until(lambda: follower.names == {"web", "last"})
