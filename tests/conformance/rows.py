"""Every row of the Kubernetes end-to-end tests that concerns Services or NetworkPolicies, and which component it tests.

A row's id is its number in the conformance suite (C1 to C21), or the file in test/e2e/network and the line of its first
test there; `X` stands for everything in which a proxy has no part. A row without a `reason` is kroute's and has tests.
The rows of `netpol` are the tests of netpol/network_policy.go in their order, those of `cyclonus` are groups of cases
of its generator: `policy_cases.py` has what they apply.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """One row; `reason` says why it has no test, `shows` what its tests show where that is less than the title."""

    section: str
    id: str
    title: str
    reason: str = ""
    shows: str = ""

    @property
    def test_prefix(self) -> str:
        """The beginning of the names of the row's tests: `test_c03_`, `test_service_906_`."""
        file, _, line = self.id.partition(" ")
        return f"test_{file.lower()}_{line}_" if line else f"test_c{int(self.id[1:]):02}_"


SECTIONS = {
    "5.1": "Conformance",
    "5.2": "service.go",
    "5.3": "networking.go, Granular Checks: Services",
    "5.4": "conntrack.go",
    "5.5": "loadbalancer.go",
    "5.6": "Other files",
    "5.7": "netpol/network_policy.go and network_policy_api.go, in their order",
    "5.8": "NetworkPolicies: cases of cyclonus",
}

_API = "not a proxy's matter: the API server and its controllers alone"
_CLOUD = "not a proxy's matter: the cloud's load balancer and its controller"
_KUBE_PROXY = "not a matter of kroute: it tests kube-proxy's"

_CONFORMANCE = (
    ("C1", "Services: serve a basic endpoint from pods"),
    ("C2", "Services: serve multiport endpoints from pods"),
    ("C3", "Services: serve endpoints on same port and different protocols"),
    ("C4", "Services: be able to create a functioning NodePort service"),
    ("C5", "Services: change the type from ExternalName to ClusterIP"),
    ("C6", "Services: change the type from ExternalName to NodePort"),
    ("C7", "Services: change the type from ClusterIP to ExternalName"),
    ("C8", "Services: change the type from NodePort to ExternalName"),
    ("C9", "Services: session affinity for type ClusterIP"),
    ("C10", "Services: switch session affinity for type ClusterIP"),
    ("C11", "Services: session affinity for type NodePort"),
    ("C12", "Services: switch session affinity for type NodePort"),
    ("C13", "EndpointSlice: multiple ports in multiple EndpointSlices"),
    ("C14", "EndpointSlice: multiple endpoint IPs in multiple EndpointSlices"),
    ("C15", "HostPort: no conflict between pods with same hostPort but different hostIP and protocol"),
    ("C16", "Proxy: proxy through a service and a pod"),
    ("C17", "Proxy: valid responses for Proxy and ProxyWithPath", "not a proxy's matter: the API server's HTTP"),
    ("C18", "Service endpoints latency should not be very high"),
    ("C19", "DNS: cluster, services, PQDN, ExternalName, hostname, subdomain, /etc/hosts, dnsConfig"),
    ("C20", "API server: secure master service; Endpoints pointing to the API server"),
    ("C21", "Networking: intra-pod and node-pod communication, http and udp"),
    ("X", "Services: find in all namespaces, status, delete collection; EndpointSlice, Ingress and other APIs", _API),
)

_SERVICE = (
    ("service 906", "updated after adding or deleting ports"),
    ("service 1020", "preserve source pod IP for traffic thru service cluster IP"),
    ("service 1095", "allow pods to hairpin back to themselves through services"),
    ("service 1125", "up and down services"),
    ("service 1171", "work after the service has been recreated"),
    ("service 1207", "work after restarting kube-proxy"),
    ("service 1240", "work after restarting apiserver"),
    ("service 1313", "connect via ExternalIP not assigned to a node"),
    ("service 1350", "update service type to NodePort, listening on same port number but different protocols"),
    ("service 1575", "prevent NodePort collisions", "not a proxy's matter: the API server allocates node ports"),
    ("service 1629", "check NodePort out-of-range", "not a proxy's matter: the API server allocates node ports"),
    ("service 1696", "release NodePorts on delete; nothing listens on the port on the host"),
    ("service 1792", "create endpoints for unready pods"),
    ("service 1948", "connect to terminating and unready endpoints if PublishNotReadyAddresses is true"),
    ("service 2068", "not connect to terminating and unready endpoints if PublishNotReadyAddresses is false"),
    ("service 2235", "session affinity timeout, type ClusterIP"),
    ("service 2272", "session affinity timeout, type NodePort"),
    ("service 2294", "implement service.kubernetes.io/service-proxy-name"),
    ("service 2345", "implement service.kubernetes.io/headless"),
    ("service 2419", "rejected when no endpoints exist"),
    ("service 2464", "rejected for evicted pods (no endpoints exist)"),
    ("service 2528", "internalTrafficPolicy Local, pod to pod"),
    ("service 2597", "internalTrafficPolicy Local, pod (hostNetwork) to pod"),
    ("service 2668", "internalTrafficPolicy Local, pod and node to pod (hostNetwork)"),
    ("service 2771", "externalTrafficPolicy Local for type NodePort"),
    ("service 2823", "fail health check node port if there are only terminating endpoints"),
    ("service 2920", "fallback to terminating endpoints, internalTrafficPolicy Cluster"),
    ("service 2994", "fallback to local terminating endpoints, internalTrafficPolicy Local"),
    ("service 3073", "fallback to terminating endpoints, externalTrafficPolicy Cluster"),
    ("service 3149", "fallback to local terminating endpoints, externalTrafficPolicy Local"),
    ("service 3701", "same port with different protocols, LoadBalancer, internal traffic"),
    ("service 3776", "basic SCTP service; the sctp module is not loaded"),
    ("service 3833", "NodePort and HealthCheckNodePort when externalTrafficPolicy changes"),
    ("service 4044", "ports (and named ports) exposed by restartable init containers"),
    ("service 4116", "named targetPorts that resolve to different ports on different endpoints"),
)

