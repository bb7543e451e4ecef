"""The configuration of CNI plugins, by which a container runtime gives pods their network.

Of all files in its directory, a runtime reads the one whose name comes first. It watches the directory.
"""

from contextlib import suppress
from pathlib import Path

from kroute.kernel.errors import KernelError

SUFFIXES = frozenset({".conf", ".conflist", ".json"})
"""Those of the files that a runtime reads (libcni, ConfFiles)."""
PLUGIN_DIRECTORIES = (Path("/opt/cni/bin"), Path("/usr/lib/cni"), Path("/usr/libexec/cni"))
"""Where runtimes look for plugins: that of kubeadm and most distributions, Debian's, Fedora's."""
LONGEST = 64 << 10
"""Bytes that are read."""


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
