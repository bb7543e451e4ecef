"""A stand-in for kube-apiserver: the resources, requests and failures that a service proxy meets.

    async with ApiServer() as api:
        api.apply({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "web", "namespace": "default"}, ...})
        Settings(node_name="node1", kubeconfig=api.kubeconfig(tmp_path / "kubeconfig"))

or, as a process, `python -m tests.apiserver --port 6443 DIRECTORY`. It is held against recordings of the real one.
"""

from tests.apiserver.faults import Faults
from tests.apiserver.server import ApiServer, Features

__all__ = ["ApiServer", "Faults", "Features"]
