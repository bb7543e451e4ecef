"""Runs in a machine whose kernel has modules: an agent serves a Service, and this takes the kernel's modules away.

It ends with 0 if the agent has put everything back each time, has said why it could not, and has never ended.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.machine.one_service import SERVICE, SLICE, WITHIN, answers, eventually, run, serve_pod

IN_USE = ("ip_vs_rr", "ip_vs", "xt_set", "ip_set", "iptable_nat", "nf_conntrack")
XTABLES_LOCK = Path("/run/xtables.lock")
"""Who changes the tables of iptables holds it."""
RULES = [
    f"{tool} -t {table}" for tool in ("iptables-legacy", "ip6tables-legacy") for table in ("nat", "filter", "mangle")
]
ALL = (
    *("xt_ipvs", "xt_set", "xt_MASQUERADE", "xt_conntrack", "ip_vs_sh", "ip_vs_rr", "ip_vs"),
    *("iptable_nat", "iptable_filter", "iptable_mangle", "ip6table_nat", "ip6table_filter", "ip6table_mangle"),
    *("ip_set_hash_ipport", "ip_set_hash_ipportip", "ip_set_hash_ipportnet", "ip_set_hash_ip", "ip_set_hash_net"),
    "dummy",
)


def loaded(module: str) -> bool:
    return Path("/sys/module", module).exists()


def in_use(module: str) -> bool:
    return loaded(module) and int(Path("/sys/module", module, "refcnt").read_text()) > 0


class Agent:
    """kroute on this machine; `said` returns the events that it has logged since the last call."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "log"
        self._read = 0
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.write(SERVICE)
        (self.manifests / "slice.json").write_text(json.dumps(SLICE))
        command = [sys.executable, "-m", "kroute", "run", "--manifests", str(self.manifests), "--node-name", "node1"]
        command += ["--state-dir", str(directory / "state"), "--resync-period", "2s", "--log-format", "json"]
        self.process = subprocess.Popen(command, stderr=self._log.open("wb"))
        eventually("the agent is ready", lambda: self._is_running() and (directory / "state/ready").exists())

    def write(self, service: object) -> None:
        (self.manifests / "service.json").write_text(json.dumps(service))

    def said(self) -> list[str]:
        assert self._is_running()
        text = self._log.read_text()
        assert "Traceback" not in text, text
        text = text[: text.rfind("\n") + 1]  # the last line may be half written
        lines, self._read = text[self._read :], len(text)
        print(lines, flush=True)
        return [json.loads(line)["event"] for line in lines.splitlines()]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the agent from loading a module again before all that hold each other are removed.

        It is stopped while it does not hold the lock of the firewall: `iptables` would wait for that for ever.
        """
        with XTABLES_LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.process.send_signal(signal.SIGSTOP)
            eventually("the agent is stopped", self._is_stopped)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _is_running(self) -> bool:
        assert self.process.poll() is None, f"the agent has ended:\n{self._log.read_text()}"
        return True

    def _is_stopped(self) -> bool:
        _, _, fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")
        return fields.split()[0] == "T"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WITHIN) == 0


def take_all_away(agent: Agent) -> None:
    """Remove everything that holds the modules, and the modules, until ip_vs is gone."""

    def are_removed() -> bool:
        for command in [f"{rules} -F" for rules in RULES] + ["ipset flush", "ipset destroy", "ipvsadm -C"]:
            run(command)
        return "ip_vs" in [module for module in ALL if run(f"rmmod {module}")]

    with agent.paused():
        eventually("ip_vs is removed", are_removed)


def check_that_it_complains(agent: Agent) -> None:
    """Without its modules the agent says that it failed, and says so seldom, however long that lasts."""
    said: list[str] = []

    def has_failed() -> bool:
        said.extend(agent.said())
        return "controller.failed" in said

    began = time.monotonic()
    take_all_away(agent)
    eventually("a controller has failed", has_failed)
    time.sleep(10)
    said += agent.said()
    lines = [event for event in said if event != "repair"]
    assert len(lines) < 10 + time.monotonic() - began, "a flood of lines"


def main() -> None:
    directory = Path(tempfile.mkdtemp(dir="/run"))
    serve_pod()
    os.chdir(directory)

    agent = Agent(directory)
    eventually("the Service answers", answers)
    agent.said()

    eventually("everything is in use", lambda: all(in_use(module) for module in IN_USE))
    assert not any(run(f"rmmod {module}") for module in IN_USE)
    print("ok: what is in use is not removed", flush=True)

    assert run("modprobe ip_vs_sh")
    assert run("rmmod ip_vs_sh")
    annotated = {**SERVICE["metadata"], "annotations": {"kube-router.io/service.scheduler": "sh"}}  # type: ignore[dict-item]
    agent.write({**SERVICE, "metadata": annotated})
    eventually("a removed scheduler is loaded for who wants it", lambda: loaded("ip_vs_sh"))
    agent.said()

    assert run("rmmod dummy")
    eventually("the VIPs' link is back", lambda: loaded("dummy") and run("ip link show kube-ipvs0") and answers())
    eventually("the agent has told of it", lambda: "repair" in agent.said())

    take_all_away(agent)
    eventually("the Service answers again", answers)
    eventually("sysctls are set again", lambda: Path("/proc/sys/net/ipv4/vs/conntrack").read_text() == "1\n")
    agent.said()

    assert run("mount -t tmpfs nothing /lib/modules")
    check_that_it_complains(agent)
    assert run("umount /lib/modules")
    eventually("the Service answers when modules can be loaded again", answers)
    agent.said()
    agent.stop()


if __name__ == "__main__":
    main()
