"""Everything that a process asks the kernel to change, by strace: a witness beside kroute's own counters.

    agent = await node.kroute("run", ..., fork=False, under=traced(trace))
    assert not writes(trace)

A request to the kernel counts as a read only if it is known as one; any other is a write.
"""

import os
import re
import signal
from pathlib import Path

_CALLS = "sendto,sendmsg,sendmmsg,setsockopt,ioctl,openat,open,creat,execve,init_module,finit_module,delete_module"
_MESSAGE = re.compile(r'nlmsg_type=([^,]+), nlmsg_flags=[^,]+, [^}]*\}(?:, (?:\{nfgen_family=[^}]*\}|"((?:\\x..)*)))?')
_NAMED_READS = re.compile(
    r"0|RTM_GET\w+|nlctrl|SOCK_DIAG_BY_FAMILY|NFNL_SUBSYS_\w+<<8\|(?:NFT_MSG_GET(?!OBJ_RESET)\w+|IPCTNL_MSG_(?:CT|EXP)_GET(?!_CTRZERO)\w*)"
)
_NAMED_IPSET_READS = re.compile(r"NFNL_SUBSYS_IPSET<<8\|IPSET_CMD_(?:PROTOCOL|LIST|SAVE|TEST|HEADER|TYPE|GET_BY\w+)")
_NFT_READS = {1, 4, 7, 10, 13, 16, 19, 23}
"""NFT_MSG_GET… of linux/netfilter/nf_tables.h: table, chain, rule, set, element, generation, object, flowtable."""
_IPSET_READS = {1, 7, 8, 11, 12, 13, 14, 15}
"""IPSET_CMD_PROTOCOL, LIST, SAVE, TEST, HEADER, TYPE, GET_BYNAME, GET_BYINDEX of linux/netfilter/ipset/ip_set.h."""
_CONNTRACK_READS = {1, 4, 5, 6, 7}
"""IPCTNL_MSG_CT_GET… of linux/netfilter/nfnetlink_conntrack.h, without the one that resets counters."""
_IPVS_READS = {4, 8, 11, 13, 15}
"""IPVS_CMD_GET_… of linux/ip_vs.h."""
_SUBSYSTEMS = {1: _CONNTRACK_READS, 6: _IPSET_READS, 10: _NFT_READS}
_WRITING_OPTIONS = re.compile(r"SOL_IP, (?:IPT_SO_SET|IP_VS_SO_SET|0x4[0-9a-f])|SOL_IPV6, IP6T_SO_SET|SOL_RAW")


def traced(trace: Path) -> tuple[str, ...]:
    """The words that start a program so that its calls are written to the file `trace`."""
    return ("strace", "-D", "-f", "-yy", "-v", "-xx", "-s", "4096", "-o", str(trace), "-e", f"trace={_CALLS}")


def stop_tracing(pid: int) -> None:
    """Let a traced process go on alone, at its usual speed."""
    status = Path(f"/proc/{pid}/status").read_text()
    if tracer := int(status.partition("TracerPid:")[2].split()[0]):
        os.kill(tracer, signal.SIGTERM)


def writes(trace: Path) -> list[str]:
    """The calls that asked for a change, with what is known of it. Raises AssertionError if nothing was traced."""
    lines = trace.read_text(errors="replace").splitlines()
    assert any("nlmsg_type" in line for line in lines), "no netlink message was traced"
    return [f"{why}: {line[:2000]}" for line in lines if (why := _change(line))]


def reads(trace: Path) -> int:
    """How many netlink messages were traced that are no writes."""
    text = trace.read_text(errors="replace")
    return sum(not _is_write(*match.groups()) for match in _MESSAGE.finditer(text))


def _change(line: str) -> str:
    """What a call changes; "" if nothing."""
    call = line.partition("(")[0].split()[-1] if "(" in line else ""
    if call.startswith("send"):
        kinds = [kind for kind, payload in _MESSAGE.findall(line) if _is_write(kind, payload)]
        if "NETLINK" in line.partition(",")[0] and "nlmsg_type" not in line:
            kinds = ["a message that strace does not read"]
        return f"netlink {', '.join(kinds)}" if kinds else ""
    if call == "setsockopt":
        return "socket option" if _WRITING_OPTIONS.search(line) else ""
    if call == "ioctl":
        return "ioctl" if "SIOCS" in line or "TUNSET" in line else ""
    if call in {"openat", "open", "creat"}:
        path = re.search(r'"((?:\\x..)*|[^"]*)"', line)
        name = _text(path[1]) if path else ""
        is_kernels = name.startswith(("/proc/sys/", "/sys/")) and "ENOENT" not in line
        return f"file {name}" if is_kernels and re.search("O_WRONLY|O_RDWR", line) else ""
    if call == "execve":
        path = re.search(r'"((?:\\x..)*|[^"]*)"', line)
        name = _text(path[1]) if path else ""
        return "" if Path(name).name.startswith("python") or "ENOENT" in line else f"program {name}"
    return call if call.endswith("_module") else ""


def _is_write(kind: str, payload: str | None) -> bool:
    kind = kind.partition(" ")[0]
    if _NAMED_READS.fullmatch(kind) or _NAMED_IPSET_READS.fullmatch(kind):
        return False
    command = int(payload[2:4], 16) if payload else 0
    if kind.startswith("0x"):
        number = int(kind, 16)
        if number >= 0x100:
            return number & 0xFF not in _SUBSYSTEMS.get(number >> 8, set())
        return command not in _IPVS_READS
    if match := re.fullmatch(r"NFNL_SUBSYS_IPSET<<8\|(0x[0-9a-f]+|\d+)", kind):
        return int(match[1], 0) not in _IPSET_READS
    return command not in _IPVS_READS if kind == "IPVS" else True


def _text(escaped: str) -> str:
    return bytes.fromhex(escaped.replace("\\x", "")).decode(errors="replace") if "\\x" in escaped else escaped
