"""The images of the cluster, made without a registry: `prepare` makes a store of containerd's that nodes only link to.

To import them takes a node minutes. So containerd imports them once on this machine, and a node copies `node/` of the
store to /var/lib/containerd: two databases, and links to the layers and their unpacked files, which it sees read-only.
A container's root is then an overlay with those files below. The version of containerd must be the same.
"""

import hashlib
import io
import json
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kroute import __version__
from release.images import BIRD
from tests.cluster.packages import once, run, unpacked
from tests.lab.kubernetes import VERSION, unpack
from tests.lab.places import PROJECT, cache

DATABASES = "io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"
LINKED = "io.containerd.content.v1.content/blobs/sha256", "io.containerd.snapshotter.v1.overlayfs/snapshots"
"""Directories of a store whose entries a node only links to."""
_E2E = "registry.k8s.io/e2e-test-images"
_TOOLS = (
    "dash busybox-static bind9-dnsutils libc-bin curl wget netcat-openbsd iproute2 iperf conntrack iptables ipset "
    "nftables ipvsadm kmod python3 dnsmasq-base"
)
"""What the tests call in the images, and what kube-proxy and kube-router call. Not busybox's `nc` and `wget`: the tests
need those of netcat-openbsd and GNU; and not its `sh`, which prefers its own to those."""
_PLATFORM = {"architecture": "amd64", "os": "linux"}
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Image(NamedTuple):
    """What an image is made of: its names, the directories whose files are its layers, its configuration (OCI)."""

    names: Sequence[str]
    layers: Sequence[Path]
    configuration: Mapping[str, Any]


def prepare() -> Path:
    """Make what has changed of the images, and return the store: copy its `node/` to a node's /var/lib/containerd.

    Needs root, and the tools of scripts/image. Raises RuntimeError: what could not be made, and why.
    """
    others = _store("others", _others(), over=None)
    return _store("kroute", [_own("kroute", __version__), _own("kroute-bird", BIRD.tag, TARGET="bird")], over=others)


def containerd() -> Path:
    """Where Debian's containerd and runc are unpacked: `usr/bin` and `usr/sbin` of it."""
    return unpacked("containerd", "containerd", "runc")


def _others() -> list[Image]:
    """All images but kroute's: the same files under every name that the tests ask for."""
    tools = once("tools", f"{unpacked('debian', *_TOOLS.split())} {_text()}", _tools)
    programs = once("kubernetes", f"{unpack('k8s')} {unpack('kube-router')} {_text()}", _programs)

    def image(*names: str, layers: Sequence[Path] = (tools,), **configuration: Any) -> Image:
        return Image(names, layers, {"Env": [_PATH], **configuration})

    return [
        image(f"{_E2E}/agnhost:2.63.0", Entrypoint=["/agnhost"], Cmd=["pause"]),
        image("registry.k8s.io/pause:3.10.2", "registry.k8s.io/pause:3.6", Entrypoint=["/agnhost", "pause"]),
        image(f"{_E2E}/busybox:1.37.0-1", f"{_E2E}/busybox:1.36.1-1", Cmd=["sh"]),
        image(f"{_E2E}/nginx:1.15-4", f"{_E2E}/nginx:1.27-0", Entrypoint=["/agnhost"], Cmd=["test-webserver"]),
        image(f"{_E2E}/glibc-dns-testing:2.0.0", "registry.k8s.io/build-image/distroless-iptables:v0.9.3"),
        image(f"{_E2E}/regression-issue-74839:1.5", Entrypoint=["/regression-issue-74839"]),
        image(f"registry.k8s.io/kube-proxy:v{VERSION}", layers=(tools, programs), Cmd=["kube-proxy"]),
        image("docker.io/cloudnativelabs/kube-router:v2", layers=(tools, programs), Entrypoint=["kube-router"]),
    ]


def _tools(root: Path) -> None:
    shutil.copytree(unpacked("debian", *_TOOLS.split()), root, symlinks=True, dirs_exist_ok=True)
    for unread in ("doc", "man", "locale", "i18n", "zoneinfo"):
        shutil.rmtree(root / "usr/share" / unread, ignore_errors=True)
    for directory in ("dev", "home", "proc", "root", "run", "sys", "tmp", "uploads", "usr/local/bin", "var/tmp"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "bin/nc").symlink_to("nc.openbsd")
    for name in ("tables", "tables-save", "tables-restore"):
        for family in ("ip", "ip6"):
            (root / "usr/sbin" / f"{family}{name}").symlink_to("xtables-nft-multi")
    there = {path.name for place in ("bin", "sbin", "usr/bin", "usr/sbin") for path in (root / place).iterdir()}
    for applet in set(run(root / "bin/busybox", "--list").split()) - there:
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    agnhost = unpack("agnhost")
    if agnhost is None:
        raise RuntimeError("no agnhost.xz beside k8s.xz")
    shutil.copy(agnhost, root)
    for program, name in (("out_of_window.py", "regression-issue-74839"), ("coredns", "coredns")):
        shutil.copy(Path(__file__).with_name(program), root / name)
        (root / name).chmod(0o755)
    subject = "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,DNS:example.com,IP:127.0.0.1,IP:::1"
    key = ("-newkey", "rsa:2048", "-nodes", "-keyout", root / "localhost.key", "-out", root / "localhost.crt")
    run("openssl", "req", "-x509", "-days", "3650", "-subj", *subject, *key)
    (root / "localhost.key").chmod(0o644)


