"""The command line: flags take precedence over variables, variables over the file; each error is one clear line."""

from pathlib import Path

import pytest

from kroute.cli.terminal.output import USAGE
from kroute.settings import Exemption, Settings
from tests.unit.command_line import exit_code


def test_every_flag_of_run_reaches_the_settings(started: list[Settings], tmp_path: Path) -> None:
    assert (
        exit_code(
            *("run", "--manifests", str(tmp_path), "--node-name", "n1", "--node-ip", "10.0.0.1,fd00::1"),
            *("--dummy-interface", "d0", "--scheduler", "mh", "--masquerade-all", "--cluster-cidr", "10.1.0.0/16"),
            *("--masquerade-exempt", "10.2.0.0/16:10.3.0.0/16", "--masquerade-exempt", "10.4.0.0/16:10.5.0.0/16"),
            *("--masquerade-mark", "0x80", "--resync-period", "1m", "--drain-timeout", "2m"),
            *("--exclude-cidrs", "10.6.0.0/16", "--ipvs-tcp-timeout", "900s", "--ipvs-tcpfin-timeout", "120s"),
            *("--cleanup-on-exit", "--proc-sys", "/proc"),
            *("--ipvs-estimation", "off", "--ipvs-estimation-nice", "-5"),
            *(
                "--ipvs-udp-timeout",
                "300s",
                "--state-dir",
                "/run/other",
                "--log-format",
                "json",
                "--log-level",
                "debug",
            ),
        )
        == 0
    )
    assert started == [
        Settings(
            node_name="n1",
            manifests=tmp_path,
            node_ips=("10.0.0.1", "fd00::1"),
            dummy_interface="d0",
            scheduler="mh",
            masquerade_all=True,
            cluster_cidrs=("10.1.0.0/16",),
            masquerade_exemptions=(
                Exemption("10.2.0.0/16", "10.3.0.0/16"),
                Exemption("10.4.0.0/16", "10.5.0.0/16"),
            ),
            masquerade_mark=0x80,
            resync_period=60,
            drain_timeout=120,
            exclude_cidrs=("10.6.0.0/16",),
            ipvs_tcp_timeout=900,
            ipvs_tcpfin_timeout=120,
            ipvs_udp_timeout=300,
            ipvs_estimation=False,
            ipvs_estimation_nice=-5,
            state_dir=Path("/run/other"),
            proc_sys=Path("/proc"),
            cleanup_on_exit=True,
            log_format="json",
            log_level="debug",
        )
    ]


