"""A stand-in for kube-apiserver: the resources, requests and failures that a service proxy meets.

    async with ApiServer() as api:
        api.apply({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "web", "namespace": "default"}, ...})
        Settings(node_name="node1", kubeconfig=api.kubeconfig(tmp_path / "kubeconfig"))

or, as a process, `python -m tests.apiserver --port 6443 DIRECTORY`.

It is as strict as the real one, and as lenient. `tests/unit/test_apiserver.py` sends it every request that was recorded
with kube-apiserver 1.36.2 (etcd 3.6, `recordings/`) and compares status, headers and body: lists, pages, selectors,
resourceVersions of every age, watches with bookmarks, streaming lists, errors from 400 to 504, gzip, the writes of
Leases and Events. What was not recorded follows the source of 1.36 (`validation`, `options`), and
`tests/unit/test_apiserver_refusals.py` holds it: names and lengths, options that exclude each other, selectors, times,
media types, immutable fields of Events.

Beyond metadata it validates only what kroute writes, Events and Leases: a Service or an EndpointSlice that a test
applies may be anything that some API server may hold. There are no namespaces that would have to exist first.
"""

from tests.apiserver.faults import Faults
from tests.apiserver.server import ApiServer, Features

__all__ = ["ApiServer", "Faults", "Features"]
