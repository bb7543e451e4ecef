"""Every flag, field, annotation and label of kube-proxy and kube-router has its row, which says what becomes of it."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kroute.cli.migrate import migrate
from kroute.cli.parameters.settings_command import flag_tables, translated
from kroute.cli.run import run
from kroute.cli.terminal.output import USAGE
from kroute.migration.flags import KUBE_PROXY, KUBE_ROUTER, OtherFlags, Treatment
from kroute.migration.kube_proxy_configuration import UNUSED, USED
from kroute.planning.bgp.annotations import NAMES as NODE_NAMES
from kroute.planning.features import ANNOTATION_NAMES
from kroute.settings import Settings
from tests.unit.command_line import exit_code
from tests.unit.each import assert_each

NAMES = Path(__file__).parent / "names"
DOCS = Path(__file__).parents[3] / "docs"
OWN = {name for parameter in run.params for name in parameter.opts}
ORDER = list(Treatment)
ALWAYS_ON = {"run-service-proxy", "enable-ipv4"}
"""Switches that are refused when they are off. All others ask for nothing then."""
EVERY_VALUE = {"proxy-mode", "enable-ipv6", "ipvs-graceful-termination", "ipvs-permit-all"}
"""Flags without a meaning here that are accepted with every value."""
TABLE_OF = {"kube-router": KUBE_ROUTER, "kube-proxy": KUBE_PROXY}


def names(of: str) -> set[str]:
    return {line for line in (NAMES / of).read_text().splitlines() if not line.startswith("#")}


def rows_of(table: OtherFlags) -> Iterator[str]:
    """Write the rows of the table's page: what is honoured first, then by name."""
    for name, flag in sorted(table.flags.items(), key=lambda it: (ORDER.index(it[1].outcome), it[0])):
        field = [f"`{flag.field}`" if flag.field else ""] if table is KUBE_PROXY else []
        default = f"`{flag.default}`" if flag.default else ""
        yield " | ".join([f"| `--{name}`", *field, default, flag.outcome, flag.becomes + " |"]).replace("  |", " |")


@pytest.mark.parametrize("proxy", TABLE_OF)
def test_the_table_names_exactly_the_flags_of_the_proxy(proxy: str) -> None:
    assert TABLE_OF[proxy].flags.keys() == names(f"{proxy}-flags")


@pytest.mark.parametrize("proxy", TABLE_OF)
def test_the_page_has_the_row_of_every_flag(proxy: str) -> None:
    page = (DOCS / f"migrate-from-{proxy}.md").read_text()
    rows = [line for line in page.splitlines() if re.match(r"\| `--[a-z]", line)]
    assert rows == list(rows_of(TABLE_OF[proxy]))


def test_every_field_of_kube_proxys_configuration_is_used_or_has_a_reason_and_is_on_the_page() -> None:
    assert USED.keys() | UNUSED.keys() == names("kube-proxy-fields")
    page = (DOCS / "migrate-from-kube-proxy.md").read_text()
    of_flags = {flag.field for flag in KUBE_PROXY.flags.values()}
    for field in names("kube-proxy-fields") - of_flags:
        assert f"| `{field}` |" in page
    for field, reason in UNUSED.items():
        assert field in of_flags or f"| `{field}` | {reason} |" in page
    assert of_flags - {""} <= names("kube-proxy-fields")


def test_every_annotation_and_label_has_its_row_and_is_read_if_the_row_says_so() -> None:
    page = (DOCS / "annotations.md").read_text().partition("## Annotations and labels of kube-proxy and kube-router")[2]
    rows = re.findall(r"^\| `([a-z./-]+/[a-z.-]+)` \| (.+?) \| (.+?) \|", page, re.MULTILINE)
    assert {name for name, *_ in rows} == names("annotations")
    for name, _, outcome in rows:
        if name.startswith("kube-router.io/"):
            assert (name in ANNOTATION_NAMES | NODE_NAMES) == (Treatment(outcome) is not Treatment.NO_MEANING)
        else:
            assert Treatment(outcome) is Treatment.HONOURED