def test_a_flag_goes_before_a_variable_and_that_before_the_file(
    started: list[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "kroute.yaml"
    config.write_text("scheduler: lc\nresync-period: 40s\ndrain-timeout: 9\nmasquerade-all: true\n")
    monkeypatch.setenv("KROUTE_SCHEDULER", "sh")
    monkeypatch.setenv("KROUTE_RESYNC_PERIOD", "50s")
    assert exit_code("run", "--config", str(config), "--scheduler", "dh") == 0
    [settings] = started
    assert (settings.scheduler, settings.resync_period, settings.drain_timeout) == ("dh", 50, 9)
    assert settings.masquerade_all


def test_lists_in_the_file_are_several_values(started: list[Settings], tmp_path: Path) -> None:
    config = tmp_path / "kroute.yaml"
    config.write_text("cluster-cidr: [10.0.0.0/8, fd00::/64]\nmasquerade-exempt:\n- 10.0.0.0/8:10.1.0.0/16\n")
    assert exit_code("run", "--config", str(config)) == 0
    [settings] = started
    assert settings.cluster_cidrs == ("10.0.0.0/8", "fd00::/64")
    assert settings.masquerade_exemptions == (Exemption("10.0.0.0/8", "10.1.0.0/16"),)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--bogus"], "No such option"),
        (["run", "--scheduler", "fastest"], "'rr', 'wrr', 'lc'"),
        (["run", "--node-ip", "10.0.0"], "'10.0.0' is not an IP address"),
        (["run", "--manifests", "/does/not/exist"], "does not exist"),
        (["run", "--kubeconfig", "/does/not/exist"], "does not exist"),
        (["run", "--manifests", "/", "--master", "https://10.0.0.1:6443"], "--manifests cannot be used with"),
        (["run", "--resync-period", "0s"], "at least 1s"),
        (["run", "--config", "/does/not/exist"], "cannot read /does/not/exist"),
        (["director"], "Missing option '--vip-interface'"),
        (["director", "--vip-interface", "eth0"], "for example --external-ip-range 203.0.113.0/24"),
        (["director", "--vip-interface", "eth0", "--sync-id", "256"], "1<=x<=255"),
        (["director", "--vip-interface", "eth0", "--selector", "a=b c"], "'a=b c' is not a label selector"),
        (["director", "--vip-interface", "eth0", "--lease", "director"], "write NAMESPACE/NAME"),
        (["director", "--vip-interface", "eth0", "--lease-duration", "5s"], "--lease-renew-deadline must be less"),
        (["director", "--vip-interface", "eth0", "--check-interval", "0s"], "--check-interval must be at least 0.1s"),
        (["migrate"], "give one of --from and --to"),
        (["migrate", "--from", "kube-proxy", "--to", "kube-router"], "give one of --from and --to"),
        (["migrate", "--from", "cilium"], "'kube-proxy', 'kube-router'"),
        (["migrate", "--from", "kube-proxy", "--hand-over"], "--take-over goes with --from"),
        (["migrate", "--to", "kube-proxy", "--stay"], "--stay goes with --hand-over"),
        (["migrate", "--to", "kube-proxy", "--take-over"], "--take-over goes with --from"),
        (["migrate", "--from", "kube-proxy", "--node-port-range", "80,90"], "not one range of ports"),
        (["show", "-o", "xml"], "'table', 'wide', 'json', 'yaml', 'name'"),
        (["show", "pods"], "write kroute show [services | service NAMESPACE/NAME | policies | peers |"),
        (["show", "service", "web"], "write NAMESPACE/NAME"),
        (["show", "-w", "services"], "-w shows all virtual servers"),
        (["show", "--sort-by", "bytes"], "go with -w"),
        (["explain", "10.0.0"], "write ADDRESS:PORT"),
        (["explain", "fd00::1::80"], "write ADDRESS:PORT, [IPV6]:PORT"),
        (["explain", "10.0.0.1:80/icmp"], "write TCP, UDP, SCTP"),
        (["explain", "10.0.0.1:80", "--from", "here"], "'here' is not an IP address"),
        (["plan", "--detect-local-mode", "BridgeInterface"], "need each other"),
        (["run", "--policy-default-deny"], "--policy-default-deny needs --network-policies"),
        (["run", "--policy-cuts-connections"], "--policy-cuts-connections needs --network-policies"),
        (["run", "--policy-log"], "--policy-log needs --network-policies"),
        (["plan", "--allocate-load-balancer-ips"], "needs an API server and --loadbalancer-ip-range"),
        (["check", "--resync-period", "0s"], "--resync-period must be at least 1s"),
        (["plan", "--direct-return", "--masquerade-mark", "0x4"], "must be different bits"),
        (["frobnicate"], "No such command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_gets_one_line_and_exit_code_2(
    arguments: list[str], says: str, started: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == USAGE
    assert started == []
    output = capsys.readouterr()
    assert output.out == ""
    assert says in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("bogus: 1", "'bogus' is not a setting; allowed: advertise-cluster-ip, advertise-external-ip"),
        ("- a", "`name: value` pairs"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_allowed(
    content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "kroute.yaml"
    config.write_text(content)
    assert exit_code("run", "--config", str(config)) == USAGE
    error = capsys.readouterr().err
    assert str(config) in error
    assert says in error


def test_an_option_that_is_no_setting_is_not_read_from_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "kroute.yaml"
    config.write_text("output: json\n")
    assert exit_code("plan", "--config", str(config)) == USAGE
    assert "'output' is not a setting; allowed: advertise-cluster-ip, advertise-external-ip" in capsys.readouterr().err


def test_a_value_in_the_file_is_checked_like_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "kroute.yaml"
    config.write_text("masquerade-mark: 3\n")
    assert exit_code("run", "--config", str(config)) == USAGE
    assert "single bit" in capsys.readouterr().err
