"""The configuration of CNI plugins, by which a container runtime gives pods their network.

Of all files in its directory, a runtime reads the one whose name comes first. It watches the directory.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from kroute.kernel.errors import KernelError

SUFFIXES = frozenset({".conf", ".conflist", ".json"})
"""Those of the files that a runtime reads (libcni, ConfFiles)."""
PLUGIN_DIRECTORIES = (Path("/opt/cni/bin"), Path("/usr/lib/cni"), Path("/usr/libexec/cni"))
"""Where runtimes look for plugins: that of kubeadm and most distributions, Debian's, Fedora's."""
LONGEST = 64 << 10
"""Bytes that are read."""
KUBE_ROUTERS_BRIDGE = "kube-bridge"
"""The bridge of kube-router's pods."""


class PodsBridge(NamedTuple):
    """The bridge that pods are put on, and the name of their network, under which host-local keeps their addresses."""

    bridge: str
    network: str


class _Plugin(msgspec.Struct):
    bridge: str = ""


class _Configuration(msgspec.Struct):
    """A list of plugins, or one plugin (`.conf`)."""

    name: str = ""
    bridge: str = ""
    plugins: list[_Plugin] = []


class CniFile:
    """The file that is kroute's."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> str | None:
        """What the file has; None: there is none that can be read."""
        try:
            with self.path.open(errors="replace") as file:
                return file.read(LONGEST)
        except OSError:
            return None

    def bridge_in_use(self) -> PodsBridge | None:
        """What pods of this node are on by this file, or else by one of kube-router's; None: neither is here.

        Raises KernelError as `kube_routers` does.
        """
        of_kube_router = (found for _, found in kube_routers(self.path))
        return _bridge_by(self.path) or next(of_kube_router, None)

    def write(self, text: str) -> None:
        """Replace the file in one step. Raises KernelError."""
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(text)
            new.chmod(0o644)
            new.replace(self.path)
        except OSError as error:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            sentence = f"cannot write {self.path}: {error.strerror}; see --cni-directory"
            raise KernelError(sentence, errno=error.errno) from None

    def remove(self) -> bool:
        """Delete the file; returns whether there was one. Raises KernelError."""
        if not self.path.exists():
            return False  # a read-only file system refuses to delete what it does not have
        try:
            self.path.unlink()
        except OSError as error:
            raise KernelError(f"cannot delete {self.path}: {error.strerror}", errno=error.errno) from None
        return True


def others_before(own: Path) -> list[str]:
    """The names of other programs' files that a runtime reads instead of kroute's. Raises OSError."""
    names = (path.name for path in own.parent.iterdir() if path.suffix in SUFFIXES)
    return sorted(name for name in names if name < own.name)


def kube_routers(own: Path) -> Iterator[tuple[Path, PodsBridge]]:
    """The files beside kroute's own by which runtimes put pods on kube-router's bridge.

    Raises KernelError if kube-router is writing its file just now, which it does not do in one step.
    """
    for path in sorted(own.parent.glob("*")):
        found = _bridge_by(path) if path != own and path.suffix in SUFFIXES else None
        if found is None and "kuberouter" in path.name and path.suffix in SUFFIXES:
            raise KernelError(f"{path} cannot be read; trying again")
        if found is not None and found.bridge == KUBE_ROUTERS_BRIDGE:
            yield path, found


def _bridge_by(path: Path) -> PodsBridge | None:
    """The bridge that a file names; None if it names none, or cannot be read."""
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(LONGEST), type=_Configuration)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    bridge = next(filter(None, [found.bridge, *(plugin.bridge for plugin in found.plugins)]), "")
    return PodsBridge(bridge, found.name) if bridge and found.name else None