@pytest.mark.parametrize("proxy", TABLE_OF)
def test_the_defaults_of_the_proxy_are_accepted_all_at_once(
    proxy: str, started: list[Settings], tmp_path: Path
) -> None:
    flags = TABLE_OF[proxy].flags
    given = [f"--{name}={flag.default}" for name, flag in flags.items()]
    assert exit_code("run", *given, "--node-name", "n1", "--log-format", "json") == 0
    [settings] = started
    assert settings.node_name == "n1"
    assert exit_code("migrate", "--from", proxy, *[it for it in given if it.split("=")[0] not in OWN], "--help") == 0


def test_a_flag_that_is_not_honoured_takes_what_asks_for_nothing_and_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def check(case: tuple[str, str]) -> None:
        proxy, name = case
        flag = TABLE_OF[proxy].flags[name]
        if flag.outcome is Treatment.HONOURED or name in EVERY_VALUE:
            assert translated([f"--{name}={flag.default}"], OWN) is not None
            return
        assert translated([f"--{name}={flag.default}"], OWN) == []
        if flag.is_switch and flag.default == "true" and name not in ALWAYS_ON:
            assert translated([f"--{name}=false"], OWN) == []
            return
        other = "false" if name in ALWAYS_ON else "true" if flag.is_switch else "strange"
        assert exit_code("run", f"--{name}={other}") == USAGE
        assert f"--{name} is kube-" in (error := capsys.readouterr().err)
        assert error.count("\n") == 1

    assert_each([(table.proxy, name) for table in flag_tables() for name in sorted(table.flags)], check)


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        (["--v=2"], []),
        (["-v", "2"], []),
        (["-v=3"], []),
        (["--v=4"], ["--log-level", "debug"]),
        (["--v", "10"], ["--log-level", "debug"]),
    ],
)
def test_the_verbosity_of_klog_is_a_log_level(written: list[str], ours: list[str]) -> None:
    assert translated(written, OWN) == ours


def test_a_verbosity_that_is_not_a_number_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run", "--v=high") == USAGE
    assert "'high' is not a number" in capsys.readouterr().err


def test_the_last_value_of_a_switch_counts() -> None:
    again = ["--nodeport-bindon-all-ip=false", "--hairpin-mode", "--nodeport-bindon-all-ip", "--hairpin-mode=false"]
    assert translated(again, OWN) == ["--hairpin", "off"]


def test_a_list_that_is_given_many_times_counts_as_a_whole(started: list[Settings]) -> None:
    given = ["--excluded-cidrs=10.9.0.1/16", "--excluded-cidrs", "10.8.0.0/16,10.9.0.0/16"]
    assert exit_code("run", *given) == 0
    assert started[0].exclude_cidrs == ("10.9.0.0/16", "10.8.0.0/16")


def test_underscores_in_a_name_are_read_as_kube_proxy_reads_them() -> None:
    assert translated(["--add_dir_header=false", "--ipvs_scheduler", "lc"], OWN) == ["--scheduler", "lc"]


def test_kube_proxys_mh_brings_the_flag_that_it_sets() -> None:
    expected = ["--scheduler", "mh", "--scheduler-flags", "sh-fallback,mh-fallback,mh-port"]
    assert translated(["--ipvs-scheduler=mh"], OWN) == expected


def test_a_command_takes_what_concerns_it_and_no_unknown_option() -> None:
    own = {"--from", "--take-over", "--exclude-cidrs"}
    given = ["--from", "kube-proxy", "--hostname-override=n1", "--ipvs-exclude-cidrs=10.0.0.0/8", "--take-over"]
    assert translated(given, own) == ["--from", "kube-proxy", "--exclude-cidrs", "10.0.0.0/8", "--take-over"]
    with pytest.raises(click.NoSuchOption):
        migrate.make_context("migrate", ["--no-such-option=x"])
