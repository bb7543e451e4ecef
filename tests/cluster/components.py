"""What runs in the machines of the cluster: the commands of the components, and their files."""

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address

from tests.cluster.credentials import Credentials
from tests.lab import control_plane
from tests.lab.kubernetes import required
from tests.lab.places import PROJECT

DUAL_STACK = (4, 6)
SERVICES = {4: "10.96.0.0/16", 6: "fd00:10:96::/112"}
DNS = {4: "10.96.0.10", 6: "fd00:10:96::a"}
KUBERNETES = "/etc/kubernetes"
SANDBOX = "registry.k8s.io/pause:3.10.2"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = ("containerd", "kubelet")


@dataclass(frozen=True)
class Place:
    """A machine's name and its number on the wire, from which follow its addresses and those of its pods.

    It has one of each of the cluster's `families` (4, 6), in this order.
    """

    name: str
    number: int
    families: Sequence[int] = DUAL_STACK

    @property
    def addresses(self) -> list[str]:
        return [network.partition("/")[0] for network in self.with_prefixes]

    @property
    def with_prefixes(self) -> list[str]:
        return self._of_families({4: f"192.168.77.{self.number}/24", 6: f"fd00:77::{self.number}/64"})

    @property
    def pod_networks(self) -> list[str]:
        return self._of_families({4: f"10.244.{self.number}.0/24", 6: f"fd00:10:244:{self.number}::/64"})

    @property
    def zone(self) -> str:
        return f"zone{self.number % 10}"

    @property
    def wire(self) -> "Place":
        """The namespace beside the machines, which routes to everywhere else."""
        return replace(self, name="wire", number=1)

    def _of_families(self, of_each: dict[int, str]) -> list[str]:
        return [of_each[family] for family in self.families]


def routes(of: Place, nodes: Iterable[Place]) -> list[str]:
    """The routes to the pods of all nodes but this one, as `ip route add` takes them."""
    return [
        f"{network} via {gateway}"
        for node in nodes
        if node != of
        for network, gateway in zip(node.pod_networks, node.addresses, strict=True)
    ]


def routes_to_services(node: Place) -> list[str]:
    """The routes to ClusterIPs by a node, of a machine that has no proxy of its own."""
    return [f"{SERVICES[family]} via {address}" for family, address in zip(node.families, node.addresses, strict=True)]


def of_control_plane(place: Place, credentials: Credentials) -> tuple[dict[str, str], dict[str, str]]:
    """The commands of the control plane by their names, and its files by their paths."""
    programs = {name: required(name) for name in CONTROL_PLANE}
    own = f"--kubeconfig={KUBERNETES}/admin --authentication-kubeconfig={KUBERNETES}/admin --leader-elect=false"
    own += f" --authorization-kubeconfig={KUBERNETES}/admin --authentication-skip-lookup=true --bind-address=127.0.0.1"
    server_flags = (
        *("--bind-address=::", f"--advertise-address={place.addresses[0]}", "--allow-privileged=true"),
        *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
        *(f"--tls-cert-file={KUBERNETES}/server.crt", f"--tls-private-key-file={KUBERNETES}/server.key"),
        *(f"--client-ca-file={KUBERNETES}/ca.crt", "--kubelet-preferred-address-types=InternalIP"),
        f"--kubelet-client-certificate={KUBERNETES}/kubelet-client.crt",
        f"--kubelet-client-key={KUBERNETES}/kubelet-client.key",
        f"--requestheader-client-ca-file={KUBERNETES}/ca.crt",  # what aggregated APIs know the API server by
        *("--requestheader-allowed-names=front-proxy-client", "--requestheader-username-headers=X-Remote-User"),
        *("--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-"),
        f"--proxy-client-cert-file={KUBERNETES}/front-proxy-client.crt",
        f"--proxy-client-key-file={KUBERNETES}/front-proxy-client.key",
    )
    key = f"{KUBERNETES}/service-accounts.key"
    commands = {
        "etcd": shlex.join(control_plane.etcd(programs["etcd"], "/var/lib/etcd/data")),
        "kube-apiserver": shlex.join(
            control_plane.api_server(
                programs["kube-apiserver"],
                *server_flags,
                services=",".join(SERVICES[family] for family in place.families),
                signing_key=key,
                tokens=f"{KUBERNETES}/tokens.csv",
            )
        ),
        "kube-controller-manager": f"{programs['kube-controller-manager']} {own} --use-service-account-credentials=true"
        f" --service-account-private-key-file={key} --allocate-node-cidrs=false"
        f" --root-ca-file={KUBERNETES}/authorities.crt --cluster-signing-cert-file={KUBERNETES}/ca.crt"
        f" --cluster-signing-key-file={KUBERNETES}/ca.key",
        "kube-scheduler": f"{programs['kube-scheduler']} {own}",
    }
    names = [path.name for path in credentials.directory.iterdir() if path.suffix in {".crt", ".key", ".csv"}]
    files = {f"{KUBERNETES}/{name}": credentials.file(name) for name in names}
    return commands, {**files, f"{KUBERNETES}/admin": credentials.kubeconfig("admin")}


