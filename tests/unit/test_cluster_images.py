"""The images of the cluster: the archive that containerd imports, what a node gets of a store, and one server."""

import json
import socket
import struct
import tarfile
from pathlib import Path

import pytest

from tests.cluster import packages
from tests.cluster.images import DATABASES, LINKED, Image, link, write_archive
from tests.cluster.out_of_window import answer, checksum


def test_an_archive_has_each_layer_once_and_an_entry_for_each_name(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "file").write_text("content")
    images = [Image(["one:1", "other:1"], [layer], {"Cmd": ["sh"]}), Image(["two:2"], [layer], {"Cmd": ["true"]})]
    write_archive(images, tmp_path / "images.tar")
    with tarfile.open(tmp_path / "images.tar") as archive:

        def read(name: str) -> dict[str, object]:
            return json.loads(archive.extractfile(name).read())  # type: ignore[union-attr, no-any-return]

        index = json.loads(archive.extractfile("index.json").read())  # type: ignore[union-attr]
        names = [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]]
        blobs = [name for name in archive.getnames() if name.startswith("blobs/")]
        manifest = read(f"blobs/sha256/{index['manifests'][2]['digest'].partition(':')[2]}")
        config = read(f"blobs/sha256/{manifest['config']['digest'].partition(':')[2]}")  # type: ignore[index]
    assert names == ["one:1", "other:1", "two:2"]
    assert len(blobs) == 5, "a layer, and for each image a configuration and a manifest"
    assert config["config"] == {"Cmd": ["true"]}


def test_a_node_gets_copies_of_the_databases_and_links_to_where_the_rest_will_be(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", Path("/elsewhere/1")
    for name in DATABASES:
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(name)
    for name in LINKED:
        (root / name / "2").mkdir(parents=True)
        (root / name / "1").symlink_to(elsewhere)
    link(root, tmp_path / "node", Path("/final"))
    for name in DATABASES:
        assert (tmp_path / "node" / name).read_text() == name
    for name in LINKED:
        assert {it.name: it.readlink() for it in (tmp_path / "node" / name).iterdir()} == {
            "1": elsewhere,
            "2": Path("/final") / name / "2",
        }


def test_a_directory_is_made_once_for_each_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KROUTE_CACHE", str(tmp_path))
    made = [packages.once("thing", key, lambda it: (it / "made").touch()) for key in ("a", "b", "a")]
    assert made[0] == made[2] != made[1]
    again = packages.once("thing", "a", lambda _: pytest.fail("made again"))
    assert [it.name for it in again.iterdir()] == ["made"]


def test_what_could_not_be_made_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KROUTE_CACHE", str(tmp_path))

    with pytest.raises(RuntimeError, match=r"false: "):
        packages.once("thing", "a", lambda _: packages.run("false") and None)
    assert packages.once("thing", "a", lambda it: (it / "made").touch()).exists()


def test_the_answer_lies_before_the_window_and_has_a_right_checksum() -> None:
    ack = struct.pack("!HHIIBBHHH", 40000, 9000, 1001, 200_001, 5 << 4, 16, 512, 0, 0)
    segment = answer(ack, "10.244.1.2", "10.244.2.3")
    assert struct.unpack_from("!HHII", segment) == (9000, 40000, 100_001, 1001)
    pseudo = socket.inet_aton("10.244.2.3") + socket.inet_aton("10.244.1.2") + struct.pack("!HH", 6, len(segment))
    assert checksum(pseudo + segment) == 0
