"""The operators' pages name only what exists."""

import copy
import re
import textwrap
from itertools import chain
from pathlib import Path

import click
import pytest
import yaml

from kroute.base.schedulers import SCHEDULER_FLAGS, SCHEDULERS
from kroute.cli.director import director
from kroute.cli.main import COMMANDS, load
from kroute.cli.parameters.options import ListOption
from kroute.cli.run import run
from kroute.cli.terminal.output import EXIT_CODES
from kroute.firewall.iptables.rules import family_rules
from kroute.firewall.reasons import IN_WORDS
from kroute.inspect.explain import Fate
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.planning.features import ANNOTATIONS
from kroute.settings import Exemption, Settings
from kroute.watchers.kubernetes.authentication import load_credentials
from tests.lab.manifests import KUSTOMIZE, render, the
from tests.unit.documented_commands import PAGES, blocks
from tests.unit.kubernetes_schemas import validate

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "command"), [("settings.md", run), ("director.md", director)])
def test_every_flag_has_its_row_with_variable_and_default(page: str, command: click.Command) -> None:
    row = re.compile(r"^\| `(--[a-z-]+)` \| `(KROUTE_[A-Z_]+)` \| (.*?) \|", re.MULTILINE)
    rows = row.findall((DOCS / page).read_text())
    documented = {flag: (variable, default) for flag, variable, default in rows}
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert documented.keys() == {option.opts[0] for option in options}
    for option in options:
        variable, default = documented[option.opts[0]]
        assert variable == option.envvar
        if option.is_flag:
            assert default == ("on" if option.default else "off")
        elif option.show_default is True or isinstance(option.default, str):
            shown = ",".join(option.default) if isinstance(option, ListOption) else option.default
            assert default == f"`{shown}`"


def test_every_annotation_scheduler_and_flag_is_named() -> None:
    page = (DOCS / "annotations.md").read_text()
    for row in ANNOTATIONS:
        aliases = " ".join(f"`{name}`" for name in row.names[1:]) or "none"
        assert f"| `{row.name}` | {aliases} |" in page
    for word in (*(row.name for row in ANNOTATIONS), *SCHEDULERS, *SCHEDULER_FLAGS):
        assert f"`{word}`" in page


def test_the_page_has_every_exit_code_with_its_meaning() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", (DOCS / "command-line.md").read_text(), re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES


def test_every_command_that_a_page_names_exists() -> None:
    for page in (*DOCS.rglob("*.md"), DOCS.parent / "README.md"):
        named = re.findall(r"(?:`|^    (?:# )?)kroute ([a-z]+)\b", page.read_text(), re.MULTILINE)
        assert set(named) <= COMMANDS.keys(), page


def test_troubleshooting_quotes_the_words_of_explain() -> None:
    """The reason that `kroute explain` prints is a rule's comment, in other words."""
    exempt = (Exemption("10.0.0.0/8", "10.0.0.0/8"), Exemption("fd00::/8", "fd00::/8"))
    node = NodeFacts("node1", "192.168.1.5", "fd00::5")
    comments = set()
    for masquerade_all in (False, True):
        settings = Settings(
            "node1", masquerade_all=masquerade_all, masquerade_exemptions=exempt, cluster_cidrs=("10.0.0.0/8",)
        )
        for table in (table for family in Family for table in family_rules(settings, family, node).tables.values()):
            texts = [*chain.from_iterable(table.chains.values()), *(text for _, text in table.jumps)]
            comments |= {text.split('"')[1] for text in texts}
    assert IN_WORDS.keys() <= comments
    page = (DOCS / "troubleshooting.md").read_text()
    quoted = re.findall(r"`(?:refused|dropped|served): ([^`]+)`", page)
    quoted += re.findall(r"`(?:masqueraded|the client's address is kept) \(([^`]+)\)`", page)
    assert len(quoted) >= 8
    for text in quoted:
        assert any(words.startswith(text.removesuffix(" ...")) for words in IN_WORDS.values()), text
    assert {fate.value for fate in Fate} <= set(
        re.findall(r"^\| ([a-z ]+) \|", (DOCS / "operate.md").read_text(), re.MULTILINE)
    )


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design.md", "docs/security.md"])
def test_every_path_that_a_table_names_exists(page: str) -> None:
    root = DOCS.parent
    rows = [line for line in (root / page).read_text().splitlines() if line.startswith("|")]
    named = re.findall(r"`((?:kroute|tests|docs|deploy)/[\w./-]+)`", "\n".join(rows))
    assert len(named) > 10
    assert [path for path in named if not (root / path).exists()] == []


