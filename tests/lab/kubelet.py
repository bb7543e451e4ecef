"""A stand-in for what makes pods of manifests: the controller of DaemonSets, and the kubelets of the lab's nodes."""

from collections.abc import Iterable
from pathlib import Path

from tests.lab.cluster import Node
from tests.lab.container import Container, RunningContainer
from tests.lab.deployment import eventually
from tests.lab.manifests import the
from tests.lab.objects import Object


class Kubelets:
    """The kubelets of some nodes. `service_account` is what they mount into containers that ask for it."""

    def __init__(self, nodes: Iterable[Node], scratch: Path, service_account: Path) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._scratch = scratch
        self._service_account = service_account
        self.running: dict[str, RunningContainer] = {}

    async def apply(self, objects: list[Object]) -> None:
        """Start the DaemonSet's pod on each node, after its init containers have ended well."""
        pod = the("DaemonSet", objects)["spec"]["template"]["spec"]
        config = the("ConfigMap", objects)["data"] if any("envFrom" in it for it in pod["containers"]) else {}
        for node in self._nodes.values():
            for described in pod.get("initContainers", ()):
                init = Container.of(node, pod, described, config=config, service_account=self._service_account)
                code, output = await init.run(self._log())
                assert code == 0, output
            [described] = pod["containers"]
            container = Container.of(node, pod, described, config=config, service_account=self._service_account)
            self.running[node.name] = container.start(self._log())
        self._probe = pod["containers"][0]["readinessProbe"]

    async def are_ready(self) -> None:
        """Return when the readiness probe of each pod succeeds: `kubectl rollout status`."""
        for name, running in self.running.items():
            await eventually(lambda name=name, running=running: self._is_ready(name, running), within=60)

    async def delete(self) -> None:
        """Stop every pod in order."""
        for running in self.running.values():
            assert await running.terminate() == 0, running.output()
        self.running.clear()

    def kill(self) -> None:
        """Kill what still runs."""
        for running in self.running.values():
            running.kill()

    async def _is_ready(self, name: str, running: RunningContainer) -> None:
        assert running.running, running.output()
        if "exec" in self._probe:
            code, output = await running.execute(*self._probe["exec"]["command"])
            assert code == 0, output
        else:
            asked, node = self._probe["httpGet"], self._nodes[name]
            assert await node.http_status(asked.get("host", node.ip), asked["port"], asked["path"]) == 200

    def _log(self) -> Path:
        return self._scratch / f"pod-{len(list(self._scratch.glob('pod-*.log')))}.log"
