"""Runs in a machine: systemd starts kroute.service as it is in `deploy`, with its restrictions, for a whole life.

systemd is process 1 of a process namespace, on a copy of the machine's root in memory, in the machine's network. kroute
is that of the image, with this project's code.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.lab.container import image
from tests.lab.places import PROJECT
from tests.machine.one_service import SERVICE, SLICE, answers, eventually, run, serve_pod

CAPABILITIES = {12: "CAP_NET_ADMIN", 13: "CAP_NET_RAW", 16: "CAP_SYS_MODULE"}
_START = """
mount --make-rprivate /
cd {root}
mount -t proc proc proc && mount --rbind /sys sys
mountpoint -q sys/fs/cgroup || mount -t cgroup2 cgroup sys/fs/cgroup
mount -t tmpfs run run && mount -t tmpfs tmp tmp && mount --rbind /dev dev && mount --rbind /lib/modules lib/modules
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    chroot . /lib/systemd/systemd --system --unit=lab.target --log-target=console --show-status=0
"""


class Systemd:
    """A systemd whose root is `root`, a copy of the machine's in memory."""

    def __init__(self) -> None:
        memory = Path(tempfile.mkdtemp(dir="/run"))
        self.root = memory / "root"
        for name in ("upper", "work", "root"):
            (memory / name).mkdir()
        options = f"lowerdir=/,upperdir={memory}/upper,workdir={memory}/work"
        assert run(f"mount -t overlay overlay -o {options} {self.root}")
        self._prepare()
        command = ["unshare", "--mount", "--pid", "--fork", "--ipc", "--uts", "--cgroup", "bash", "-ec"]
        self._unshare = subprocess.Popen([*command, _START.format(root=self.root)], stdin=subprocess.DEVNULL)
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        eventually("systemd is there", lambda: children.read_text() and b"systemd" in _command(children.read_text()))
        self.pid = int(children.read_text())

    def _prepare(self) -> None:
        program, etc = self.root / "opt/kroute", self.root / "etc"
        program.mkdir(parents=True, exist_ok=True)
        assert run(f"mount --bind {image()}/opt/kroute {program}")
        [package] = program.glob("lib/python3*/site-packages/kroute")
        assert run(f"mount --bind {PROJECT}/kroute {package}")
        (self.root / "usr/local/bin/kroute").unlink(missing_ok=True)
        (self.root / "usr/local/bin/kroute").symlink_to("/opt/kroute/bin/kroute")
        (etc / "kroute/manifests").mkdir(parents=True)
        for name, item in (("service", SERVICE), ("slice", SLICE)):
            (etc / f"kroute/manifests/{name}.json").write_text(json.dumps(item))
        settings = "manifests: /etc/kroute/manifests\nnode-name: node1\nlog-format: json\nresync-period: 2s\n"
        (etc / "kroute/kroute.yaml").write_text(settings)
        unit = (PROJECT / "deploy/kroute.service").read_text()
        (etc / "systemd/system/kroute.service").write_text(unit)
        once = re.sub(
            r"^ExecStart=.*$", "Type=oneshot\nExecStart=/usr/local/bin/kroute cleanup", unit, flags=re.MULTILINE
        )
        (etc / "systemd/system/cleanup.service").write_text(once.replace("Restart=always\n", ""))
        (etc / "systemd/system/lab.target").write_text("[Unit]\nWants=kroute.service\nAllowIsolate=yes\n")

    def ask(self, *command: str) -> str:
        """The output of a command beside this systemd."""
        inside = ["nsenter", "-t", str(self.pid), "-m", "-p", "-r", *command]
        return subprocess.run(inside, check=False, capture_output=True, text=True).stdout

    def property(self, name: str) -> str:
        return self.ask("systemctl", "show", "kroute", "-P", name).strip()

    def log(self) -> str:
        return self.ask("journalctl", "-u", "kroute", "-u", "cleanup", "-o", "cat", "--no-pager")

    def is_ready(self) -> bool:
        return (Path(f"/proc/{self.pid}/root/run/kroute/ready")).exists()

    def end(self) -> None:
        os.kill(self.pid, signal.SIGRTMIN + 3)  # systemd(1): halt
        self._unshare.wait(60)


def _command(pid: str) -> bytes:
    return Path(f"/proc/{pid.strip()}/cmdline").read_bytes().split(b"\0")[0]


def status(systemd: Systemd) -> dict[str, str]:
    """/proc/PID/status of the agent."""
    text = systemd.ask("cat", f"/proc/{systemd.property('MainPID')}/status")
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def check_restrictions(systemd: Systemd) -> None:
    found = status(systemd)
    allowed = sum(1 << number for number in CAPABILITIES)
    assert int(found["CapBnd"], 16) == int(found["CapEff"], 16) == allowed, found
    assert found["NoNewPrivs"] == "1", found
    assert found["Seccomp"] == "2", "the kernel filters no system calls"
    assert int(found["Seccomp_filters"]) > 1, found
    agent = ("nsenter", "-t", systemd.property("MainPID"), "-m", "touch")
    systemd.ask(*agent, "/etc/kroute/written")
    assert not (systemd.root / "etc/kroute/written").exists(), "the system is not read-only"
    assert "LimitNOFILE=65536" in systemd.ask("systemctl", "show", "kroute", "-p", "LimitNOFILE")
    print("ok: capabilities, system calls, files are restricted", flush=True)


def main() -> None:
    serve_pod()
    systemd = Systemd()
    try:
        eventually("the agent is ready", systemd.is_ready)
        eventually("the Service answers", answers)
        check_restrictions(systemd)

        first = systemd.property("MainPID")
        assert run("ipvsadm -C")
        assert run("ip link delete kube-ipvs0")
        eventually("what was deleted is put back", answers)
        systemd.ask("systemctl", "restart", "kroute")
        assert systemd.property("MainPID") != first
        eventually("a second agent is ready", systemd.is_ready)
        assert answers()
        assert systemd.property("NRestarts") == "0", systemd.log()

        systemd.ask("systemctl", "stop", "kroute")
        assert systemd.property("Result") == "success", systemd.property("Result")
        time.sleep(1)
        assert answers(), "what was served stays served"
        systemd.ask("systemctl", "start", "cleanup")
        assert not run("ip link show kube-ipvs0")
        assert not answers()
        log = systemd.log()
        for refusal in ("Operation not permitted", "Permission denied", "Read-only file system", "Traceback"):
            assert refusal not in log, log
        print("ok: the whole life", flush=True)
    finally:
        print(systemd.log(), flush=True)
        systemd.end()


if __name__ == "__main__":
    main()