def _programs(root: Path) -> None:
    (root / "usr/local/bin").mkdir(parents=True)
    for packed, name in (("k8s", "kube-proxy"), ("kube-router", "kube-router")):
        if program := unpack(packed):
            shutil.copy(program, root / "usr/local/bin" / name)


def _own(name: str, tag: str, **settings: str) -> Image:
    """kroute's image or BIRD's, as scripts/image makes it from deploy/Dockerfile, with all its layers in one."""
    with tempfile.TemporaryDirectory() as directory:
        link = Path(directory) / "image"
        variables = (f"{name}={value}" for name, value in settings.items())
        run("env", *variables, PROJECT / "scripts/image", cache() / "image", link)
        root = link.resolve()
    names = [f"{place}/{name}:{tag}" for place in ("docker.io/library", "localhost")]
    return Image(names, (root,), json.loads(Path(f"{root}.json").read_text()))


def _text() -> str:
    """This room's text: what it makes is made again when it has changed."""
    return "".join(Path(__file__).with_name(name).read_text() for name in _MAKERS)


_MAKERS = "images.py", "out_of_window.py", "coredns", "packages.py"


def _store(name: str, images: list[Image], over: Path | None) -> Path:
    """The store of this name: what containerd has after it imported these images, beside those of another store."""

    def make(store: Path) -> None:
        root = store / "root"
        root.mkdir()
        if over:
            shutil.copytree(over / "node", root, symlinks=True, dirs_exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            _import(images, root, Path(scratch))
        link(root, store / "node", store.with_suffix("") / "root")

    return once(name, f"{images} {over} {containerd()} {_text()}", make)


def _import(images: list[Image], root: Path, scratch: Path) -> None:
    """Let a containerd of its own, which can run no container, import the images into `root`."""
    write_archive(images, scratch / "images.tar")
    address = scratch / "socket"
    settings = f'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{address}"\n'
    (scratch / "config.toml").write_text(settings)
    binaries = containerd() / "usr/bin"
    place = f"--config={scratch}/config.toml", f"--root={root}", f"--state={scratch}/state"
    with (scratch / "log").open("wb") as log:
        daemon = subprocess.Popen([binaries / "containerd", *place], stdout=log, stderr=log)
    try:
        with socket.socket(socket.AF_UNIX) as probe:  # ctr gives up if it comes between bind and listen
            while daemon.poll() is None and probe.connect_ex(str(address)) != 0:
                time.sleep(0.1)
        ctr = (binaries / "ctr", "--address", address, "--namespace=k8s.io")
        run(*ctr, "images", "import", scratch / "images.tar")
    except RuntimeError as error:
        raise RuntimeError(f"{error}\n{(scratch / 'log').read_text()[-2000:]}") from error
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()


def link(root: Path, node: Path, final: Path) -> None:
    """Make `node`: copies of the databases in `root`, and links to the rest at the place where it will be finally."""
    for name in DATABASES:
        (node / name).parent.mkdir(parents=True)
        shutil.copy(root / name, node / name)
    for name in LINKED:
        (node / name).mkdir(parents=True)
        for entry in (root / name).iterdir():
            (node / name / entry.name).symlink_to(entry.readlink() if entry.is_symlink() else final / name / entry.name)


def write_archive(images: Iterable[Image], target: Path) -> None:
    """Write images as an OCI layout in a tar file, with layers that are not compressed."""
    entries = []
    with tarfile.open(target, "w") as archive:

        def add(content: bytes | Path, kind: str) -> dict[str, Any]:
            with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                member = tarfile.TarInfo(f"blobs/sha256/{digest}")
                member.size = file.seek(0, io.SEEK_END)
                file.seek(0)
                archive.addfile(member, file)
            media = f"application/vnd.oci.image.{kind}"
            return {"mediaType": media, "digest": f"sha256:{digest}", "size": member.size}

        layers = {}
        for directory in {layer for image in images for layer in image.layers}:
            file = target.with_suffix(".layer")
            run("tar", "-C", directory, "--numeric-owner", "--sort=name", "-cf", file, ".")
            layers[directory] = add(file, "layer.v1.tar")
            file.unlink()
        for image in images:
            parts = [layers[directory] for directory in image.layers]
            files = {"type": "layers", "diff_ids": [part["digest"] for part in parts]}
            configuration = {**_PLATFORM, "config": image.configuration, "rootfs": files}
            manifest = {
                "schemaVersion": 2,
                "config": add(json.dumps(configuration).encode(), "config.v1+json"),
                "layers": parts,
            }
            described = {**add(json.dumps(manifest).encode(), "manifest.v1+json"), "platform": _PLATFORM}
            entries += [{**described, "annotations": {"io.containerd.image.name": name}} for name in image.names]
        top = {"oci-layout": {"imageLayoutVersion": "1.0.0"}, "index.json": {"schemaVersion": 2, "manifests": entries}}
        for name, value in top.items():
            text = json.dumps(value).encode()
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))


if __name__ == "__main__":
    print(prepare())
