"""kube-router's flags are accepted where they mean the same; otherwise the error names kroute's flag."""

import pytest

from kroute.cli.terminal.output import USAGE
from kroute.settings import Settings
from tests.unit.command_line import exit_code

ACCEPTED: dict[str, tuple[list[str], dict[str, object]]] = {
    "hostname-override": (["--hostname-override", "n1"], {"node_name": "n1"}),
    "ipvs-sync-period": (["--ipvs-sync-period=5m"], {"resync_period": 300.0}),
    "excluded-cidrs": (["--excluded-cidrs=10.9.0.0/16"], {"exclude_cidrs": ("10.9.0.0/16",)}),
    "service-cluster-ip-range": (["--service-cluster-ip-range", "10.96.0.0/12"], {"service_cidrs": ("10.96.0.0/12",)}),
    "service-external-ip-range": (
        ["--service-external-ip-range=192.0.2.0/24"],
        {"external_ip_ranges": ("192.0.2.0/24",)},
    ),
    "service-tcp-timeout": (["--service-tcp-timeout=900s"], {"ipvs_tcp_timeout": 900}),
    "service-tcpfin-timeout": (["--service-tcpfin-timeout=2m"], {"ipvs_tcpfin_timeout": 120}),
    "service-udp-timeout": (["--service-udp-timeout", "300s"], {"ipvs_udp_timeout": 300}),
    "ipvs-graceful-period": (["--ipvs-graceful-period=30s"], {"drain_timeout": 30.0}),
    "strict-external-ip-validation": (["--strict-external-ip-validation"], {"strict_external_ips": True}),
    "masquerade-all": (["--masquerade-all=true"], {"masquerade_all": True}),
    "nodeport-bindon-all-ip": (["--nodeport-bindon-all-ip=false"], {"nodeport_addresses": ("primary",)}),
    "hairpin-mode": (["--hairpin-mode=false"], {"hairpin": False}),
    "ipvs-graceful-termination": (["--ipvs-graceful-termination"], {}),
    "run-service-proxy": (["--run-service-proxy=true"], {}),
    "run-router": (["--run-router"], {}),
    "enable-overlay": (["--enable-overlay=false"], {"overlay": "off"}),
    "overlay-type": (["--overlay-type=full"], {"overlay": "full"}),
    "overlay-encap": (["--overlay-encap=fou", "--overlay-encap-port=5556"], {"overlay_encap_port_number": 5556}),
    "enable-pod-egress": (["--enable-pod-egress=false"], {"pod_egress": "keep"}),
    "enable-cni": (["--enable-cni", "--auto-mtu=true", "--routes-sync-period=5m0s"], {}),
    "run-firewall": (["--run-firewall=true"], {}),
    "cache-sync-timeout": (["--cache-sync-timeout=60s"], {}),
    "run-loadbalancer": (
        ["--run-loadbalancer", "--loadbalancer-ip-range=192.0.2.0/24"],
        {"allocate_load_balancer_ips": True},
    ),
    "loadbalancer-default-class": (
        ["--loadbalancer-default-class=false"],
        {"load_balancer_classes": ("kube-router",)},
    ),
    "advertise-cluster-ip": (["--advertise-cluster-ip=true"], {"advertise_cluster_ip": True}),
    "peer-router-ips": (
        ["--peer-router-ips=192.0.2.1,192.0.2.2", "--peer-router-asns=65000,65000"],
        {"peer_router_ips": ("192.0.2.1", "192.0.2.2"), "peer_router_asns": (65000, 65000)},
    ),
    "cluster-asn": (["--cluster-asn=0"], {"cluster_asn": 64512}),
    "router-id": (["--router-id=generate"], {"router_id": None}),
    "bgp-holdtime": (["--bgp-holdtime=1m30s"], {"bgp_holdtime": 90.0}),
    "enable-bfd": (["--enable-bfd", "--bfd-detection-multiplier=5"], {"bfd": True, "bfd_multiplier": 5}),
    "bfd-required-min-rx-interval": (["--bfd-required-min-rx-interval=300"], {"bfd_interval": 0.3}),
    "bfd-desired-min-tx-interval": (["--bfd-desired-min-tx-interval=2000"], {"bfd_interval": 2.0}),
    "bfd-port": (["--bfd-port=3784"], {}),
    "bgp-graceful-restart": (["--bgp-graceful-restart=false"], {"bgp_graceful_restart_time": 0.0}),
    "bgp-graceful-restart-deferral-time": (["--bgp-graceful-restart-deferral-time=6m0s"], {}),
    "nodes-full-mesh": (["--nodes-full-mesh=false"], {"nodes_full_mesh": False}),
    "enable-ibgp": (["--enable-ibgp=false"], {}),
    "enable-ipv4": (["--enable-ipv4"], {}),
    "enable-ipv6": (["--enable-ipv6=true"], {}),
    "ipvs-permit-all": (["--ipvs-permit-all=false"], {}),
}
"""Each accepted flag, as kube-router's users write it, with the settings that result."""

