"""Which of Kubernetes' own end-to-end tests the cluster runs, and why it does not run the others."""

import re
from collections.abc import Sequence

from tests.cluster.components import DUAL_STACK

SETS = {
    "services": r"\[sig-network\] Services ",
    "granular": r"\[sig-network\] (\[Feature:IPv6DualStack\] Granular Checks|Networking Granular Checks): Services ",
    "network": r"\[sig-network\] (?!Services |DNS |Netpol|.*Granular Checks: Services )",
    "dns": r"\[sig-network\] DNS ",
    "conformance": (
        r"\[sig-node\] Pods should contain environment variables for services"
        r"|\[sig-cli\] Kubectl client Kubectl (expose should create services|cluster-info should check)"
        r"|\[sig-api-machinery\] (ResourceQuota should .* life of a service\.|Namespaces .* all services are removed"
        r"|AdmissionWebhook|CustomResourceConversionWebhook)"
        r"|\[sig-cli\] Kubectl client Guestbook application"
        r"|\[sig-auth\] ServiceAccounts ServiceAccountIssuerDiscovery"
    ),
    "policies": r"\[sig-network\] Netpol ",
}
"""What the names of the cases begin with, for each set: those of sig-network, and conformance cases of others that call
a Service."""

POLICIES = "policies"
"""The set that runs only if it is named: not every proxy enforces NetworkPolicies, and kroute does so by a setting."""

NOT_RUN = {
    r"load balancer cleanup finalizer": "about a cloud's controller itself",
    r"switch session affinity for LoadBalancer service with Local": "needs a load balancer that knows session affinity",
    r"\[Provider:GCE\]|\[Feature:Networking-(IPv4|IPv6|DNS|Performance)\]": "needs the Internet",
    r"\[Disruptive\]|\[Feature:KubeProxyDaemonSet": "restarts parts of the cluster by ssh",
    r"\[Feature:KubeProxyNFAcct\]|KubeProxy should set TCP CLOSE_WAIT": "about kube-proxy itself",
    r"DNS configMap nameserver": "about CoreDNS itself",
    r"\[Feature:PerformanceDNS\]": "makes 10,000 Services",
}
"""Reasons for cases that are not run, by what their names have."""

ALONE = re.compile(r"\[Serial\]|Service endpoints latency|\[Feature:SCTPConnectivity\]")
"""Cases beside which no other runs."""


def why_not_run(case: str, families: Sequence[int] = DUAL_STACK, *, has_load_balancers: bool = False) -> str:
    """The reason on a cluster with these families; empty for a case that is run."""
    if "[Feature:LoadBalancer]" in case and not has_load_balancers:
        return "needs load balancers"
    if "[Feature:IPv6DualStack]" in case and len(families) < len(DUAL_STACK):
        return "needs both families"
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, case)), "")
