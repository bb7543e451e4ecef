"""Runs in a machine: kroute's whole life as a Debian package, whose unit systemd starts with its restrictions.

systemd is process 1 of a process namespace, on a copy of the machine's root in memory, in the machine's network. The
variable PACKAGES names two packages, the second of a newer version.
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.machine.one_service import NODE, SERVICE, SLICE, VIP, WITHIN, answers, eventually, run, serve_pod

UNITS = ("kroute", "kroute-director", "kroute-bird")
ROUTER = "192.168.9.9"
CAPABILITIES = {12: "CAP_NET_ADMIN", 13: "CAP_NET_RAW", 16: "CAP_SYS_MODULE"}
_NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node1"},
    "status": {"addresses": [{"type": "InternalIP", "address": NODE}]},
}
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
        etc, packages = self.root / "etc", self.root / "var/packages"
        (etc / "manifests").mkdir()
        for name, item in (("service", SERVICE), ("slice", SLICE), ("node", _NODE)):
            (etc / f"manifests/{name}.json").write_text(json.dumps(item))
        packages.mkdir()
        (self.root / "usr/sbin/policy-rc.d").unlink(missing_ok=True)  # images of containers forbid to restart anything
        for number, package in enumerate(os.environ["PACKAGES"].split(":"), start=1):
            shutil.copy(package, packages / f"{number}.deb")
        hasty = etc / "systemd/system/kroute.service.d/hasty.conf"
        hasty.parent.mkdir(parents=True)
        hasty.write_text("[Service]\nRestartSec=100ms\nExecStartPre=test -d /etc/manifests\n")
        (etc / "systemd/system/lab.target").write_text("[Unit]\nAllowIsolate=yes\n")

    def ask(self, *command: str) -> str:
        """The output of a command beside this systemd."""
        inside = ["nsenter", "-t", str(self.pid), "-m", "-p", "-r", *command]
        return subprocess.run(inside, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout

    def dpkg(self, *arguments: str) -> str:
        """What dpkg and the maintainer scripts print. Raises AssertionError if it fails."""
        said = self.ask("sh", "-c", f"dpkg {' '.join(arguments)} && echo done")
        assert said.endswith("done\n"), said
        return said

    def property(self, name: str, unit: str = "kroute") -> str:
        return self.ask("systemctl", "show", unit, "-P", name).strip()

    def log(self, unit: str = "kroute") -> str:
        return self.ask("journalctl", "-u", unit, "-o", "cat", "--no-pager")

    def announces(self) -> bool:
        """Whether BIRD has a session to keep up, and the VIP to announce in it."""
        birdc = "birdc", "-s", "/run/bird/bird.ctl", "show"
        return f"kroute-{ROUTER}" in self.ask(*birdc, "protocols") and VIP in self.ask(
            *birdc, "route", "table", "kroute4"
        )

    def is_ready(self) -> bool:
        return (Path(f"/proc/{self.pid}/root/run/kroute/ready")).exists()

    def end(self) -> None:
        os.kill(self.pid, signal.SIGRTMIN + 3)  # systemd(1): halt
        self._unshare.wait(WITHIN)


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
    inside = ("nsenter", "-t", systemd.property("MainPID"), "-m", "-r")
    for path in ("/etc/kroute/written", "/run/written"):
        said = systemd.ask(*inside, "touch", path)
        assert "Read-only file system" in said, f"{path} can be written: {said}"
    said = systemd.ask(*inside, "touch", "/run/kroute/written", "/run/xtables.lock")
    assert said == "", said
    systemd.ask(*inside, "rm", "/run/kroute/written")
    assert "LimitNOFILE=65536" in systemd.ask("systemctl", "show", "kroute", "-p", "LimitNOFILE")
    assert systemd.property("MemoryMax") == str(512 << 20)
    print("ok: capabilities, system calls, files are restricted", flush=True)


def check_installation(systemd: Systemd) -> None:
    systemd.dpkg("--install", "/var/packages/1.deb")
    assert systemd.ask("kroute", "--version").startswith("kroute, version ")
    for unit in UNITS:
        assert systemd.ask("systemctl", "is-enabled", unit) == "disabled\n"
        assert systemd.ask("systemctl", "is-active", unit) == "inactive\n"
    print("ok: it is installed, and does not run yet", flush=True)


def check_a_start_that_fails(systemd: Systemd) -> None:
    """What it needs is not there yet. When it comes, the agent starts by itself."""
    settings = "manifests: /etc/manifests\nnode-name: node1\nlog-format: json\nresync-period: 2s\n"
    settings += f"announce: true\nadvertise-cluster-ip: true\npeer-router-ips: {ROUTER}\npeer-router-asns: 65000\n"
    (systemd.root / "etc/kroute/kroute.yaml").write_text(settings)
    manifests = systemd.root / "etc/manifests"
    manifests.rename(systemd.root / "etc/away")
    systemd.ask("systemctl", "enable", "--now", "--no-block", "kroute")
    eventually("it is tried more often than systemd's limit", lambda: int(systemd.property("NRestarts") or 0) > 6)
    eventually("it is not given up", lambda: systemd.property("ActiveState") == "activating")
    (systemd.root / "etc/away").rename(manifests)
    eventually("the agent is ready", systemd.is_ready)
    eventually("the Service answers", answers)


def check_bird(systemd: Systemd) -> None:
    """Its unit waits for what kroute writes, and keeps BIRD to what it needs."""
    systemd.ask("systemctl", "enable", "--now", "kroute-bird")
    eventually("BIRD announces", systemd.announces)
    inside = ("nsenter", "-t", systemd.property("MainPID", "kroute-bird"), "-m", "-r", "touch")
    assert "Read-only file system" in systemd.ask(*inside, "/run/written")
    systemd.ask("systemctl", "restart", "kroute-bird")
    eventually("BIRD announces after a restart", systemd.announces)


def check_repair_and_restart(systemd: Systemd) -> None:
    first, attempts = systemd.property("MainPID"), systemd.property("NRestarts")
    assert run("ipvsadm -C")
    assert run("ip link delete kube-ipvs0")
    eventually("what was deleted is put back", answers)
    systemd.ask("systemctl", "restart", "kroute")
    assert systemd.property("MainPID") != first
    eventually("a second agent is ready", systemd.is_ready)
    assert answers()
    assert systemd.property("NRestarts") in {attempts, "0"}, systemd.log()


def check_upgrade(systemd: Systemd) -> None:
    """A package of a newer version restarts the agent, and keeps the settings and the open connections."""
    before, bird = systemd.property("MainPID"), systemd.property("MainPID", "kroute-bird")
    connection = http.client.HTTPConnection(VIP, 80, timeout=WITHIN)
    connection.request("GET", "/")
    assert connection.getresponse().read()
    socket = connection.sock
    systemd.dpkg("--install", "/var/packages/2.deb")
    eventually("the agent of the new package is ready", systemd.is_ready)
    assert systemd.property("MainPID") not in {before, "0"}
    assert systemd.property("MainPID", "kroute-bird") == bird != "0", "an upgrade of kroute touches no BIRD"
    assert "node1" in (systemd.root / "etc/kroute/kroute.yaml").read_text()
    connection.request("GET", "/")
    assert connection.getresponse().read()
    assert connection.sock is socket, "the connection was made anew"
    connection.close()
    print("ok: an upgrade keeps connections", flush=True)


def check_removal(systemd: Systemd, before: set[str]) -> None:
    """It leaves the data path and the settings; purge leaves nothing on the disk."""
    assert "kroute cleanup" in systemd.dpkg("--remove", "kroute")
    for unit in UNITS:
        assert systemd.ask("systemctl", "is-active", unit) == "inactive\n"
    assert not (systemd.root / "opt/kroute").exists()
    assert (systemd.root / "etc/kroute/kroute.yaml").exists()
    assert answers(), "what was served stays served"
    systemd.dpkg("--purge", "kroute")
    assert installed_files(systemd) == before
    print("ok: nothing is left", flush=True)


def installed_files(systemd: Systemd) -> set[str]:
    """What a package may leave on the system."""
    places = ("/usr/bin", "/usr/share/man", "/usr/share/doc", "/usr/lib/systemd", "/etc", "/opt", "/usr/share/fish")
    found = systemd.ask("find", *places, "-newer", "/var/packages", "-o", "-name", "*kroute*").split("\n")
    return {it for it in found if "kroute" in it}


def main() -> None:
    serve_pod()
    systemd = Systemd()
    try:
        before = installed_files(systemd)
        check_installation(systemd)
        check_a_start_that_fails(systemd)
        check_restrictions(systemd)
        check_bird(systemd)
        check_repair_and_restart(systemd)
        check_upgrade(systemd)
        systemd.ask("systemctl", "stop", "kroute")
        assert systemd.property("Result") == "success", systemd.property("Result")
        check_removal(systemd, before)
        log = systemd.log()
        for refusal in ("Operation not permitted", "Permission denied", "Read-only file system", "Traceback"):
            assert refusal not in log, log
        print("ok: the whole life", flush=True)
    finally:
        print(systemd.log(), systemd.log("kroute-bird"), flush=True)
        systemd.end()


if __name__ == "__main__":
    main()
