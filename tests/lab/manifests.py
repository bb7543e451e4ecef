"""The content of deploy/ as a cluster gets it: rendered kustomizations, and the image's settings."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from tests.lab.objects import Object
from tests.lab.places import PROJECT

DEPLOY = PROJECT / "deploy"
KUSTOMIZE = DEPLOY / "kustomize"


@functools.cache
def kustomizations() -> tuple[str, ...]:
    """Every directory below deploy/kustomize that can be applied, by its path there."""
    return tuple(
        sorted(
            str(file.parent.relative_to(KUSTOMIZE))
            for file in KUSTOMIZE.rglob("kustomization.yaml")
            if yaml.load(file.read_text(), yaml.CSafeLoader)["kind"] == "Kustomization"
        )
    )


@functools.cache
def render(directory: Path) -> list[Object]:
    """The objects that `kubectl apply -k` would send."""
    kubectl = Path(sys.executable).parent / "kubectl"
    environment = {**os.environ, "GOGC": "off"}  # it ends before collecting garbage pays
    command = [kubectl, "kustomize", directory]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def with_component(name: str, directory: Path, *others: str) -> list[Object]:
    """The base with components of `deploy/kustomize/components`, in this order."""
    overlay = directory / "kustomization.yaml"
    paths = [Path("/", KUSTOMIZE, it) for it in ("base", *(f"components/{it}" for it in (name, *others)))]
    base, *components = (str(Path(*[".."] * len(directory.parts[1:]), *it.parts[1:])) for it in paths)
    overlay.write_text(json.dumps({"resources": [base], "components": components}))
    return render(directory)


def the(kind: str, objects: list[Object], name: str | None = None) -> Object:
    """The only object of this kind, or the one with this name."""
    [found] = [it for it in objects if it["kind"] == kind and name in {None, it["metadata"]["name"]}]
    return found


def granted(role: Object) -> set[tuple[str, str, str]]:
    """The permissions of a Role or a ClusterRole: API group, resource and verb."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def image_environment() -> dict[str, str]:
    """The variables that the Dockerfile sets."""
    return dict(word.split("=", 1) for instruction in _instructions("ENV") for word in instruction.split())


def _instructions(name: str) -> list[str]:
    """The arguments of this instruction in the Dockerfile's last stage, with continued lines joined."""
    last_stage = (DEPLOY / "Dockerfile").read_text().rpartition("\nFROM ")[2].replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", last_stage, re.MULTILINE)
