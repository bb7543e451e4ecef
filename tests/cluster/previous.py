"""The previous release of kroute on the cluster: its image, and its manifests, by the commands of its own documents."""

import json
import shutil
import subprocess
from pathlib import Path

from tests.cluster import images
from tests.cluster.images import Image
from tests.cluster.installation import IMAGE, rolls_out
from tests.cluster.machines import Cluster
from tests.cluster.packages import once, run
from tests.lab.places import PROJECT, cache
from tests.releases import COMMITS

VERSION = "0.1.0"
_COMMIT = COMMITS[VERSION]
_RECIPE = [
    PROJECT / name
    for name in ("scripts/image", "deploy/Dockerfile", "deploy/Dockerfile.dockerignore", "deploy/install")
]


def missing() -> str | None:
    """Why there is no previous release here; None if there is."""
    found = subprocess.run(["git", "-C", PROJECT, "cat-file", "-e", f"{_COMMIT}^{{commit}}"], check=False)
    return f"the history of this clone does not reach back to {VERSION}" if found.returncode else None


def install(cluster: Cluster) -> None:
    """Install it with kustomize, the only way that it has, and wait until it serves."""
    made = _made()
    for node in cluster.nodes.values():
        ctr = f"{images.containerd()}/usr/bin/ctr --namespace=k8s.io"
        cluster.on(node, f"{ctr} images import {made / 'images.tar'}")
    settings = {
        "KUBERNETES_SERVICE_HOST": cluster.control.address,
        "KROUTE_CLUSTER_CIDR": "10.244.0.0/16,fd00:10:244::/56",
    }
    overlay = cluster.directory / "overlay"
    shutil.copytree(made / "tree/deploy/kustomize/base", overlay / "base")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["base"],
        "images": [{"name": "kroute", "newName": IMAGE}],
        "configMapGenerator": [
            {"name": "kroute", "behavior": "merge", "literals": [f"{name}={it}" for name, it in settings.items()]}
        ],
    }
    (overlay / "kustomization.yaml").write_text(json.dumps(kustomization))
    cluster.kubectl("apply", "-k", str(overlay))
    rolls_out(cluster)


def _made() -> Path:
    """A directory with the release's `tree`, and its image in `images.tar`: its program, made as this version's is."""

    def make(directory: Path) -> None:
        tree = directory / "tree"
        (tree / "scripts").mkdir(parents=True)
        run("git", "-C", PROJECT, "archive", f"--output={directory}/tree.tar", _COMMIT)
        run("tar", "-C", tree, "-xf", directory / "tree.tar")
        for file in _RECIPE:
            shutil.copy(file, tree / file.relative_to(PROJECT))
        run(tree / "scripts/image", cache() / "image", directory / "image")
        root = (directory / "image").resolve()
        image = Image([f"{IMAGE}:{VERSION}"], (root,), json.loads(Path(f"{root}.json").read_text()))
        images.write_archive([image], directory / "images.tar")

    return once("previous", "".join([_COMMIT, *(file.read_text() for file in (*_RECIPE, Path(__file__)))]), make)
