"""How much of a processor a process and all below it have used: for a lab machine, its kernel and its processes alike.

The machine's own accounts count in ticks of 10 ms, which miss whatever begins and ends between two of them. Each of its
processes, and its kernel, is a process of the host, which counts in nanoseconds.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_NANOSECOND = 1e-9
_TICK = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(root: int) -> float:
    """Seconds on a processor, of this process and of all below it. Those that have ended count in ticks of 10 ms."""
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
                continue  # it has ended meanwhile


def _time_of(pid: int, fields: list[str]) -> float:
    ended = (int(fields[13]) + int(fields[14])) * _TICK  # cutime and cstime: of children that it has waited for
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended meanwhile
    return total * _NANOSECOND + ended
