"""The workflow for a public CI does what a person does, by the same targets."""

import re

import yaml

from release import PROJECT, images

WORKFLOW = yaml.safe_load((PROJECT / ".github/workflows/release.yml").read_text())
JOBS = WORKFLOW["jobs"]


def commands(job: str) -> str:
    return "\n".join(step.get("run", "") for step in JOBS[job]["steps"])


def test_nothing_is_published_before_the_tests_have_passed() -> None:
    assert ".ci/run" in commands("test")
    assert (JOBS["build"]["needs"], JOBS["publish"]["needs"]) == ("test", "build")


def test_every_target_that_it_makes_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    made = {name for job in JOBS for name in re.findall(r"^(?:PULL=yes )?make ([a-z]+)", commands(job), re.MULTILINE)}
    assert made
    assert made <= targets


def test_it_builds_for_every_architecture_and_publishes_every_variant() -> None:
    built = {it["architecture"] for it in JOBS["build"]["strategy"]["matrix"]["include"]}
    assert built == {"amd64", "arm64"}
    for variant in images.VARIANTS.values():
        assert variant in commands("publish")


def test_only_the_job_that_publishes_may_write() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert {job for job, it in JOBS.items() if "permissions" in it} == {"publish"}


def test_every_action_is_named_by_a_version() -> None:
    used = {step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step}
    assert used
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@(v\d+|[0-9a-f]{40})", it) for it in used)
