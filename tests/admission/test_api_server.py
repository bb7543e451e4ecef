"""A real API server with the policy for annotations refuses what kroute would complain of, and no more."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from kroute.base.schedulers import SCHEDULERS
from tests.admission import control_plane
from tests.admission.control_plane import LONGEST_START, ApiServer
from tests.admission.policy import MANIFEST
from tests.admission.samples import ANNOTATIONS, complaints
from tests.lab.objects import Object

pytestmark = pytest.mark.skipif(control_plane.MISSING is not None, reason=str(control_plane.MISSING))

OLD = {"kroute.io/schedular": "rr", "kroute.io/slow-start": "soon", "example.org/team": "blue"}
"""Annotations of a Service that is older than the policy."""


def item(name: str, annotations: Mapping[str, str]) -> Object:
    metadata = {"name": name, "annotations": dict(annotations)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}}


def refusals(server: ApiServer, items: list[Object]) -> dict[str, str]:
    """What the policy says of each of these new Services that it refuses. Nothing else may be wrong with one."""
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    done = server.kubectl("create", "--dry-run=server", "-f", "-", content=content)
    refused = re.findall(
        r'services "([^"]+)" is (?:forbidden|invalid: ): ValidatingAdmissionPolicy .*? denied request: (.*)',
        done.stderr,
    )
    assert len(refused) + done.stdout.count(" created ") == len(items), done.stderr
    return dict(refused)


def until(holds: Callable[[], bool]) -> None:
    """Wait for a state; an API server that never gets there ends the test."""
    end = time.monotonic() + LONGEST_START
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the policy in force, and with a Service `old` that was there before."""
    directory: Path = tmp_path_factory.mktemp("control-plane")
    with control_plane.running(directory) as found:
        created = found.kubectl("create", "-f", "-", content=json.dumps(item("old", OLD)))
        assert created.returncode == 0, created.stderr
        applied = found.kubectl("apply", "-f", str(MANIFEST))
        assert applied.returncode == 0, applied.stderr
        until(lambda: bool(refusals(found, [item("new", {"kroute.io/schedular": "rr"})])))
        yield found


def test_it_refuses_exactly_what_kroute_would_complain_of(server: ApiServer) -> None:
    items = {f"s{number}": annotations for number, annotations in enumerate(ANNOTATIONS)}
    refused = refusals(server, [item(name, annotations) for name, annotations in items.items()])
    wrong = {name for name, annotations in items.items() if complaints(_own(annotations))}
    assert {name: items[name] for name in refused.keys() - wrong} == {}, "refused, and kroute obeys them"
    assert {name: items[name] for name in wrong - refused.keys()} == {}, "admitted, and kroute does not obey them"
    assert 100 < len(wrong) < len(items) - 100


def _own(annotations: Mapping[str, str]) -> dict[str, str]:
    """Those that the policy judges, and what chooses the scheduler if that is valid."""
    return {
        name: value
        for name, value in annotations.items()
        if name.lower().startswith("kroute.io/") or (name.endswith("service.scheduler") and value in SCHEDULERS)
    }


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        (
            {"kroute.io/schedular": "rr"},
            "annotation kroute.io/schedular is not known to kroute. Known: kroute.io/scheduler, ",
        ),
        (
            {"kroute.io/service.hairpin": "maybe"},
            "annotation kroute.io/service.hairpin has a value that kroute does not know. Allowed: on, off",
        ),
        (
            {"kroute.io/scheduler": "rr", "kroute.io/locality": "prefer-node"},
            "annotation kroute.io/locality has no effect with the scheduler rr. Choose one of wrr, wlc, sed, ",
        ),
        (
            {"kroute.io/scheduler": "rr", "kroute.io/service.schedflags": "sh-port"},
            "annotation kroute.io/service.schedflags has a flag of another scheduler than rr",
        ),
    ],
)
def test_the_message_names_the_annotation_and_what_is_allowed(
    server: ApiServer, annotations: dict[str, str], message: str
) -> None:
    assert refusals(server, [item("new", annotations)])["new"].startswith(message)


def test_a_service_with_bad_annotations_may_be_changed_as_long_as_these_stay(server: ApiServer) -> None:
    def annotate(*changes: str) -> str:
        return server.kubectl("annotate", "service", "old", "--overwrite", *changes).stderr

    assert annotate("example.org/team=red") == ""
    assert server.kubectl("label", "service", "old", "tier=front").stderr == ""
    assert "kroute.io/wieghts is not known" in annotate("kroute.io/wieghts=zone/a=3")
    assert "kroute.io/slow-start has a value" in annotate("kroute.io/slow-start=later")
    assert annotate("kroute.io/slow-start=30s") == ""
    assert "kroute.io/slow-start has no effect with the scheduler lc" in annotate("kroute.io/scheduler=lc")
    assert annotate("kroute.io/schedular-", "kroute.io/scheduler=wlc") == ""


def test_a_hostile_number_of_annotations_is_refused_or_admitted_and_blocks_nobody(server: ApiServer) -> None:
    many = {f"kroute.io/x{number}": "y" for number in range(3000)}
    long = {"kroute.io/weights": ",".join(f"node/n{number}=1" for number in range(15000))}
    assert refusals(server, [item("many", many), item("long", long), item("plain", {})]).keys() >= {"many"}