_NETWORKING = (
    ("networking 132", "check kube-proxy urls"),
    ("networking 147", "pod-Service: http"),
    ("networking 162", "pod-Service: udp"),
    ("networking 177", "pod-Service: sctp"),
    ("networking 191", "node-Service: http"),
    ("networking 205", "node-Service: udp"),
    ("networking 219", "node-Service: sctp"),
    ("networking 234", "endpoint-Service: http"),
    ("networking 248", "endpoint-Service: udp"),
    ("networking 263", "endpoint-Service: sctp"),
    ("networking 280", "multiple endpoint-Services with same selector"),
    ("networking 325", "update endpoints: http"),
    ("networking 342", "update endpoints: udp"),
    ("networking 360", "update nodePort: http"),
    ("networking 381", "basic nodePort: udp"),
    ("networking 391", "update nodePort: udp"),
    ("networking 413", "client IP based session affinity: http"),
    ("networking 431", "client IP based session affinity: udp"),
    ("networking 448", "large requests: http"),
    ("networking 458", "large requests: udp"),
    ("networking 471", "service endpoints using hostNetwork"),
    ("networking 548", "recreate its iptables rules if they are deleted"),
    ("networking 635", "SCTP HostPort; the sctp module is not loaded"),
)

_CONNTRACK = (
    ("conntrack 140", "preserve UDP traffic when server pod cycles, NodePort"),
    ("conntrack 218", "preserve UDP traffic when server pod cycles, ClusterIP"),
    ("conntrack 297", "preserve UDP traffic when server pod cycles, ClusterIP with internalTrafficPolicy Local"),
    ("conntrack 391", "preserve UDP traffic when server pod cycles, client is hostNetwork"),
    ("conntrack 481", "preserve UDP traffic when initial unready endpoints get ready"),
    ("conntrack 552", "drop INVALID conntrack entries"),
    ("conntrack 673", "clean up UDP entries when the target port changes, NodePort"),
)

_LOAD_BALANCER = (
    ("loadbalancer 132", "change the type and ports of a TCP service"),
    ("loadbalancer 270", "change the type and ports of a UDP service"),
    ("loadbalancer 422", "only allow access from service loadbalancer source ranges"),
    ("loadbalancer 565", "session affinity with externalTrafficPolicy Local and Cluster, and switch it"),
    ("loadbalancer 610", "handle load balancer cleanup finalizer for service", _CLOUD),
    ("loadbalancer 642", "create a LoadBalancer Service without NodePort and change it"),
    ("loadbalancer 707", "preserve UDP traffic when server pod cycles, on different and on the same node"),
    ("loadbalancer 975", "no connectivity disruption during rolling update, externalTrafficPolicy Cluster"),
    ("loadbalancer 984", "no connectivity disruption during rolling update, externalTrafficPolicy Local"),
    ("loadbalancer 1016", "ESIPP: work for type=LoadBalancer"),
    ("loadbalancer 1081", "ESIPP: only target nodes with endpoints"),
    ("loadbalancer 1174", "ESIPP: target all nodes with endpoints"),
    ("loadbalancer 1221", "ESIPP: work from pods"),
)

_OTHERS = (
    ("kube_proxy 74", "set TCP CLOSE_WAIT timeout", _KUBE_PROXY + " own setting of a node's sysctl"),
    ("kube_proxy 276", "update metric for localhost nodeport accepted packets", _KUBE_PROXY + " iptables mode"),
    ("traffic_distribution 350", "PreferClose, PreferSameZone and PreferSameNode"),
    ("topology_hints 55", "distribute endpoints evenly; traffic stays in its zone"),
    ("dual_stack 64", "ipFamilies and ipFamilyPolicy of Services", _API),
    ("no_snat 67", "send traffic to pods without SNAT"),
    ("pod_lifecycle 60", "connect to and from other pods from a terminating pod"),
    ("pod_lifecycle 110", "zero failed requests during a blue-green deployment with readiness gates"),
    ("service_cidrs 69", "create Services and serve on different Service CIDRs"),
    ("networking_perf", "iperf runs", "asserts nothing about a proxy"),
)

