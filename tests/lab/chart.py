"""The Helm chart, rendered by helm."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.lab.manifests import DEPLOY
from tests.lab.objects import Object

CHART = DEPLOY / "helm/kroute"
REQUIRED = {"apiServer": {"host": "192.0.2.1"}}
HELM = Path(sys.executable).parent / "helm"


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm with these arguments. `values`, if given, are its values. It ends before collecting garbage pays."""
    return subprocess.run(
        [HELM, *arguments, *(("--values", "-") if values is not None else ())],
        input=json.dumps(values) if values is not None else "",
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GOGC": "off"},
    )


def render_chart(values: Mapping[str, Any], chart: Path = CHART) -> list[Object]:
    """The objects that `helm install --namespace kube-system` would make, with an API server if none is given."""
    complete = json.dumps({**REQUIRED, **values})
    return [it for it in yaml.load_all(_rendered(chart, complete), yaml.CSafeLoader) if it]


@functools.cache
def _rendered(chart: Path, values: str) -> str:
    done = helm("template", "kroute", str(chart), "--namespace", "kube-system", values=json.loads(values))
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(values: Mapping[str, Any]) -> str:
    """What helm says when it refuses these values."""
    done = helm("template", "kroute", str(CHART), values={**REQUIRED, **values})
    assert done.returncode != 0, done.stdout
    return done.stderr
