"""A container of a pod on a node of the lab, run by crun: the image, and what the manifest says of the container."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kroute import __version__
from tests.lab.cluster import Node
from tests.lab.objects import Object
from tests.lab.oci import configuration
from tests.lab.places import PROJECT

PATIENCE = 600.0
"""Seconds for what a container is to say or do: only one that hangs takes so long."""
_LINKS = {name: PROJECT / ".lab" / link for name, link in (("kroute", "image"), ("kroute-bird", "bird"))}


class NoImageError(Exception):
    """The image's file system has not been built."""


def image(name: str = "kroute") -> Path:
    """The file system of an image that scripts/image has built from `deploy/Dockerfile`. Raises NoImageError."""
    root = _LINKS[name].resolve()
    if not root.is_dir():
        raise NoImageError(f"no file system of the image {name} in {root}: run scripts/setup test")
    return root


def package() -> Path:
    """The Debian package of this version, built from the image. Raises NoImageError."""
    path = PROJECT / ".lab" / f"kroute_{__version__}_amd64.deb"
    if not path.exists():
        raise NoImageError(f"no {path}: run scripts/setup test")
    return path


def image_configuration(name: str = "kroute") -> Mapping[str, Any]:
    """An image's own configuration (OCI): Env, User, Entrypoint, Labels …"""
    configured: Mapping[str, Any] = json.loads(_LINKS[name].with_suffix(".json").read_text())
    return configured


def image_environment(name: str) -> dict[str, str]:
    """The variables that an image sets."""
    return dict(it.split("=", 1) for it in image_configuration(name)["Env"])


def image_user() -> tuple[int, int]:
    """The user and group of the image's commands, if the pod names none."""
    user, group = image_configuration()["User"].split(":")
    return int(user), int(group)


@dataclass(frozen=True)
class Container:
    """How a container is run on `node`. `host_paths` maps paths of the machine to the node's own ones."""

    node: Node
    command: tuple[str, ...]
    environment: Mapping[str, str]
    capabilities: tuple[str, ...]
    security: Mapping[str, Any]
    volumes: tuple[Mapping[str, Any], ...]
    empty: tuple[str, ...] = field(default=())
    image: str = "kroute"

    @classmethod
    def of(
        cls,
        node: Node,
        pod: Object,
        container: Object,
        *,
        config: Mapping[str, str],
        service_account: Path | None = None,
    ) -> "Container":
        """The container of a pod's `spec`.

        `config` are the values of the ConfigMap for its environment. `service_account` is in its projected volume.
        """
        kinds = {it["name"]: it for it in pod.get("volumes", ())}
        security = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        assert security["capabilities"]["drop"] == ["ALL"]
        mounts = container.get("volumeMounts", ())
        volumes = [
            {
                "source": str(host_path(node, kinds[it["name"]]["hostPath"])),
                "target": it["mountPath"],
                "readOnly": it.get("readOnly", False),
            }
            for it in mounts
            if "hostPath" in kinds[it["name"]]
        ]
        assert pod["automountServiceAccountToken"] is False, "every container would have the token"
        name = container["image"].rpartition("/")[2].partition(":")[0]
        volumes += [
            {"source": str(service_account), "target": it["mountPath"], "readOnly": True}
            for it in mounts
            if "projected" in kinds[it["name"]] and service_account is not None
        ]
        return cls(
            node=node,
            command=(*container["command"], *container.get("args", ())),
            environment={**image_environment(name), **_environment(node, container, config)},
            capabilities=tuple(security["capabilities"].get("add", ())),
            security=security,
            volumes=tuple(volumes),
            empty=tuple(it["mountPath"] for it in mounts if {"emptyDir", "secret"} & kinds[it["name"]].keys()),
            image=name,
        )

    def with_command(self, *command: str) -> "Container":
        """The same container with another command, as `kubectl exec` runs it."""
        return replace(self, command=command)

    def without(self, capability: str) -> "Container":
        """The same container without one capability."""
        return replace(self, capabilities=tuple(name for name in self.capabilities if name != capability))

    def start(self, log: Path) -> "RunningContainer":
        """Start it. Its output goes to `log`."""
        bundle = log.with_suffix(".bundle")
        bundle.mkdir()
        described = configuration(
            command=self.command,
            environment=self.environment,
            capabilities=self.capabilities,
            security=self.security,
            volumes=self.volumes,
            in_memory=self.empty,
        )
        (bundle / "config.json").write_text(json.dumps(described))
        crun = [f"--root={bundle / 'crun'}", "--cgroup-manager=disabled"]
        with self.node.namespace.inside(), log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.lab.container_init", bundle, image(self.image)),
                    *(*crun, "run", f"--bundle={bundle}", bundle.name),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return RunningContainer(process, log, ["crun", *crun], bundle.name)

    async def run(self, log: Path) -> tuple[int, str]:
        """Run it to its end. Returns its exit code and its output."""
        running = self.start(log)
        return await running.wait(), running.output()


class RunningContainer:
    """A container that was started."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, crun: list[str], name: str) -> None:
        self._process = process
        self._log = log
        self._crun = crun
        self._name = name

    def output(self) -> str:
        """Its output so far."""
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    async def says(self, words: str) -> None:
        """Wait until its output contains `words`. Raises AssertionError if it ends before, or at a time-out."""
        deadline = time.monotonic() + PATIENCE
        while words not in self.output():
            assert self.running, f"it ended before it said {words!r}:\n{self.output()}"
            assert time.monotonic() < deadline, f"it does not say {words!r}:\n{self.output()}"
            await asyncio.sleep(0.05)

    async def execute(self, *command: str) -> tuple[int, str]:
        """Run a command in it, as `kubectl exec` does. Returns its exit code and its output."""
        done = await asyncio.to_thread(
            subprocess.run,
            [*self._crun, "exec", self._name, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        return done.returncode, done.stdout

    async def wait(self) -> int:
        """Wait for its end. Returns the exit code."""
        return await asyncio.to_thread(self._process.wait, PATIENCE)

    async def terminate(self) -> int:
        """Stop it by SIGTERM, as the kubelet does. Returns the exit code."""
        self._process.terminate()
        return await self.wait()

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self.running:
            subprocess.run([*self._crun, "delete", "--force", self._name], check=False, capture_output=True)
        self._process.wait()


def host_path(node: Node, volume: Mapping[str, str]) -> Path:
    """The path of a node's hostPath volume.

    Directories that nodes do not share, such as /run, exist once for each node.
    """
    path = Path(volume["path"])
    if path.is_relative_to("/run"):
        path = node.state_dir if path.name == "kroute" else node.state_dir.parent / path.name
    elif path == Path("/lib/modules"):
        path = (path / os.uname().release).resolve().parent  # in the lab's machine a link leads to the cache
    match volume.get("type", ""):
        case "DirectoryOrCreate":
            path.mkdir(exist_ok=True)
        case "FileOrCreate":
            path.touch()
    return path


def _environment(node: Node, container: Object, config: Mapping[str, str]) -> dict[str, str]:
    fields = {"spec.nodeName": node.name}
    taken: Iterable[Object] = container.get("env", ())
    explicit = {
        it["name"]: it["value"] if "value" in it else fields[it["valueFrom"]["fieldRef"]["fieldPath"]] for it in taken
    }
    return {**(config if container.get("envFrom") else {}), **explicit}
