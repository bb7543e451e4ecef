"""Nodes on which dpkg has installed kroute's Debian package: each with a file system of its own."""

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.lab.cluster import Node
from tests.lab.container import image

UNIT = Path("usr/lib/systemd/system/kroute.service")


def command(*words: str | Path) -> str:
    """Run a command. Returns what it prints. Raises AssertionError if it fails."""
    done = subprocess.run(
        list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class PackagedNodes:
    """Debian, as the image has it but without kroute, into which `apt install` puts the package; a copy for each node.

    The copies share what dpkg wrote, as machines that were cloned. `close` removes them.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch / "machines"
        self._scratch.mkdir()
        self._mounted: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._mount(self._scratch, "-t", "tmpfs", "machines")

    def install(self, package: Path) -> str:
        """Install the package once. Returns what dpkg prints."""
        root = self._overlay("first", str(image()))
        shutil.rmtree(root / "opt/kroute")
        shutil.copy(package, root / "kroute.deb")
        said = command("chroot", root, "dpkg", "--force-unsafe-io", "--install", "/kroute.deb")
        command("umount", root)
        self._mounted.remove(root)
        return said

    def root(self, node: Node) -> Path:
        """Make the file system of a node, and return it. Its /run/kroute is the node's state directory."""
        root = self._overlay(node.name, f"{self._scratch / 'first/upper'}:{image()}")
        self._mount(root / "proc", "-t", "proc", "proc")
        self._mount(root / "run", "-t", "tmpfs", "run")
        for place, target in (
            (Path("/dev"), "dev"),
            (Path("/lib/modules"), "lib/modules"),
            (node.state_dir, "run/kroute"),
        ):
            (root / target).mkdir(parents=True, exist_ok=True)
            self._mount(root / target, "--rbind", str(place))
        return root

    def start(self, node: Node, root: Path) -> None:
        """Start what the installed unit starts, with the node's host name: `systemctl start kroute`."""
        [line] = [it for it in (root / UNIT).read_text().splitlines() if it.startswith("ExecStart=")]
        program = line.removeprefix("ExecStart=").split()
        script = 'hostname "$1"; shift; exec chroot "$@"'
        with node.namespace.inside(), (self._scratch / f"{node.name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    ["unshare", "--uts", "sh", "-c", script, "sh", node.name, root, *program], stdout=log, stderr=log
                )
            )

    def log(self, node: Node) -> str:
        return (self._scratch / f"{node.name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """Stop the agents in order: `systemctl stop kroute`."""
        for process in self._processes:
            process.terminate()
            assert process.wait(60) == 0
        self._processes.clear()

    def close(self) -> None:
        """Kill what still runs, and unmount everything."""
        for process in self._processes:
            process.kill()
            process.wait()
        for place in reversed(self._mounted):
            subprocess.run(["umount", "--recursive", "--lazy", place], check=False, capture_output=True)

    def _overlay(self, name: str, lower: str) -> Path:
        place = self._scratch / name
        for directory in ("upper", "work", "root"):
            (place / directory).mkdir(parents=True)
        options = f"lowerdir={lower},upperdir={place}/upper,workdir={place}/work"
        self._mount(place / "root", "-t", "overlay", "-o", options, "overlay")
        return place / "root"

    def _mount(self, place: Path, *words: str) -> None:
        command("mount", *words, place)
        self._mounted.append(place)


def kubeconfig(server: str, account: Path, root: Path, names: Iterable[str] = ("ca.crt", "token")) -> None:
    """Write /etc/kroute/kubeconfig of a node, with the account's token, and the authority beside it."""
    directory = root / "etc/kroute"
    for name in names:
        shutil.copy(account / name, directory / name)
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "cluster",
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "kroute"}}],
        "clusters": [{"name": "cluster", "cluster": {"server": server, "certificate-authority": "/etc/kroute/ca.crt"}}],
        "users": [{"name": "kroute", "user": {"tokenFile": "/etc/kroute/token"}}],
    }
    (directory / "kubeconfig").write_text(json.dumps(content))
