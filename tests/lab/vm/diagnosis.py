"""Find out from its console why a machine did not come up, or ended, and what to do."""

import re
from typing import NamedTuple


class Cause(NamedTuple):
    """A line that may be on the console, what it means, and what to do. `{0}` is the first group of the pattern."""

    pattern: str
    meaning: str
    advice: str


CAUSES = (
    Cause(
        r"ptrace set fp regs failed",
        "this processor's XSAVE area is larger than this kernel knows (AMX), and the library that helps is not there",
        "use the built kernel (KROUTE_KERNEL=built), or install a C compiler and run scripts/setup lab again",
    ),
    Cause(
        r"(?:check_ptrace|PTRACE_\w+|ptrace)\b.*(?:failed|errno = (?:1|13)\b|not permitted)",
        "this host does not let one process trace another (ptrace)",
        "in a container, add the capability SYS_PTRACE and a seccomp profile that allows ptrace; "
        "sysctl kernel.yama.ptrace_scope has to be below 3",
    ),
    Cause(
        r"No space left on device|unable to truncate|Failed to write .* bytes|expand_mem.*failed|signal 7\b|Bus error",
        "there is no room left for the machine's memory",
        "make room in /dev/shm, or name another place in KROUTE_CACHE",
    ),
    Cause(
        r"checking PROT_EXEC mmap .*not permitted|noexec",
        "the machine's memory lies on a file system without execution",
        "mount /dev/shm without noexec",
    ),
    Cause(r"Waiting for root device", "the machine's root file system is not there", "check rootfstype=hostfs"),
    Cause(r"Requested init (\S+) failed", "the machine cannot start its first process, {0}", "is the file executable?"),
    Cause(r"Attempted to kill init", "the machine's first process ended", "the lines before say why"),
    Cause(
        r"Out of memory",
        "the machine ran out of memory",
        "run fewer tests in it, or raise MEMORY_MIB in tests/lab/vm/machine.py",
    ),
    Cause(r"Kernel panic - not syncing: (.*)", "the machine's kernel panicked: {0}", "the lines before say where"),
)
"""The most specific cause first."""


def likely_cause(console: str) -> str:
    """Return in one line what the console's text means and what to do, or "" if no cause is known."""
    for cause in CAUSES:
        if found := re.search(cause.pattern, console, re.IGNORECASE):
            return f"{cause.meaning.format(*found.groups())} ({cause.advice.format(*found.groups())})"
    return ""
