"""On which file system a path is, by the longest mount point above it; of two at one place the later one covers."""

from pathlib import Path

import pytest

from kroute.checks.finding import Level
from kroute.checks.node_checks import check_state_directory
from kroute.kernel import mounts
from kroute.runtime.state_dir import warn_if_persistent

MOUNTS = """\
21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
22 21 0:20 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=10%
23 21 0:21 / /srv/with\\040space rw - xfs /dev/vdb rw
24 22 0:22 / /run/covered rw - ext4 /dev/vdc rw
25 22 0:23 / /run/covered rw - tmpfs tmpfs rw
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/kroute", "ext4"),
        ("/run/kroute", "tmpfs"),
        ("/running", "ext4"),
        ("/srv/with space/kroute", "xfs"),
        ("/run/covered/x", "tmpfs"),
    ],
)
def test_the_longest_mount_point_counts(path: str, kind: str, table: Path) -> None:
    assert mounts.file_system_of(Path(path), table) == kind


def test_without_procfs_nothing_is_known(tmp_path: Path) -> None:
    assert mounts.file_system_of(Path("/run"), tmp_path / "none") == ""
    assert mounts.file_system_of(Path("/proc")) == "proc"


def test_a_state_directory_that_survives_a_reboot_is_a_warning_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import structlog

    kinds = {"/run/kroute": "tmpfs", "/var/lib/kroute": "ext4", "/unknown": ""}
    for module in ("kroute.checks.node_checks", "kroute.runtime.state_dir"):
        monkeypatch.setattr(f"{module}.file_system_of", lambda path: kinds[str(path)])
    assert check_state_directory(Path("/run/kroute")) == check_state_directory(Path("/unknown")) == []
    [finding] = check_state_directory(Path("/var/lib/kroute"))
    assert finding.level is Level.WARNING
    assert "is on ext4, which survives a reboot" in finding.message
    with structlog.testing.capture_logs() as lines:
        for path in kinds:
            warn_if_persistent(Path(path))
    assert [(it["event"], it["path"]) for it in lines] == [("state_dir.survives_reboot", "/var/lib/kroute")]