def test_every_failure_of_the_design_names_its_tests() -> None:
    table = (DOCS / "design.md").read_text().split("| failure | already served |")[1].split("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) > 10
    for row in rows:
        assert re.search(r"\| `tests/[\w/]+\.py`(, `tests/[\w/]+\.py`)* \|$", row), row


YAML = [
    pytest.param(block, id=f"{page.name}: {block.strip().splitlines()[0]}")
    for page in PAGES
    for block in (
        *blocks(page.read_text()),
        *re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL),
    )
    if re.match(r"[\w.-]+:( |$)|# kustomization.yaml", block.strip(), re.MULTILINE)
]


@pytest.mark.parametrize("block", YAML)
def test_every_yaml_block_is_yaml_and_every_object_in_it_is_valid(block: str) -> None:
    for item in yaml.safe_load_all(textwrap.dedent(block)):
        assert isinstance(item, dict)
        if "kind" in item and item["kind"] not in {"Config", "Kustomization"}:
            validate(item)


def test_the_first_overlay_of_the_page_is_rendered(tmp_path: Path) -> None:
    """As it stands in docs/deploy.md, in a directory beside the repository."""
    [example] = [block for block in blocks((DOCS / "deploy.md").read_text()) if "# kustomization.yaml" in block]
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (tmp_path / "kroute").symlink_to(DOCS.parent)
    (overlay / "kustomization.yaml").write_text(textwrap.dedent(example))
    objects = render(overlay)
    settings = the("ConfigMap", objects)["data"]
    assert settings["KUBERNETES_SERVICE_HOST"] == "192.168.123.2"
    pod = the("DaemonSet", objects)["spec"]["template"]["spec"]
    assert all(it["image"].startswith("REGISTRY/kroute:") for it in (*pod["initContainers"], *pod["containers"]))


@pytest.mark.parametrize("page", ["migrate-from-kube-proxy.md", "migrate-from-kube-router.md"])
def test_the_init_container_of_a_migration_makes_a_valid_daemonset(page: str) -> None:
    [example] = [it for it in blocks((DOCS / page).read_text()) if it.strip().startswith("initContainers:")]
    daemonset = copy.deepcopy(the("DaemonSet", render(KUSTOMIZE / "base")))
    pod = daemonset["spec"]["template"]["spec"]
    [container] = yaml.safe_load(textwrap.dedent(example))["initContainers"]
    agent = pod["containers"][0]
    container |= {name: agent[name] for name in ("env", "securityContext", "volumeMounts")}  # as its comment says
    pod["initContainers"].append(container)
    validate(daemonset)
    assert container["command"][0] == "kroute"
    load(container["command"][1]).make_context("migrate", container["command"][2:])


async def test_the_kubeconfig_of_the_page_is_read(tmp_path: Path) -> None:
    [example] = [it for it in blocks((DOCS / "systemd.md").read_text()) if "kind: Config" in it]
    (tmp_path / "token").write_text("secret")
    (tmp_path / "kubeconfig").write_text(textwrap.dedent(example).replace("/etc/kroute", str(tmp_path)))
    read = await load_credentials(Settings("node1", kubeconfig=tmp_path / "kubeconfig"))
    assert read.configuration.host == "https://192.168.123.2:6443"
    assert read.configuration.headers == {"authorization": "Bearer secret"}
