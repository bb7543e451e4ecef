"""A cluster for `kubectl kroute`: the stand-in API server, agents that really listen, and the real kubectl."""

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kroute.inspect import agent_socket
from kroute.kernel.ipvs.objects import RealServerState, VirtualServerOptions, VirtualServerState
from kroute.model.objects import Applied, KubernetesObject
from kroute.model.plan import NodePlan
from kroute.reconcile.broadcaster import Broadcaster
from tests.apiserver.pods import EXEC
from tests.apiserver.server import ApiServer
from tests.builders import LISTED, endpoint, endpoint_slice, node, service
from tests.unit.load_balancer import LOCALHOST, ask_soon
from tests.unit.observed import Observed

WEB = (service(), endpoint_slice("web", endpoint("10.244.1.5"), endpoint("10.244.2.5")))
BEHIND = (service(), endpoint_slice("web", endpoint("10.244.1.5")))
"""The same objects, as an agent has them that has missed the last change."""


class Cluster:
    """Nodes with agents, and pods of the API server that lead to them. `options` are those of `kubectl kroute`."""

    def __init__(self, api: ApiServer, directory: Path, stack: AsyncExitStack) -> None:
        self.api = api
        self.options = ["--kubeconfig", str(api.kubeconfig(directory / "kubeconfig")), "--timeout", "120s"]
        self._directory = directory
        self._stack = stack

    async def node(
        self, name: str, *objects: KubernetesObject, port_is_open: bool = False, is_running: bool = True
    ) -> Observed:
        """Add a node whose agent has these objects, and everything that it plans in its kernel."""
        agent = Observed(node_name=name)
        agent.catalog.take([*map(Applied, (node(name=name), *(objects or WEB))), *LISTED])
        agent.broadcaster.publish(agent.catalog.plan_marked())
        for queue in agent.broadcaster._subscriptions:
            queue.take()
        agent.kernel.table = _table(agent.broadcaster)
        state_dir = self._directory / name
        state_dir.mkdir()
        if is_running:
            await self._stack.enter_async_context(agent.running())
            await self._stack.enter_async_context(agent_socket.serve(state_dir, agent.observation.answers))
            await ask_soon(agent.metrics_port)
        bound = f"{'0.0.0.0' if port_is_open else LOCALHOST}:{agent.metrics_port}"
        self.api.apply(pod(name, self._programs(name, state_dir), bound))
        return agent

    def _programs(self, name: str, state_dir: Path) -> Path:
        """Make the directory with the program `kroute` of a container on this node."""
        programs = self._directory / f"{name}-bin"
        programs.mkdir()
        program = programs / "kroute"
        root = Path(__file__).parents[4]
        program.write_text(f'#!/bin/sh\ncd {root}; exec {sys.executable} -m kroute "$@" --state-dir {state_dir}\n')
        program.chmod(0o755)
        return programs


def pod(node_name: str, programs: Path, bound: str) -> dict[str, object]:
    """The pod of a node's agent, with the labels and the container of deploy/kustomize/base."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"kroute-{node_name}",
            "namespace": "kube-system",
            "labels": {"app.kubernetes.io/name": "kroute"},
            "annotations": {EXEC: str(programs)},
        },
        "spec": {
            "nodeName": node_name,
            "containers": [
                {
                    "name": "kroute",
                    "image": "kroute",
                    "command": ["kroute", "run"],
                    "env": [{"name": "KROUTE_METRICS_BIND_ADDRESS", "value": bound}],
                }
            ],
        },
        "status": {"phase": "Running", "podIP": LOCALHOST},
    }


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    async with ApiServer() as api, AsyncExitStack() as stack:
        yield Cluster(api, directory, stack)


def _table(broadcaster: Broadcaster) -> dict[tuple[int, str, int], VirtualServerState]:
    plans = [plan for plan in broadcaster.plans if not isinstance(plan, NodePlan)]
    return {
        server.key: VirtualServerState(
            VirtualServerOptions(server.scheduler),
            {(it.address, it.port): RealServerState(1) for it in server.real_servers},
        )
        for plan in plans
        for server in plan.virtual_servers
    }
