"""The host of a measurement: its kernel, and how much processor time a process and all its descendants have used.

Applied to a lab machine, this covers its kernel and its processes. The machine's own accounting is in ticks of 10 ms,
and misses whatever begins and ends within a tick. Each of the machine's processes, and its kernel, is a process of the
host, which counts in nanoseconds.
"""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

_NANOSECOND = 1e-9
_TICK = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(root: int) -> float:
    """Seconds of processor time of this process and its descendants. Ended processes count in ticks of 10 ms."""
    stats = dict(_stats())
    parents = {pid: int(fields[1]) for pid, fields in stats.items()}
    return sum(_time_of(pid, stats[pid]) for pid in stats if _is_below(pid, root, parents))


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid == root:
            return True
        pid = parents.get(pid, 0)
    return False


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Every process with the fields of its `stat` from the third on (proc(5))."""
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            try:
                yield int(directory.name), (directory / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process has ended


def _time_of(pid: int, fields: list[str]) -> float:
    ended = (int(fields[13]) + int(fields[14])) * _TICK  # cutime and cstime: of children that it has waited for
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass  # the process has ended
    return total * _NANOSECOND + ended


_CPUINFO = Path("/proc/cpuinfo")


def kernel_name(cpuinfo: Path = _CPUINFO) -> str:
    """`User Mode Linux, Linux 7.3.4`, or `native, Linux 6.12.1`: the kind of lab and the release."""
    kind = "User Mode Linux" if "User Mode Linux" in cpuinfo.read_text() else "native"
    return f"{kind}, Linux {platform.release()}"