def of_node(
    place: Place, credentials: Credentials, *, has_pod_network: bool = True
) -> tuple[dict[str, str], dict[str, str]]:
    """The commands of a node by their names, and its files by their paths."""
    commands = {
        "containerd": "containerd --config /etc/containerd/config.toml",
        "kubelet": f"{required('kubelet')} --config {KUBERNETES}/kubelet.yaml --kubeconfig {KUBERNETES}/kubelet"
        f" --hostname-override {place.name} --node-ip {','.join(place.addresses)} --v=2",
    }
    return commands, {
        "/etc/containerd/config.toml": _CONTAINERD,
        **({"/etc/cni/net.d/10-lab.conflist": json.dumps(_cni(place), indent=1)} if has_pod_network else {}),
        f"{KUBERNETES}/ca.crt": credentials.file("ca.crt"),
        f"{KUBERNETES}/kubelet": credentials.kubeconfig(f"system:node:{place.name}"),
        f"{KUBERNETES}/kubelet.yaml": json.dumps({**_KUBELET, "clusterDNS": [DNS[place.families[0]]]}, indent=1),
    }


def files_of_machine(place: Place) -> dict[str, str]:
    """The files that every machine has."""
    hosts = "".join(f"{address} {place.name}\n" for address in place.addresses)
    return {
        "/etc/hostname": f"{place.name}\n",
        "/etc/hosts": f"127.0.0.1 localhost\n::1 localhost\n{hosts}",
        "/etc/resolv.conf": f"nameserver {place.wire.addresses[0]}\n",
    }


def commands_server() -> str:
    """The command that runs commands of the host (`guest_commands`)."""
    return shlex.join([sys.executable, str(PROJECT / "tests/cluster/guest_commands.py")])


_CONTAINERD = f"""\
version = 2
oom_score = -999
disabled_plugins = [{", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in ("btrfs", "zfs", "devmapper"))}]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{SANDBOX}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""

_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {
        "anonymous": {"enabled": False},
        "webhook": {"enabled": True},
        "x509": {"clientCAFile": f"{KUBERNETES}/ca.crt"},
    },
    "authorization": {"mode": "Webhook"},
    "cgroupDriver": "cgroupfs",
    "clusterDomain": "cluster.local",
    "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},  # a test kills a container a hundred times
    "featureGates": {"KubeletCrashLoopBackOffMax": True},
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "enforceNodeAllocatable": [],  # a kernel for one processor has no cpuset
    "failSwapOn": False,
    "imageGCHighThresholdPercent": 100,
    "evictionHard": {"memory.available": "50Mi"},
    "staticPodPath": "/etc/kubernetes/manifests",
    "volumePluginDir": "/var/lib/kubelet/volumeplugins",
}


def _cni(place: Place) -> dict[str, object]:
    """The plugins bridge, host-local and portmap, with pods of the cluster's families."""
    ranges = [[{"subnet": network}] for network in place.pod_networks]
    default = [{"dst": "::/0" if ip_address(address).version == 6 else "0.0.0.0/0"} for address in place.addresses]
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": default},
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "lab", "plugins": [bridge, portmap]}
