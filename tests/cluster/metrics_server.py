"""`metrics_server.py NODE...`: stands in for metrics-server: the API metrics.k8s.io/v1beta1, with made-up figures.

Held against kube-apiserver 1.36.2, whose aggregator finds it available and proxies to it, and `kubectl top nodes` of
1.36.2. Like every server of an aggregated API it answers whoever has the client certificate of the API server alone.
It runs in a pod, with the standard library alone.
"""

import json
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

API = "/apis/metrics.k8s.io/v1beta1"
AUTHORITY = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
PORT = 8443


def resources() -> dict[str, object]:
    nodes = {"name": "nodes", "singularName": "", "namespaced": False, "kind": "NodeMetrics", "verbs": ["get", "list"]}
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API[6:], "resources": [nodes]}


def metrics(nodes: list[str]) -> dict[str, object]:
    usage = {"cpu": "250m", "memory": "64Mi"}
    time = {"timestamp": "2026-01-01T00:00:00Z", "window": "10s"}
    items = [{"metadata": {"name": name}, **time, "usage": usage} for name in nodes]
    return {"kind": "NodeMetricsList", "apiVersion": API[6:], "metadata": {}, "items": items}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        found = {API: resources(), f"{API}/nodes": metrics(sys.argv[1:])}.get(self.path.partition("?")[0])
        content = json.dumps(found).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("", PORT), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=AUTHORITY)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()
