"""`python -m tests.arm64 [OPTION...]`: run pytest for arm64, in emulation of the processor (scripts/emulated)."""

import os
import sys

from tests.arm64.debian import WHEELS, root
from tests.lab.places import PROJECT

FOLDERS = ("kernel", "model", "settings")
"""Of tests/unit: what the kernel and Kubernetes are told, and what is read of them."""

NOT_THERE = {
    "kernel/iptables/test_xtables.py::test_a_table_that_iptables_nft_has_not_made_is_not_used": (
        "asks a kernel by NETLINK_NETFILTER, which qemu-user has not"
    ),
    "kernel/netlink/test_socket_diag.py": "asks a kernel by NETLINK_SOCK_DIAG, which qemu-user has not",
    "kernel/test_node_kernel.py": "asks a kernel by NETLINK_NETFILTER, which qemu-user has not",
}
"""Tests in these folders that do not run in emulation, and why."""


def main() -> None:
    python = ("env", f"PYTHONPATH=/{WHEELS}", "PYTHONDONTWRITEBYTECODE=1", "python3", "-m", "pytest")
    options = ["-n", "auto", "--dist", "worksteal", "-p", "no:cacheprovider", "--hypothesis-profile", "quick"]
    options += ["-o", "testpaths=" + " ".join(f"tests/unit/{folder}" for folder in FOLDERS)]
    options += [f"--deselect=tests/unit/{name}" for name in NOT_THERE]
    emulated = PROJECT / "scripts/emulated"
    os.execv(emulated, [str(emulated), "--root", str(root()), *python, *options, *sys.argv[1:]])


if __name__ == "__main__":
    main()
