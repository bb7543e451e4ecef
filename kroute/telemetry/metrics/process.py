"""This process's figures that are not in its statistics (proc(5)), as in Prometheus' client libraries."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from kroute.standard_error import dropped_lines

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STARTED = time.time()


class ProcessFigures(NamedTuple):
    """Bytes of mapped memory, open file descriptors, the Unix time of the start, and dropped log lines."""

    virtual_bytes: int
    open_descriptors: int
    started: float
    dropped_lines: int = 0


def process_figures() -> ProcessFigures:
    mapped_pages = int(Path("/proc/self/statm").read_text().split()[0])
    return ProcessFigures(
        mapped_pages * _PAGE, sum(1 for _ in Path("/proc/self/fd").iterdir()), _STARTED, dropped_lines()
    )
