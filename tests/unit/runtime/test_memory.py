"""Freed memory is returned to the system."""

import subprocess
import sys

import pytest

from kroute.runtime import memory

PROGRAM = """
import sys
from kroute.runtime import memory

def resident():
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024

{before}
large = b"x" * (30 << 20)
del large  # from here on glibc would serve blocks of up to 30 MiB from its heap
base = resident()
blocks = []
for _ in range(8):
    blocks.append(b"x" * (8 << 20))
    blocks.append(b"x" * 100_000)
blocks = [block for block in blocks if len(block) == 100_000]
{after}
print(resident() - base)
"""


LOOKS_AT_A_SOCKET = """
import resource
from kroute.runtime import memory

memory.return_large_blocks()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    block = b"x" * (256 << 10)
    block = None
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / 200)
"""


def growth(before: str = "", after: str = "") -> float:
    """Return how many MiB stay resident after 64 MiB were allocated and freed."""
    return measured(PROGRAM.format(before=before, after=after))


def measured(program: str) -> float:
    """Run the program and return the number that it prints."""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(shown.stdout)


class TestGlibc:
    """What glibc's heap would keep."""

    def test_left_to_itself_it_keeps_what_was_freed(self) -> None:
        assert growth() > 30

    def test_large_blocks_are_returned_when_they_are_freed(self) -> None:
        assert growth(before="memory.return_large_blocks()") < 5

    def test_what_each_look_at_a_socket_needs_is_used_again(self) -> None:
        assert measured(LOOKS_AT_A_SOCKET) < 2  # page faults

    def test_pages_that_hold_nothing_are_returned_on_demand(self) -> None:
        assert growth(after="memory.return_free_pages()") < 5


def test_another_c_library_need_not_have_these_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    memory.return_large_blocks()
    memory.return_free_pages()
