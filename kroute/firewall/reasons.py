"""The comments of the rules, which say why a packet is treated as it is. The rules of all backends have the same ones.

Each has at most 127 bytes: the tools of nf_tables print no longer ones. A changed comment would make an upgrade rewrite
the rules of every node, so the words for people are in `IN_WORDS`.
"""

NOT_BEGUN = "of a connection that conntrack did not see begin"
EXEMPT = "exempt from masquerading"
EVERYTHING_TO_CLUSTER_IP = "everything to a ClusterIP is masqueraded"
OTHERS_TO_CLUSTER_IP = "to a ClusterIP, not from a local pod: masqueraded"
TO_EXTERNAL = "node ports and external addresses, policy Cluster"
HAIRPIN = "a pod that reaches itself through a Service"
MARKED = "marked packets leave with an address of this node"
RESTRICTED = "a load balancer that is for some clients only"
WITHIN_RANGES = "a client that this load balancer is for"
OUTSIDE_RANGES = "a load balancer that is not for this client"
NO_ENDPOINT = "nothing serves this port"
NO_LOCAL = "policy Local, and nothing on this node serves it"
VIP = "an address of Services"
SERVED = "a port that a Service serves"
PING = "a ping"
STRAY_ERROR = "an ICMP message about a connection that conntrack does not know"
ODD_SEGMENT = "a SYN with FIN, RST or ACK, which begins no connection"
TO_VIP = "an address of Services that is on no link: delivered here"
DELIVERED = "it has been delivered here: the mark is for nobody else"
FROM_POD = "an answer of a pod from an address of Services"
HOST_PORT = "a port of the node itself, which is not for this address"
REFUSED = "refused at once"
BEHIND_VIP = "a port of the node itself, behind an endpoint that is a VIP"
FROM_PODS = "kroute: what pods send"
TO_NODES = "through a tunnel to another node, which answers through it"
TO_PODS = "to pods, which see who calls"
POD_EGRESS = "of a pod, to outside of the pods' networks: leaves with an address of this node"
KEPT = "an address of Services, which no other program leads elsewhere"

NEW_CONNECTIONS = "kroute: Services, for new connections"
ANSWERS = "kroute: answers"
FROM_ELSEWHERE = "kroute: Services, for packets from elsewhere"
OF_THIS_NODE = "kroute: Services, for packets of this node"
"""The comments of the four rules that only lead to other rules."""

IN_WORDS = {
    NOT_BEGUN: "the connection is older than the rules",
    EXEMPT: "--masquerade-exempt names this source and destination",
    EVERYTHING_TO_CLUSTER_IP: "--masquerade-all",
    OTHERS_TO_CLUSTER_IP: "the client is not a pod, and calls a ClusterIP",
    TO_EXTERNAL: "a node port or external address, with policy Cluster",
    HAIRPIN: "hairpin: the pod reaches itself through the Service",
    OUTSIDE_RANGES: "the Service's loadBalancerSourceRanges do not include this client",
    NO_ENDPOINT: "no endpoint of the Service can serve this port",
    NO_LOCAL: "the traffic policy is Local, and no endpoint is on this node",
    SERVED: "a Service has this port",
    PING: "a VIP answers ping",
    HOST_PORT: "no Service has this port of the VIP, and the node's own ports are not reached by it",
}
"""What `kroute explain` says in place of a comment."""
