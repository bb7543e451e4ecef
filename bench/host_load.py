"""How much of a processor a process and all below it have used: for a lab machine, its kernel and its processes alike.

The machine's own accounts count in ticks of 10 ms, which miss whatever begins and ends between two of them. Each of its
processes, and its kernel, is a process of the host, which counts in nanoseconds.
"""

from pathlib import Path

_NANOSECOND = 1e-9


def cpu_seconds(root: int) -> float:
    """Seconds on a processor, of this process and of those below it that are alive."""
    parents = dict(_processes())
    return sum(_time_of(pid) for pid in parents if _is_below(pid, root, parents))


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid == root:
            return True
        pid = parents.get(pid, 0)
    return False


def _processes() -> list[tuple[int, int]]:
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            try:
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
            found.append((int(directory.name), int(fields[1])))
    return found


def _time_of(pid: int) -> float:
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended meanwhile
    return total * _NANOSECOND
