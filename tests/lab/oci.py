"""What a container runtime is told (config.json of the OCI runtime specification) for a container of a pod.

It is what containerd and CRI-O make of the kubelet's request for a pod in the host's network: namespaces, mounts,
masked and read-only paths, capabilities, and the seccomp profile of the runtime (`RuntimeDefault`: that of CRI-O and
podman, from Debian's package golang-github-containers-common). The lab's kernels have no cgroup controllers and no
SELinux, so limits of memory and labels are left out.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

SECCOMP_PROFILE = Path("/usr/share/containers/seccomp.json")
_ARCHITECTURE = "amd64"
_MASKED = [
    *(f"/proc/{it}" for it in ("acpi", "asound", "kcore", "keys", "latency_stats", "timer_list", "scsi")),
    "/sys/firmware",
]
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
_NODEV = ("nosuid", "noexec", "nodev")
_MOUNTS = [
    {"destination": "/proc", "type": "proc", "source": "proc", "options": list(_NODEV)},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755"]},
    {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": [*_NODEV, "mode=1777", "size=65536k"]},
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*_NODEV, "ro"]},
]


def configuration(
    *,
    command: Iterable[str],
    environment: Mapping[str, str],
    capabilities: Iterable[str],
    security: Mapping[str, Any],
    volumes: Iterable[Mapping[str, Any]],
    in_memory: Iterable[str],
) -> dict[str, Any]:
    """config.json.

    `security` is the container's securityContext over its pod's. Each of `volumes` has source, target and readOnly.
    """
    granted = [f"CAP_{name}" for name in capabilities]
    linux: dict[str, Any] = {
        "namespaces": [{"type": kind} for kind in ("pid", "ipc", "mount")],
        "maskedPaths": _MASKED,
        "readonlyPaths": _READ_ONLY,
    }
    if security.get("seccompProfile", {}).get("type") == "RuntimeDefault":
        linux["seccomp"] = seccomp(granted)
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": security["runAsUser"], "gid": security["runAsGroup"]},
            "args": list(command),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "permitted", "effective"), granted),
            "noNewPrivileges": not security["allowPrivilegeEscalation"],
        },
        "root": {"path": "root", "readonly": security["readOnlyRootFilesystem"]},
        "mounts": [*_MOUNTS, *_mounts(volumes, in_memory)],
        "linux": linux,
    }


def seccomp(granted: Iterable[str]) -> dict[str, Any]:
    """The runtime's default profile for these capabilities (CAP_…)."""
    profile = json.loads(SECCOMP_PROFILE.read_text())
    held = set(granted)
    [machine] = [it for it in profile["archMap"] if it["architecture"] == "SCMP_ARCH_X86_64"]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [machine["architecture"], *machine["subArchitectures"]],
        "syscalls": [
            {name: rule[name] for name in ("names", "action", "args", "errnoRet") if rule.get(name) not in (None, [])}
            for rule in profile["syscalls"]
            if _applies(rule, held)
        ],
    }


def _applies(rule: Mapping[str, Any], held: set[str]) -> bool:
    includes, excludes = rule.get("includes", {}), rule.get("excludes", {})
    return (
        set(includes.get("caps", ())) <= held
        and not held & set(excludes.get("caps", ()))
        and _ARCHITECTURE in includes.get("arches", [_ARCHITECTURE])
        and _ARCHITECTURE not in excludes.get("arches", ())
    )


def _mounts(volumes: Iterable[Mapping[str, Any]], in_memory: Iterable[str]) -> Iterator[dict[str, Any]]:
    for target in in_memory:
        yield {"destination": target, "type": "tmpfs", "source": "tmpfs", "options": ["rw", "nosuid", "nodev"]}
    for volume in volumes:
        yield {
            "destination": volume["target"],
            "type": "bind",
            "source": volume["source"],
            "options": ["rbind", "rprivate", "ro" if volume["readOnly"] else "rw"],
        }
