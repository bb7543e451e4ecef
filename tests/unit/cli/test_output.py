"""Text from objects reaches a terminal without control characters; programs get it unchanged."""

from errno import EEXIST, EPERM

import msgspec
import pytest

from kroute.checks.finding import failed
from kroute.cli.explain import print_explanations
from kroute.cli.kubectl.printing import NodeAnswer, NodeAnswers, print_answers
from kroute.cli.plan import print_changes
from kroute.cli.policy import print_refused
from kroute.cli.show.live import RateList, RateRow, print_rates
from kroute.cli.show.service import ServiceReport, print_report
from kroute.cli.show.table import print_services
from kroute.cli.terminal import formats, output
from kroute.cli.terminal.findings import Report, print_findings
from kroute.inspect import figures, snapshot
from kroute.inspect.dry_run import PlannedChange, PlannedChanges
from kroute.inspect.explain import Explanation, ExplanationList
from kroute.inspect.refusals import RefusedPacket, RefusedPacketList
from kroute.kernel.errors import KernelError
from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem, ServicePlan
from kroute.model.policy_plan import Direction
from kroute.planning.endpoint_reasons import EndpointView, FrontendView
from tests.builders import service

HOSTILE = "\x1b[2J\x1b]0;root\a\u202ex\x9b1m\r\n"
FRONTEND = FrontendView(
    *("TCP", "10.96.0.10", 80, HOSTILE, "clusterIP", "Cluster", HOSTILE),
    [EndpointView("10.244.1.1", 80, HOSTILE, True, HOSTILE)],
)
ODD = ServicePlan(ObjectKey("default", HOSTILE), problems=(Problem("InvalidPort", HOSTILE, HOSTILE),))

FOUND = {
    "check": (Report(False, [failed(HOSTILE, HOSTILE, HOSTILE)]), print_findings),
    "plan": (PlannedChanges([PlannedChange(HOSTILE, "address", "add", HOSTILE)], [HOSTILE]), print_changes),
    "explain": (
        ExplanationList(
            [
                Explanation(
                    *("TCP", "10.96.0.10", 80, "agent", HOSTILE, FRONTEND, True, None, HOSTILE),
                    *([], [], [HOSTILE], [HOSTILE]),
                )
            ]
        ),
        print_explanations,
    ),
    "show services": (
        figures.list_services(snapshot.of_agent([ODD], {})),
        print_services,
    ),
    "show service": (
        ServiceReport(
            service(HOSTILE, annotations={HOSTILE: HOSTILE, "a": HOSTILE}), [FRONTEND], [], [], [], [], [HOSTILE]
        ),
        print_report,
    ),
    "show -w": (
        RateList([RateRow(HOSTILE, HOSTILE, HOSTILE, 1, *[0] * 7)]),
        print_rates,
    ),
    "policy watch": (
        RefusedPacketList(
            [
                RefusedPacket(
                    *(HOSTILE, Direction.EGRESS, HOSTILE, HOSTILE, 1, HOSTILE, HOSTILE, 1, HOSTILE),
                    *(HOSTILE, [HOSTILE], 1, HOSTILE),
                )
            ],
            newest=1,
            left_out=0,
        ),
        print_refused,
    ),
    "kubectl kroute": (NodeAnswers([NodeAnswer(HOSTILE, lines=[HOSTILE])]), print_answers),
}


@pytest.mark.parametrize(("found", "draw"), FOUND.values(), ids=FOUND)
def test_no_text_of_an_object_moves_a_cursor(found: object, draw: object, capsys: pytest.CaptureFixture[str]) -> None:
    formats.show(found, "table", draw)  # type: ignore[arg-type, type-var]
    written = "".join(capsys.readouterr())
    assert r"\x1b[2J" in written.replace("\n", "")
    assert not set(written) & set("\x1b\a\u202e\x9b\r")


def test_programs_get_what_the_object_says(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    formats.show(PlannedChanges([], [HOSTILE]), "json", print)
    assert msgspec.json.decode(capfdbinary.readouterr().out)["problems"] == [HOSTILE]


def test_no_name_of_an_object_moves_a_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    formats.show(NodeAnswers([NodeAnswer(HOSTILE)]), "name", print_answers)
    assert capsys.readouterr().out == "\\x1b[2J\\x1b]0;root\\x07\\u202ex\\x9b1m\\x0d\\x0a\n"


def test_a_complaint_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.complain(f"no Service {HOSTILE}")
    assert capsys.readouterr().err == "kroute: no Service \\x1b[2J\\x1b]0;root\\x07\\u202ex\\x9b1m\\x0d\\x0a\n"


@pytest.mark.parametrize(
    ("error", "hint", "says"),
    [
        (KernelError("no IPVS"), "", "no IPVS"),
        (KernelError("it refused", errno=EPERM), "", f"it refused; {output.AS_ROOT}"),
        (KernelError("it refused", errno=EPERM), "only the agent knows", "it refused; only the agent knows"),
        (FileExistsError(EEXIST, "x", "b.tar.gz"), "", "b.tar.gz: File exists"),
    ],
)
def test_a_refusal_says_what_to_do_about_its_own_cause(error: Exception, hint: str, says: str) -> None:
    with pytest.raises(output.CommandRefusedError) as refusal, output.refusing(KernelError, OSError, hint=hint):
        raise error
    assert str(refusal.value) == says
