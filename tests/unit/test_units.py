"""The units of systemd that the Debian package has."""

import re
from pathlib import Path

import pytest
import yaml

from kroute.checks.preflight import DIRECTOR, NODE
from kroute.firewall.backend import BACKENDS
from kroute.http.server import MOST_CONNECTIONS
from kroute.settings import DEFAULTS
from tests.lab.manifests import DEPLOY, the, with_component
from tests.lab.xtables_lock import XTABLES_LOCK as LOCK


def settings_of(unit: str) -> dict[str, str]:
    lines = (DEPLOY / unit).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


@pytest.mark.parametrize("unit", ["kroute.service", "kroute-director.service"])
class TestUnit:
    """The services of systemd keep kroute to what it needs."""

    def test_it_has_the_capabilities_that_kroute_asks_for_and_that_of_modprobe(self, unit: str) -> None:
        of_firewalls = {name for backend in BACKENDS.values() for name in backend.capabilities}
        needs = {
            "kroute.service": {*NODE.capabilities, *of_firewalls},
            "kroute-director.service": set(DIRECTOR.capabilities),
        }
        needed = {f"CAP_{name}" for name in needs[unit]}
        assert set(settings_of(unit)["CapabilityBoundingSet"].split()) == needed | {"CAP_SYS_MODULE"}
        assert settings_of(unit)["NoNewPrivileges"] == "yes"

    def test_it_is_tried_again_without_end(self, unit: str) -> None:
        settings = settings_of(unit)
        assert (settings["Restart"], settings["StartLimitIntervalSec"]) == ("always", "0")
        assert int(settings["RestartSec"]) <= int(settings["RestartMaxDelaySec"]) <= 60

    def test_it_has_a_man_page_and_the_program_is_on_the_path(self, unit: str) -> None:
        settings = settings_of(unit)
        program, command, *_ = settings["ExecStart"].split()
        assert program == "/usr/bin/kroute"
        assert settings["Documentation"] == f"man:kroute-{command}(8)"

    def test_it_may_have_many_more_files_than_connections(self, unit: str) -> None:
        assert int(settings_of(unit)["LimitNOFILE"]) >= 64 * MOST_CONNECTIONS

    def test_it_may_write_what_kroute_writes_and_nothing_else(self, unit: str) -> None:
        settings = settings_of(unit)
        assert (settings["ProtectSystem"], settings["ReadOnlyPaths"]) == ("strict", "/run")
        assert settings["RuntimeDirectory"] == "kroute"
        others = {f"-{LOCK}", f"-{DEFAULTS.bird_directory}"} if unit == "kroute.service" else set()
        assert set(settings.get("ReadWritePaths", "").split()) == others
        assert "ProtectKernelTunables" not in settings  # it sets sysctls
        assert "ProtectKernelModules" not in settings  # modprobe is run for it

    def test_it_is_ended_at_the_memory_that_a_container_may_have_before_others_are(self, unit: str) -> None:
        values = yaml.safe_load((DEPLOY / "helm/kroute/values.yaml").read_text())
        assert int(settings_of(unit)["OOMScoreAdjust"]) < 0
        assert f"{settings_of(unit)['MemoryMax']}i" == values["resources"]["limits"]["memory"]

    def test_it_has_every_kind_of_socket_that_kroute_opens(self, unit: str) -> None:
        code = "\n".join(file.read_text() for file in (DEPLOY.parent / "kroute").rglob("*.py"))
        opened = set(re.findall(r"socket\.(AF_[A-Z0-9]+)", code))
        assert opened - {"AF_UNSPEC"} <= set(settings_of(unit)["RestrictAddressFamilies"].split())


def test_birds_unit_is_the_container_of_the_daemonset(tmp_path: Path) -> None:
    unit = settings_of("kroute-bird.service")
    pod = the("DaemonSet", with_component("announce", tmp_path), "kroute-bird")["spec"]["template"]["spec"]
    [waiting], [bird] = pod["initContainers"], pod["containers"]
    wait = waiting["command"][-1].partition("; ")[2]
    assert unit["ExecStart"] == f"/bin/sh -c '{wait}; exec {' '.join(bird['command'])}'"
    assert f"exec {' '.join(bird['lifecycle']['preStop']['exec']['command'])}'" in unit["ExecStop"]
    assert unit["TimeoutStopSec"] == str(pod["terminationGracePeriodSeconds"])
    granted = bird["securityContext"]["capabilities"]["add"]
    assert unit["CapabilityBoundingSet"].split() == [f"CAP_{name}" for name in granted]
    assert f"{unit['MemoryMax']}i" == bird["resources"]["limits"]["memory"]
    assert (unit["ReadOnlyPaths"], unit["ReadWritePaths"]) == ("/run", f"-{DEFAULTS.bird_directory}")
    assert (unit["Restart"], unit["NoNewPrivileges"], unit["ProtectSystem"]) == ("always", "yes", "strict")


def test_the_package_makes_what_its_units_may_write_and_not_make() -> None:
    lines = (DEPLOY / "debian/tmpfiles.conf").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        f"f {LOCK} 0600 root root -",
        f"d {DEFAULTS.bird_directory} 0755 root root -",
    ]
    assert "systemd-tmpfiles --create kroute.conf" in (DEPLOY / "debian/postinst").read_text()
