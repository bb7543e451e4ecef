"""kroute accepts kube-proxy's configuration file: it uses what applies, and names the rest with a reason."""

from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from kroute.cli.director import director
from kroute.cli.parameters.config_file import tell_of_unused_fields
from kroute.cli.terminal.output import USAGE
from kroute.migration.kube_proxy_configuration import UNUSED, USED, translate
from kroute.settings import ListenAddress, Settings
from tests.unit.command_line import exit_code

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

KUBEADM = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: "", qps: 0}
clusterCIDR: 10.244.0.0/16,fd00:10:244::/56
configSyncPeriod: 0s
conntrack:
  {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null,
   udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs:
  {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s,
   tcpTimeout: 0s, udpTimeout: 0s}
kind: KubeProxyConfiguration
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: ipvs
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: null, syncPeriod: null}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
"""
"""kubeadm's file when the mode and the pod networks are set; zero values mean "not set"."""


KUBE_PROXYS = {
    "conntrack_max_per_core": 32768,
    "conntrack_min": 131072,
    "conntrack_tcp_timeout_established": 86400,
    "conntrack_tcp_timeout_close_wait": 3600,
}
"""kube-proxy's defaults, which hold for what its file leaves out."""


ALL_LIMITS = """\
conntrack:
  {maxPerCore: 0, min: 7, tcpBeLiberal: true, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 90s, udpTimeout: 1500ms,
   udpStreamTimeout: 3m}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.conf"


def test_the_file_of_kubeadm_sets_what_it_says_and_nothing_else(started: list[Settings], config: Path) -> None:
    config.write_text(KUBEADM)
    with capture_logs() as events:
        assert exit_code("run", "--config", str(config), "--node-name", "n1", "--log-format", "json") == 0
    assert started == [
        Settings(
            node_name="n1",
            cluster_cidrs=("10.244.0.0/16", "fd00:10:244::/56"),
            strict_arp=False,
            log_format="json",
            **KUBE_PROXYS,
        )
    ]
    assert [event["event"] for event in events] == ["settings.in_force"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("hostnameOverride: n2", {"node_name": "n2"}),
        ("hostnameOverride: ' Node-2.Example '", {"node_name": "node-2.example"}),
        ("healthzBindAddress: 0.0.0.0", {"healthz_bind_address": ListenAddress("", 10256)}),
        ("healthzBindAddress: 192.0.2.7:80", {"healthz_bind_address": ListenAddress("192.0.2.7", 80)}),
        ("metricsBindAddress: 0.0.0.0", {"metrics_bind_address": ListenAddress("", 10249)}),
        ("metricsBindAddress: '::1'", {"metrics_bind_address": ListenAddress("::1", 10249)}),
        ("metricsBindAddress: '[fd00::1]'", {"metrics_bind_address": ListenAddress("fd00::1", 10249)}),
        ("clusterCIDR: '10.1.0.7/16, fd00::7/64'", {"cluster_cidrs": ("10.1.0.0/16", "fd00::/64")}),
        ("nodePortAddresses: [10.0.0.1/8]", {"nodeport_addresses": ("10.0.0.0/8",)}),
        ("ipvs: {excludeCIDRs: [10.2.3.4/16]}", {"exclude_cidrs": ("10.2.0.0/16",)}),
        ("bindAddress: 192.0.2.7", {"node_ips": ("192.0.2.7",)}),
        ("bindAddress: '::'", {"node_ips": ()}),
        ("clusterCIDR: 10.1.0.0/16", {"cluster_cidrs": ("10.1.0.0/16",)}),
        ("detectLocalMode: NodeCIDR", {"detect_local_mode": "NodeCIDR"}),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0, interfaceNamePrefix: veth}",
            {"detect_local_mode": "BridgeInterface", "pod_bridge_interface": "cbr0", "pod_interface_name_prefix": ""},
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}",
            {"pod_interface_name_prefix": "cali"},
        ),
        ("nodePortAddresses: [10.0.0.0/8, fd00::/8]", {"nodeport_addresses": ("10.0.0.0/8", "fd00::/8")}),
        ("nodePortAddresses: [primary]", {"nodeport_addresses": ("primary",)}),
        ("ipvs: {scheduler: sh}", {"scheduler": "sh", "scheduler_flags": ("sh-fallback", "mh-fallback")}),
        ("ipvs: {scheduler: mh}", {"scheduler": "mh", "scheduler_flags": ("sh-fallback", "mh-fallback", "mh-port")}),
        ("ipvs: {strictARP: true}", {"strict_arp": True}),
        ("ipvs: {excludeCIDRs: [10.2.0.0/16, 10.3.0.0/16]}", {"exclude_cidrs": ("10.2.0.0/16", "10.3.0.0/16")}),
        ("ipvs: {syncPeriod: 1m30s}", {"resync_period": 90.0}),
        ("ipvs: {syncPeriod: 1500ms}", {"resync_period": 1.5}),
        (
            "ipvs: {tcpTimeout: 15m0s, tcpFinTimeout: 2m, udpTimeout: 300s}",
            {"ipvs_tcp_timeout": 900, "ipvs_tcpfin_timeout": 120, "ipvs_udp_timeout": 300},
        ),
        (
            ALL_LIMITS,
            {
                "conntrack_min": 7,
                "conntrack_tcp_be_liberal": True,
                "conntrack_tcp_timeout_close_wait": 90,
                "conntrack_udp_timeout": 1,
                "conntrack_udp_timeout_stream": 180,
            },
        ),
        (
            "conntrack: {maxPerCore: 1000}",
            {**KUBE_PROXYS, "conntrack_max_per_core": 1000},
        ),
        ("iptables: {masqueradeBit: 15, masqueradeAll: true}", {"masquerade_mark": 0x8000, "masquerade_all": True}),
        (
            "mode: nftables\nnftables: {masqueradeBit: 3, masqueradeAll: true}\niptables: {masqueradeBit: 14}",
            {"masquerade_mark": 8, "masquerade_all": True},
        ),
    ],
)  # fmt: skip
def test_a_field_that_means_the_same_is_used(
    fields: str, expected: dict[str, object], started: list[Settings], config: Path
) -> None:
    config.write_text(f"{HEAD}{fields}\n")
    assert exit_code("run", "--config", str(config)) == 0
    assert {name: getattr(started[0], name) for name in expected} == expected


def test_the_kubeconfig_is_used(started: list[Settings], config: Path, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig.conf"
    kubeconfig.touch()
    config.write_text(f"{HEAD}clientConnection: {{kubeconfig: {kubeconfig}}}\n")
    assert exit_code("run", "--config", str(config)) == 0
    assert started[0].kubeconfig == kubeconfig


def test_flags_go_before_the_file(started: list[Settings], config: Path) -> None:
    config.write_text(f"{HEAD}ipvs: {{scheduler: mh, strictARP: false}}\n")
    assert exit_code("run", "--config", str(config), "--scheduler", "lc") == 0
    assert (started[0].scheduler, started[0].strict_arp) == ("lc", False)


def test_what_is_set_and_not_used_is_named_in_a_line_each(started: list[Settings], config: Path) -> None:
    config.write_text(
        f"{HEAD}mode: iptables\nlogging: {{verbosity: 4}}\n"
        "featureGates: {SomeGate: false, OtherGate: true}\niptables: {localhostNodePorts: true}\nbogus: 1\n"
        "detectLocal: {bridgeInterface: cbr0}\nnftables: {masqueradeAll: true}\n"
    )
    with capture_logs() as events:
        assert exit_code("run", "--config", str(config)) == 0
    events = [event for event in events if event["event"] != "settings.in_force"]
    assert {event["event"] for event in events} == {"config.field_not_used"}
    said = {event["field"]: event["why"] for event in events}
    assert len(said) == len(events)
    assert said.keys() == {
        "mode", "logging", "featureGates", "iptables.localhostNodePorts",
        "bogus", "detectLocal.bridgeInterface", "nftables.masqueradeAll",
    }  # fmt: skip
    assert "--log-level" in said["logging"]
    assert "no such field" in said["bogus"]
    assert "detectLocalMode BridgeInterface" in said["detectLocal.bridgeInterface"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("ipvs: {tcpTimeout: soon}", "ipvs.tcpTimeout: 'soon' is not a duration"),
        ("ipvs: {tcpTimeout: 500ms}", "ipvs.tcpTimeout: '0.5s' is not an IPVS timeout"),
        ("ipvs: {scheduler: fastest}", "ipvs.scheduler: 'fastest' is not one of 'auto', 'rr'"),
        ("ipvs: {strictARP: maybe}", "ipvs.strictARP: 'maybe' is neither true nor false"),
        ("ipvs: {excludeCIDRs: [10.0.0.1/40]}", "ipvs.excludeCIDRs: '10.0.0.1/40' is not a network"),
        ("hostnameOverride: ' '", "hostnameOverride: ' ' is not a host name: it is empty"),
        ("metricsBindAddress: localhost", "metricsBindAddress: 'localhost' is not an address to listen on"),
        ("iptables: {masqueradeBit: 32}", "iptables.masqueradeBit: 32 is not a bit"),
        ("conntrack: {maxPerCore: many}", "conntrack.maxPerCore: 'many' is not a valid integer range"),
        ("conntrack: {udpTimeout: 600h}", "conntrack.udpTimeout: '2160000s' is not a conntrack timeout"),
        ("clusterCIDR: pods", "clusterCIDR: 'pods' is not a network"),
        ("bindAddress: here", "bindAddress: 'here' is not an IP address"),
        ("detectLocalMode: Magic", "detectLocalMode: 'Magic' is not one of"),
        ("clientConnection: {kubeconfig: /does/not/exist}", "clientConnection.kubeconfig: File '/does/not/exist'"),
    ],
)
def test_a_bad_value_gets_one_line_that_names_its_field(
    fields: str, says: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(f"{HEAD}{fields}\n")
    assert exit_code("run", "--config", str(config)) == USAGE
    error = capsys.readouterr().err
    assert f"{config}: {says}" in error
    assert error.count("\n") == 1


def test_another_version_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n")
    assert exit_code("run", "--config", str(config)) == USAGE
    assert "kroute knows kubeproxy.config.k8s.io/v1alpha1" in capsys.readouterr().err


def test_no_field_is_both_used_and_unused() -> None:
    assert not USED.keys() & UNUSED.keys()
    assert not translate(yaml.safe_load(KUBEADM)).remarks


def test_a_command_without_such_settings_names_what_is_written_and_no_default(config: Path) -> None:
    config.write_text(f"{HEAD}conntrack: {{min: 7}}\n")
    given = ["--config", str(config), "--vip-interface", "eth0", "--external-ip-range", "203.0.113.0/24"]
    with capture_logs() as events:
        tell_of_unused_fields(director.make_context("director", given))
    assert [event["field"] for event in events] == ["conntrack.min"]
