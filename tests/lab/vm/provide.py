"""`python -m tests.lab.vm.provide KERNEL`: have this kernel of the lab, made here if it is not there yet.

Several runs may ask at once: one makes the kernel, the others wait for it. `--missing quickest|newest|every` prints the
recipes of those to be made, so that one of them can be used at once, or the newest, or all.
Imports nothing but the standard library, as the set-up needs that.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.vm import debian_packages
from tests.lab.vm.debian_packages import PackageError
from tests.lab.vm.kernels import KERNELS, RECIPE, Kernel, usable, wanted

UNREAD = (
    *("drivers/gpu", "drivers/infiniband", "drivers/media", "drivers/staging", "drivers/scsi", "sound"),
    *("tools/testing", "drivers/net/ethernet", "drivers/net/wireless", "Documentation"),
)
"""Parts of the kernel's source, a third of it, of which only the configuration files are unpacked."""


def provide(kernel: Kernel) -> None:
    """Make `kernel`, unless it is there.

    Raises:
        PackageError: nothing that it could be made from can be had.
        subprocess.CalledProcessError: it could not be built; the command's output says why.
    """
    place = kernel.directory
    place.parent.mkdir(parents=True, exist_ok=True)
    with _alone(place.with_name(f"{place.name}.lock")):
        if kernel.is_there:
            return
        with tempfile.TemporaryDirectory(prefix=f"{kernel.recipe}-unfinished-", dir=place.parent) as name:
            work = Path(name)
            made = work / "made"
            made.mkdir()
            _MAKERS[kernel.recipe](_package(kernel, work), work, made)
            _compile_preloaded(made / kernel.preloaded.name)
            shutil.rmtree(place, ignore_errors=True)
            made.rename(place)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _package(kernel: Kernel, work: Path) -> Path:
    """Download the first package of RECIPE/suites that is available."""
    rows = [line.split() for line in (RECIPE / "suites").read_text().splitlines() if not line.startswith("#")]
    refusals = []
    for _, suite, package in (row for row in rows if row[0] == kernel.recipe):
        print(f"{package} of {suite}", flush=True)
        try:
            return debian_packages.download(suite, package, Path(tempfile.mkdtemp(dir=work)))
        except PackageError as error:
            print(error, flush=True)
            refusals.append(f"{package} of {suite}")
    raise PackageError(f"no package for the lab's {kernel.recipe} kernel can be had: tried {', '.join(refusals)}")


def _unpack(package: Path, work: Path, made: Path) -> None:
    """Unpack Debian's kernel and its modules from the package."""
    tree = work / "tree"
    _run("dpkg-deb", "--extract", package, tree)
    (tree / "usr/bin/linux.uml").rename(made / "linux")
    (tree / "usr/lib/uml/modules").rename(made / "modules")


def _build(package: Path, work: Path, made: Path) -> None:
    """Configure and compile the kernel, and list the built-in modules where kmod looks for them."""
    source, build = work / "source", work / "build"
    source.mkdir()
    build.mkdir()
    _run("dpkg-deb", "--extract", package, work / "tree")
    [archive] = (work / "tree/usr/src").glob("linux-source-*.tar.xz")
    unread = [f"--exclude=*/{part}/*.{ending}" for part in UNREAD for ending in ("[ch]", "rst", "yaml", "json")]
    _run("tar", "-xJf", archive, "-C", source, "--strip-components=1", *unread)
    make = ("make", "-s", "-C", source, "ARCH=um", f"O={build}")
    _run(*make, "allnoconfig")
    _run(source / "scripts/kconfig/merge_config.sh", "-m", "-O", build, build / ".config", RECIPE / "options")
    _run(*make, "olddefconfig")
    _say_what_is_unknown((build / ".config").read_text())
    _run(*make, f"-j{len(os.sched_getaffinity(0))}", "linux")
    release = subprocess.run([*make, "kernelrelease"], capture_output=True, text=True, check=True).stdout.strip()
    modules = made / "modules" / release
    modules.mkdir(parents=True)
    for name in ("modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(build / name, modules)
    (modules / "modules.order").touch()
    _run("depmod", "--basedir", _as_root(work, made), release)
    _run("strip", "-o", made / "linux", build / "linux")
    shutil.copy(build / ".config", made / "config")


def _as_root(work: Path, made: Path) -> Path:
    """Return a directory in which depmod finds the modules in the expected place, lib/modules."""
    root = work / "root"
    (root / "lib").mkdir(parents=True)
    (root / "lib/modules").symlink_to(made / "modules")
    return root


def _say_what_is_unknown(configuration: str) -> None:
    """Print the options that this version of the source does not have."""
    taken = set(configuration.splitlines())
    options = (line for line in (RECIPE / "options").read_text().splitlines() if line.startswith("CONFIG_"))
    for option in options:
        if option not in taken:
            print(f"this source has no {option}", flush=True)


def _compile_preloaded(library: Path) -> None:
    _run("cc", "-O2", "-shared", "-fPIC", "-o", library, RECIPE / "xsave_area.c")


def _run(*argv: str | Path) -> None:
    subprocess.run(argv, check=True)


_MAKERS: dict[str, Callable[[Path, Path, Path], None]] = {"built": _build, "packaged": _unpack}


def missing(which: str) -> list[Kernel]:
    """Return the kernels to be made, so that any wanted one exists (`quickest`), the `newest`, or `every` one."""
    kernels = wanted()
    match which:
        case "quickest":
            kernels = usable()[:1]
        case "newest":
            kernels = kernels[:1]
        case "every":
            pass
    return list({kernel.directory: kernel for kernel in kernels if not kernel.is_there}.values())


def main(arguments: list[str]) -> int:
    """Run the command line that the module's docstring describes."""
    match arguments:
        case ["--missing", "quickest" | "newest" | "every" as which]:
            print(*(kernel.recipe for kernel in missing(which)))
            return 0
        case [name] if name in KERNELS:
            pass
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    try:
        provide(KERNELS[name])
    except (PackageError, subprocess.CalledProcessError, OSError) as error:
        print(f"the lab's {name} kernel could not be made: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
