"""Which kernel a measurement runs on, and whether it is one of a machine or emulated."""

import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def kernel_name(cpuinfo: Path = _CPUINFO) -> str:
    """`User Mode Linux, Linux 7.3.4`, or `native, Linux 6.12.1`: the kind of lab and the release."""
    kind = "User Mode Linux" if "User Mode Linux" in cpuinfo.read_text() else "native"
    return f"{kind}, Linux {platform.release()}"
