"""The command lines of etcd and kube-apiserver, as all tests start the real ones."""

from pathlib import Path

ETCD = "http://127.0.0.1:2379"
ISSUER = "https://kubernetes.default.svc.cluster.local"


def etcd(program: Path, data: str) -> list[str]:
    """etcd on the loopback interface, with its files in `data`."""
    peers = "http://127.0.0.1:2380"
    return [
        *(str(program), "--name", "c", "--data-dir", data, "--unsafe-no-fsync", "--log-level", "error"),
        *("--listen-client-urls", ETCD, "--advertise-client-urls", ETCD),
        *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"c={peers}"),
    ]


def api_server(program: Path, *flags: str, services: str, signing_key: str, tokens: str) -> list[str]:
    """kube-apiserver for this etcd, with ClusterIPs of `services`, and the accounts of the file `tokens`."""
    return [
        *(str(program), f"--etcd-servers={ETCD}", f"--service-cluster-ip-range={services}"),
        *(f"--token-auth-file={tokens}", f"--service-account-issuer={ISSUER}"),
        *(f"--service-account-key-file={signing_key}", f"--service-account-signing-key-file={signing_key}", *flags),
    ]
