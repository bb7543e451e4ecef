"""What runs in the machines of the cluster: the commands of the components, and their files."""

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from tests.cluster.credentials import Credentials
from tests.lab import control_plane
from tests.lab.kubernetes import required
from tests.lab.places import PROJECT

SERVICES = "10.96.0.0/16,fd00:10:96::/112"
DNS = "10.96.0.10"
KUBERNETES = "/etc/kubernetes"
SANDBOX = "registry.k8s.io/pause:3.10.2"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = ("containerd", "kubelet")


@dataclass(frozen=True)
class Place:
    """A machine's name and its number on the wire, from which follow its addresses and those of its pods."""

    name: str
    number: int

    @property
    def addresses(self) -> tuple[str, str]:
        return f"192.168.77.{self.number}", f"fd00:77::{self.number}"

    @property
    def with_prefixes(self) -> tuple[str, str]:
        return f"{self.addresses[0]}/24", f"{self.addresses[1]}/64"

    @property
    def pod_networks(self) -> tuple[str, str]:
        return f"10.244.{self.number}.0/24", f"fd00:10:244:{self.number}::/64"

    @property
    def zone(self) -> str:
        return f"zone{self.number % 10}"


WIRE = Place("wire", 1)
CONTROL = Place("control", 10)


def routes(of: Place, nodes: Iterable[Place]) -> list[str]:
    """The routes to the pods of all nodes but this one, as `ip route add` takes them."""
    return [
        f"{network} via {gateway}"
        for node in nodes
        if node != of
        for network, gateway in zip(node.pod_networks, node.addresses, strict=True)
    ]


def of_control_plane(credentials: Credentials) -> tuple[dict[str, str], dict[str, str]]:
    """The commands of the control plane by their names, and its files by their paths."""
    programs = {name: required(name) for name in CONTROL_PLANE}
    own = f"--kubeconfig={KUBERNETES}/admin --authentication-kubeconfig={KUBERNETES}/admin --leader-elect=false"
    own += f" --authorization-kubeconfig={KUBERNETES}/admin --authentication-skip-lookup=true --bind-address=127.0.0.1"
    server_flags = (
        *("--bind-address=::", f"--advertise-address={CONTROL.addresses[0]}", "--allow-privileged=true"),
        *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
        *(f"--tls-cert-file={KUBERNETES}/server.crt", f"--tls-private-key-file={KUBERNETES}/server.key"),
        *(f"--client-ca-file={KUBERNETES}/ca.crt", "--kubelet-preferred-address-types=InternalIP"),
        f"--kubelet-client-certificate={KUBERNETES}/kubelet-client.crt",
        f"--kubelet-client-key={KUBERNETES}/kubelet-client.key",
    )
    key = f"{KUBERNETES}/service-accounts.key"
    commands = {
        "etcd": shlex.join(control_plane.etcd(programs["etcd"], "/var/lib/etcd/data")),
        "kube-apiserver": shlex.join(
            control_plane.api_server(
                programs["kube-apiserver"],
                *server_flags,
                services=SERVICES,
                signing_key=key,
                tokens=f"{KUBERNETES}/tokens.csv",
            )
        ),
        "kube-controller-manager": f"{programs['kube-controller-manager']} {own} --use-service-account-credentials=true"
        f" --service-account-private-key-file={key} --root-ca-file={KUBERNETES}/ca.crt --allocate-node-cidrs=false"
        f" --cluster-signing-cert-file={KUBERNETES}/ca.crt --cluster-signing-key-file={KUBERNETES}/ca.key",
        "kube-scheduler": f"{programs['kube-scheduler']} {own}",
    }
    names = [path.name for path in credentials.directory.iterdir() if path.suffix in {".crt", ".key", ".csv"}]
    files = {f"{KUBERNETES}/{name}": credentials.file(name) for name in names}
    return commands, {**files, f"{KUBERNETES}/admin": credentials.kubeconfig("admin")}


def of_node(place: Place, credentials: Credentials) -> tuple[dict[str, str], dict[str, str]]:
    """The commands of a node by their names, and its files by their paths."""
    commands = {
        "containerd": "containerd --config /etc/containerd/config.toml",
        "kubelet": f"{required('kubelet')} --config {KUBERNETES}/kubelet.yaml --kubeconfig {KUBERNETES}/kubelet"
        f" --hostname-override {place.name} --node-ip {','.join(place.addresses)} --v=2",
    }
    return commands, {
        "/etc/containerd/config.toml": _CONTAINERD,
        "/etc/cni/net.d/10-lab.conflist": json.dumps(_cni(place), indent=1),
        f"{KUBERNETES}/ca.crt": credentials.file("ca.crt"),
        f"{KUBERNETES}/kubelet": credentials.kubeconfig(f"system:node:{place.name}"),
        f"{KUBERNETES}/kubelet.yaml": json.dumps(_KUBELET, indent=1),
    }


def files_of_machine(place: Place) -> dict[str, str]:
    """The files that every machine has."""
    hosts = "".join(f"{address} {place.name}\n" for address in place.addresses)
    return {
        "/etc/hostname": f"{place.name}\n",
        "/etc/hosts": f"127.0.0.1 localhost\n::1 localhost\n{hosts}",
        "/etc/resolv.conf": f"nameserver {WIRE.addresses[0]}\n",
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
    "clusterDNS": [DNS],
    "clusterDomain": "cluster.local",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "enforceNodeAllocatable": [],  # a kernel for one processor has no cpuset
    "failSwapOn": False,
    "imageGCHighThresholdPercent": 100,
    "evictionHard": {"memory.available": "50Mi"},
    "staticPodPath": "/etc/kubernetes/manifests",
    "volumePluginDir": "/var/lib/kubelet/volumeplugins",
}


def _cni(place: Place) -> dict[str, object]:
    """The plugins bridge, host-local and portmap, with pods of both families."""
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