REFUSED: dict[str, tuple[str, str]] = {
    "run-service-proxy": ("=false", "leave this out here"),
    "run-router": ("=perhaps", "'perhaps' is neither true nor false"),
    "enable-ipv4": ("=false", "--node-ip says which"),
    "hairpin-mode": ("=often", "'often' is neither true nor false"),
    "cleanup-config": ("", "`kroute cleanup`"),
    "health-port": ("=20245", "--healthz-bind-address"),
    "health-addr": ("=::", "--healthz-bind-address"),
    "metrics-port": ("=8080", "--metrics-bind-address"),
    "metrics-addr": ("=::", "--metrics-bind-address"),
    "metrics-path": ("=/m", "--metrics-bind-address"),
    "v": ("=high", "--log-level"),
    "runtime-endpoint": ("=unix:///run/containerd/containerd.sock", "direct return"),
    "service-node-port-range": ("=30000-32000", "leave this out"),
    "cache-sync-timeout": ("=2m", "leave this out"),
    "enable-pprof": ("", "leave this out"),
    "routes-sync-period": ("=6m", "--resync-period"),
    "peer-router-passwords": ("=eA==", "--peer-passwords"),
    "gobgp-admin-port": ("=50052", "BIRD"),
    "loadbalancer-sync-period": ("=2m", "leave this out"),
    "iptables-sync-period": ("=6m", "network policies"),
}
"""Refused flags, with the value and the text that the error must contain."""


@pytest.mark.parametrize("flag", ACCEPTED)
def test_a_flag_that_means_the_same_is_taken(flag: str, started: list[Settings]) -> None:
    arguments, expected = ACCEPTED[flag]
    assert exit_code("run", *arguments, "--log-level", "debug") == 0
    assert started[0].log_level == "debug"
    assert {name: getattr(started[0], name) for name in expected} == expected


@pytest.mark.parametrize("flag", REFUSED)
def test_another_flag_is_refused_with_the_word_for_it(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    value, says = REFUSED[flag]
    assert exit_code("run", f"--{flag}{value}") == USAGE
    error = capsys.readouterr().err
    assert f"--{flag} is kube-router's: " in error
    assert says in error
    assert error.count("\n") == 1


def test_flags_that_turn_nothing_on_add_nothing(started: list[Settings]) -> None:
    arguments = ["--masquerade-all=false", "--nodeport-bindon-all-ip", "--hairpin-mode"]
    assert exit_code("run", *arguments, "--strict-external-ip-validation=false", "--node-name", "n1") == 0
    [settings] = started
    assert not settings.masquerade_all
    assert not settings.strict_external_ips
    assert settings.nodeport_addresses == ()
    assert settings.hairpin


def test_flags_with_the_same_name_and_meaning_are_kroutes_own(started: list[Settings]) -> None:
    arguments = ["--master=https://192.0.2.1:6443", "--cluster-cidr=10.1.0.0/16", "--masquerade-all"]
    assert exit_code("run", *arguments, "--loadbalancer-ip-range=192.0.2.0/24") == 0
    [settings] = started
    assert settings.master == ("https://192.0.2.1:6443",)
    assert settings.cluster_cidrs == ("10.1.0.0/16",)
    assert settings.load_balancer_ip_ranges == ("192.0.2.0/24",)
    assert settings.masquerade_all
