"""The Helm chart as an archive, and what it renders with its defaults: install.yaml."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release import PROJECT, Source
from release.archives import gzipped, tar

CHART = PROJECT / "deploy/helm/kroute"
_HEADER = """\
# kroute {version} on every node of a cluster. Before you apply it, replace
#   API-SERVER                by the API server's own address, or that of a load balancer in front of it
#   image: kroute             by where your nodes find the image
# and put in, beside the former, KROUTE_CLUSTER_CIDR: the networks of the pods. docs/deploy.md has the commands.
"""


def build(source: Source, output: Path, image: str = "kroute") -> tuple[Path, Path]:
    """Write the chart and install.yaml, both with this image by default. Returns their paths."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "kroute")
        shutil.copytree(CHART, copy)
        values = copy / "values.yaml"
        values.write_text(
            re.sub(r"^  repository: kroute$", f"  repository: {image}", values.read_text(), flags=re.MULTILINE)
        )
        chart = output / f"kroute-{source.version}.tgz"
        chart.write_bytes(gzipped(tar(copy, source.epoch, prefix="kroute/")))
        rendered = _render(copy)
    manifest = output / "install.yaml"
    manifest.write_text(_HEADER.format(version=source.version) + rendered)
    return chart, manifest


def _render(chart: Path) -> str:
    helm = Path(sys.executable).parent / "helm"
    command = [helm, "template", "kroute", chart, "--namespace", "kube-system", "--set", "apiServer.host=API-SERVER"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
