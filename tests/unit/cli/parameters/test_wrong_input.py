"""What somebody types or sets by mistake gets one line with the way out, and nothing is ignored silently."""

from pathlib import Path

import pytest
import structlog

from kroute.cli.main import COMMANDS, load
from kroute.settings import DEFAULTS, PRIMARY, Settings
from tests.unit.cli.parameters.service_links import variables_of_a_service
from tests.unit.command_line import exit_code

# Variables


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("KROUTE_CLUSTR_CIDR", "did you mean KROUTE_CLUSTER_CIDR?"),
        ("KROUTE_MANIFEST", "did you mean KROUTE_MANIFESTS?"),
        ("KROUTE_VIP_INTERFACES", "did you mean KROUTE_VIP_INTERFACE?"),
        ("KROUTE_X", "docs/settings.md names all; remove it"),
        ("KROUTE_METRICS_PORT", "KROUTE_METRICS"),
    ],
)
@pytest.mark.parametrize("command", ["run", "check", "show"])
def test_a_variable_that_no_command_reads_is_an_error(
    name: str, meant: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "10.0.0.0/8")
    assert exit_code(command) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"kroute: the variable {name} is not a setting of kroute: ")
    assert meant in error
    assert error.count("\n") == 1


def test_one_that_another_command_reads_is_none(started: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KROUTE_VIP_INTERFACE", "eth0")
    assert exit_code("run") == 0
    assert len(started) == 1


@pytest.mark.parametrize("service", ["kroute", "kroute-metrics", "kroute-director-0"])
def test_those_that_kubernetes_makes_of_a_service_are_none(
    service: str, started: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables_of_a_service(service, "10.96.0.20", {"metrics": 10249, "dns": 53}, "UDP").items():
        monkeypatch.setenv(name, value)
    assert exit_code("run") == 0
    assert len(started) == 1


@pytest.mark.parametrize("arguments", [("help",), ("completion", "bash"), ()], ids=" ".join)
def test_help_is_there_whatever_the_variables_are(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KROUTE_CLUSTR_CIDR", "10.0.0.0/8")
    assert exit_code(*arguments) == 0


def test_no_setting_is_named_like_a_variable_of_a_service() -> None:
    """Else it could not be told from one, and a wrong value would count as nobody's."""
    names = {name for it in COMMANDS for name in map(str, (each.envvar for each in load(it).params)) if name != "None"}
    assert "KROUTE_CLUSTER_CIDR" in names
    assert not [name for name in names if name.endswith(("_PORT", "_SERVICE_HOST", "_ADDR", "_PROTO"))]


# Words


@pytest.mark.parametrize("word", ["off", "OFF", "Off"])
def test_a_word_counts_in_any_case(word: str, started: list[Settings]) -> None:
    assert exit_code("run", "--strict-arp", word, "--hairpin", word, "--metrics-bind-address", word) == 0
    assert exit_code("run", "--nodeport-addresses", "PRIMARY", "--ipvs-estimation", "LEAVE") == 0
    first, second = started
    assert (first.strict_arp, first.hairpin, first.metrics_bind_address) == (False, False, None)
    assert (second.nodeport_addresses, second.ipvs_estimation) == ((PRIMARY,), None)


def test_help_spells_them_as_they_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run", "--help-all") == 0
    text = capsys.readouterr().out
    assert all(it in text for it in ("CIDR[,CIDR]|primary", "IP:PORT|off", "[on|off|leave]", "FLAG[,FLAG]|none"))


# The log at the start


def test_settings_that_are_not_the_defaults_are_logged_at_the_start(started: list[Settings], tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        assert exit_code("run", "--node-name=n1", "--cluster-cidr=10.1.0.0/16", "--master=https://u:pw@10.0.0.1") == 0
    [line] = [it for it in lines if it["event"] == "settings.in_force"]
    del line["log_format"]  # it depends on the terminal
    assert line == {
        "event": "settings.in_force",
        "log_level": "info",
        "node_name": "n1",
        "cluster_cidr": "10.1.0.0/16",
        "master": "https://10.0.0.1",
    }


# Flags of other proxies


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "--proxy-mode=ipvs"), "--proxy-mode is a flag of kube-proxy, which `kroute show` does not take"),
        (("director", "--masquerade-all"), "--masquerade-all is a flag of kube-proxy and kube-router"),
        (("cleanup", "--run_service_proxy=true"), "--run-service-proxy is a flag of kube-router"),
        (("run", "--run-service-proxy=false"), "kroute always serves Services: leave this out here"),
        (("run", "--cluster-cidr"), "Option '--cluster-cidr' requires an argument"),
        (("run", "--cluster-cdir", "10.0.0.0/8"), "--cluster-cidr"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_flag_that_a_command_does_not_take_gets_the_right_hint(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_the_mode_and_switches_of_kube_proxy_are_accepted(started: list[Settings]) -> None:
    assert exit_code("run", "--proxy-mode", "iptables", "--masquerade-all=true", "--run-service-proxy=true") == 0
    assert started[0].masquerade_all


# Files and places


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("web.yaml", "a: [", "web.yaml cannot be read: it is not YAML: line "),
        ("web.json", "{", "web.json cannot be read: it is not JSON"),
        ("web.yaml", "", "web.yaml cannot be read: it is empty"),
    ],
)
def test_a_plan_fails_for_an_unreadable_manifest(
    name: str, content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    assert exit_code("plan", "--manifests", tmp_path, "--state-dir", tmp_path / "state") == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan", "run", "cleanup"])
def test_an_interface_of_the_node_is_refused_as_the_dummy(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every machine has lo, which is no dummy."""
    source = () if command == "cleanup" else ("--manifests", tmp_path)
    state = tmp_path / "state"
    with structlog.testing.capture_logs() as lines:
        assert exit_code(command, *source, "--dummy-interface", "lo", "--state-dir", state) == 1
    said = "".join(capfd.readouterr()) + "".join(str(it.get("prerequisite", "")) for it in lines)
    assert "--dummy-interface lo: that is an interface of this node (a device), not a dummy" in said
    assert f"such as {DEFAULTS.dummy_interface}" in said
    assert not state.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "No such file or directory"), ("a: [", "line 1: "), ("scheduler: [rr", "line 1: ")],
)
def test_a_configuration_that_cannot_be_read_is_said_without_the_librarys_words(
    content: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kroute.yaml"
    if content is not None:
        path.write_text(content)
    assert exit_code("run", "--config", path) == 2
    error = capsys.readouterr().err
    assert f"cannot read {path}: {says}" in error
    assert "Errno" not in error
    assert "string>" not in error
