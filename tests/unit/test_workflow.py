"""The workflow for a public CI does what a person does, by the same targets, and no job may do more than it needs."""

import hashlib
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from release import PROJECT, images

TEXT = (PROJECT / ".github/workflows/release.yml").read_text()
WORKFLOW = yaml.safe_load(TEXT)
JOBS = WORKFLOW["jobs"]
READ = {"contents": "read"}
SIGN = {"id-token": "write", "attestations": "write"}


_DIGEST = 'while [ $# -gt 0 ]; do [ "$1" != --digestfile ] || echo sha256:ab >"$2"; shift; done\n'
"""What makes a program write the file that its flag names."""


def commands(job: str) -> str:
    return "\n".join(step.get("run", "") for step in JOBS[job]["steps"])


def actions(job: str) -> list[str]:
    return [step["uses"].partition("@")[0] for step in JOBS[job]["steps"] if "uses" in step]


def test_nothing_is_published_before_the_tests_have_passed() -> None:
    assert ".ci/run" in commands("test")
    assert {job: it.get("needs") for job, it in JOBS.items()} == {
        "test": None,
        "build": "test",
        "image": "build",
        "publish": "image",
    }


def test_only_a_tag_is_published() -> None:
    for job in ("image", "publish"):
        assert JOBS[job]["if"] == "github.ref_type == 'tag'"


def test_every_target_that_it_makes_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    made = {name for job in JOBS for name in re.findall(r"^(?:PULL=yes )?make ([a-z]+)", commands(job), re.MULTILINE)}
    assert made
    assert made <= targets


def test_it_builds_for_every_architecture_and_publishes_every_variant() -> None:
    built = {it["architecture"] for it in JOBS["build"]["strategy"]["matrix"]["include"]}
    assert built == {"amd64", "arm64"}
    assert len(images.VARIANTS) == len(re.findall(r"digest-?\w* }}", TEXT))


def test_the_images_are_pushed_and_signed_by_the_names_that_the_manifests_have(tmp_path: Path) -> None:
    """buildah and cosign only say what they are told."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("buildah", "cosign"):
        (programs / name).write_text(f'#!/bin/bash\ncat >/dev/null\necho {name} "$@" >>log\n{_DIGEST}')
        (programs / name).chmod(0o755)
    for architecture in ("amd64", "arm64"):
        directory = tmp_path / f"release-{architecture}"
        directory.mkdir()
        for file in ("kroute-1.0", "kroute-1.0-iptables", "kroute-bird-2.1"):
            (directory / f"{file}-linux-{architecture}.oci.tar").touch()
    [script] = [step["run"] for step in JOBS["image"]["steps"] if step.get("id") == "push"]
    own = {"GITHUB_REPOSITORY": "Owner/Kroute", "GITHUB_REF_NAME": "v1.0", "GITHUB_OUTPUT": "output"}
    variables = {**own, "PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path), "USERNAME": "me", "TOKEN": "x"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "log").read_text()
    added = re.findall(r"manifest add \S+ oci-archive:(\S+)", told)
    assert sorted(added) == sorted(str(it.relative_to(tmp_path)) for it in tmp_path.glob("release-*/*"))
    image = "ghcr.io/owner/kroute"
    assert re.findall(r"docker://(\S+)", told) == [f"{image}:1.0", f"{image}:1.0-iptables", f"{image}-bird:2.1"]
    assert re.findall(r"cosign sign .* (\S+)@", told) == [image, image, f"{image}-bird"]
    assert len((tmp_path / "output").read_text().splitlines()) == 1 + len(images.VARIANTS)


def test_each_job_may_do_what_it_needs_and_nothing_else() -> None:
    assert WORKFLOW["permissions"] == {}
    assert {job: it["permissions"] for job, it in JOBS.items()} == {
        "test": READ,
        "build": READ,
        "image": {"packages": "write", **SIGN},
        "publish": {"contents": "write", **SIGN},
    }


def test_a_privileged_container_has_no_right_but_to_read_and_keeps_no_token() -> None:
    privileged = {job for job, it in JOBS.items() if "--privileged" in it.get("container", {}).get("options", "")}
    assert privileged == {"test", "build"}
    for job in privileged:
        assert JOBS[job]["permissions"] == READ
        [checkout] = [step for step in JOBS[job]["steps"] if step.get("uses", "").startswith("actions/checkout@")]
        assert checkout["with"]["persist-credentials"] is False


def test_containers_are_the_debian_of_the_image_by_its_digest() -> None:
    [base] = set(
        re.findall(r"^FROM (debian:\S+@sha256:[0-9a-f]{64})", (PROJECT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    )
    assert {it["container"]["image"] for it in JOBS.values() if "container" in it} == {base}


def test_every_action_is_named_by_its_commit_and_says_its_version() -> None:
    used = re.findall(r"uses: (.*)", TEXT)
    assert used
    for it in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", it), it


def test_no_value_of_github_becomes_part_of_a_script() -> None:
    for job in JOBS:
        assert "${{" not in commands(job)


def test_the_image_and_the_files_are_signed_and_their_provenance_is_attested() -> None:
    assert "cosign sign --yes" in commands("image")
    assert actions("image").count("actions/attest") == len(images.VARIANTS)
    assert "cosign sign-blob --yes --bundle SHA256SUMS.sigstore.json SHA256SUMS" in commands("publish")
    [attested] = [step["with"] for step in JOBS["publish"]["steps"] if "actions/attest@" in step.get("uses", "")]
    assert attested == {"subject-checksums": "dist/SHA256SUMS"}
    names = [step.get("name", step.get("run", step.get("uses", ""))) for step in JOBS["publish"]["steps"]]
    assert "gh release create" in names[-1], "after what is signed and checked"


class TestFilesOfBothArchitectures:
    """The step that puts the files together, run as the runner runs it."""

    def collect(self, directory: Path) -> subprocess.CompletedProcess[str]:
        [script] = [step["run"] for step in JOBS["publish"]["steps"] if step.get("name", "").startswith("the files")]
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        return subprocess.run(command, cwd=directory, check=False, capture_output=True, text=True)

    @pytest.fixture
    def built(self, tmp_path: Path) -> Path:
        for architecture in ("amd64", "arm64"):
            made = tmp_path / f"release-{architecture}"
            made.mkdir()
            for name in ("install.yaml", "kroute-1.2.3.tgz"):
                (made / name).write_text("the same")
            for name in (f"kroute-1.2.3-linux-{architecture}.oci.tar", "kroute-1.2.3.cdx.json", "SHA256SUMS"):
                (made / name).write_text(f"of {architecture}")
        return tmp_path

    def test_each_file_has_its_sum(self, built: Path) -> None:
        assert self.collect(built).returncode == 0
        sums = dict(reversed(line.split("  ")) for line in (built / "dist/SHA256SUMS").read_text().splitlines())
        files = {file.name: file for file in (built / "dist").iterdir() if file.name != "SHA256SUMS"}
        assert sums == {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
        assert sorted(files) == [
            "install.yaml",
            "kroute-1.2.3-arm64.cdx.json",
            "kroute-1.2.3-linux-amd64.oci.tar",
            "kroute-1.2.3-linux-arm64.oci.tar",
            "kroute-1.2.3.cdx.json",
            "kroute-1.2.3.tgz",
        ]

    def test_a_file_that_should_not_differ_and_does_ends_the_release(self, built: Path) -> None:
        (built / "release-arm64/install.yaml").write_text("another")
        assert self.collect(built).returncode != 0
        assert not (built / "dist/SHA256SUMS").exists()