_NETPOL = (
    *(
        (f"netpol {number}", title)
        for number, title in enumerate(
            (
                "ingress denied by default",
                "ingress and egress denied by default",
                "a pod of the namespace, by label",
                "one pod is open where all others are denied",
                "pods of all namespaces",
                "another namespace alone, by label",
                "a pod by an expression",
                "a namespace by an expression",
                "a pod or other namespaces",
                "a pod of other namespaces",
                "some pods of other namespaces, by expressions",
                "either of two pods",
                "a pod of one other namespace",
                "one port for a namespace",
                "two policies for one pod, each with a port",
                "everything allowed",
                "ingress to a named port",
                "ingress from a namespace to a named port",
                "egress to a named port",
                "a policy that changes",
                "a namespace whose labels change",
                "a peer whose labels change",
                "other namespaces denied",
                "a pod that is isolated when its labels change",
                "egress of a pod denied",
                "egress of a namespace denied",
                "ingress and egress in one policy",
                "egress denied to what ingress allows",
                "egress to a pod of another namespace",
                "all ports of one protocol",
                "of two policies for ingress one allows everything",
                "of two policies for egress one allows everything",
                "a policy that is deleted",
                "egress to a network",
                "egress to a network with an exception",
                "the exception of a network, allowed by the changed policy",
                "egress open and ingress denied",
                "a port of SCTP is none of TCP",
                "a pod that may be called by SCTP alone is isolated",
                "a port of UDP is none of TCP",
                "a namespace by its default label",
                "other namespaces by their default label, for egress",
                "UDP: ingress denied by default",
                "UDP: one port for a namespace",
                "UDP: a pod of one other namespace",
                "SCTP: ingress denied by default",
                "SCTP: one port for a namespace",
                "SCTP: a pod of one other namespace",
            ),
            1,
        )
    ),
    ("netpol_api 1", "create, read, watch, change and delete policies", _API),
    ("netpol_api 2", "what endPort may be", _API),
)

_CYCLONUS = (
    ("cyclonus targets", "whom a policy selects"),
    ("cyclonus rules", "no rule, and one for everything"),
    ("cyclonus peers", "no peers, one, and each two, for ingress and egress"),
    ("cyclonus ports", "no ports, one, and some pairs, for ingress and egress"),
    ("cyclonus examples", "a named port, while a namespace comes and goes"),
    ("cyclonus actions", "policies, namespaces, pods and labels come, change and go"),
    ("cyclonus conflicts", "what one policy allows and another one does not"),
    ("cyclonus namespaces", "a namespace by its default label"),
    ("cyclonus e2e", "Kubernetes' own tests, with DNS allowed"),
)

_BY_SECTION = {
    "5.1": _CONFORMANCE,
    "5.2": _SERVICE,
    "5.3": _NETWORKING,
    "5.4": _CONNTRACK,
    "5.5": _LOAD_BALANCER,
    "5.6": _OTHERS,
    "5.7": _NETPOL,
    "5.8": _CYCLONUS,
}

_UDP_STARTS_ANEW = (
    "the client is served by the new endpoint although its first packets came before the Service; kroute deletes their "
    "conntrack entries, and IPVS ends its own flows to a deleted real server"
)
_UDP_MOVES = (
    "the client is served by the new pod: IPVS ends its flows to a deleted real server, because kroute sets "
    "`net.ipv4.vs.expire_nodest_conn`. The conntrack entries that kroute itself deletes are in "
    "`tests/scenarios/test_udp_flows.py`"
)
_SHOWS = {
    "C19": "a Service `kube-dns` is reached over UDP and TCP on port 53 from every pod and node; names and their "
    "resolution are not a proxy's matter, so stand-ins serve behind it",
    "service 1207": "kroute is restarted, not kube-proxy",
    "service 1792": "an endpoint whose slice says `ready` is served, and else refused; that "
    "`publishNotReadyAddresses` becomes `ready` is the EndpointSlice controller's work",
    "networking 458": "datagrams of 2,000 bytes to pods on other nodes, with br_netfilter off on the bridges of pods "
    "(its setting `bridge-nf-call-ip6tables`): with it, IPVS refuses IPv6 datagrams above the MTU",
    "cyclonus e2e": "four of thirteen cases: the others are those of `netpol`",
    **dict.fromkeys(("conntrack 140", "conntrack 673"), _UDP_STARTS_ANEW),
    **dict.fromkeys(("conntrack 218", "conntrack 297", "conntrack 391", "loadbalancer 707"), _UDP_MOVES),
}
"""What the tests of a row show, if that is less than its title says."""

ROWS = tuple(
    Row(section, *each)._replace(shows=_SHOWS.get(each[0], ""))
    for section, rows in _BY_SECTION.items()
    for each in rows
)
