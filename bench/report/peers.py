"""Figures of other proxies that others have measured: quoted, each with its date and place.

None is from the same machine and hour as kroute's figures, so none is set in relation to them.
"""

from typing import NamedTuple

_GITHUB = "https://github.com/kubernetes/kubernetes"


class Quoted(NamedTuple):
    """A figure of a proxy, when and where it was measured, and who says so."""

    proxy: str
    figure: str
    value: str
    place: str
    source: str


def _issue(number: int, kind: str = "issues") -> str:
    return f"[kubernetes#{number}]({_GITHUB}/{kind}/{number})"


QUOTED = (
    Quoted(
        "kube-proxy, nftables",
        "network programming latency, p50; p99",
        "1.52 s; 6.82 s",
        "2024-04-11, load test of 100 nodes on GCE",
        _issue(124272, "pull"),
    ),
    Quoted(
        "kube-proxy, nftables",
        "one Service added at 10,000 x 2; greatest memory while they were created",
        "141 ms; 260 MiB",
        "2024-07-10, kind",
        _issue(126013, "pull"),
    ),
    Quoted(
        "kube-proxy, nftables",
        "one full sync at 5,006 Services and 250,011 endpoints",
        "13 min 15 s",
        "2025-11-29, m6i.8xlarge, Linux 6.1",
        _issue(135639),
    ),
    Quoted(
        "kube-proxy 1.36, nftables",
        "one incremental sync at 44,128 Services (with a change that was under review)",
        "1.33 s",
        "2026-06-08",
        _issue(139513),
    ),
    Quoted(
        "kube-proxy, IPVS",
        "one endpoint changed at some 4,000 endpoints, average",
        "20 s",
        "2019-01-28, bare metal with 48 processors",
        _issue(73382),
    ),
)


def markdown() -> str:
    """The table of quoted figures."""
    lines = ["| proxy | figure | value | when and where | source |", "|---|---|---:|---|---|"]
    lines += [f"| {' | '.join(quoted)} |" for quoted in QUOTED]
    return "\n".join(lines) + "\n"
