"""Every command in the pages is one that its program takes; the table says which test runs it, or why none does."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import click
import pytest

from kroute import __version__
from kroute.cli.kubectl.command import plugin
from kroute.cli.main import COMMANDS, load
from kroute.model.objects import ObjectMeta
from kroute.planning.features import apply_annotations
from kroute.planning.options import Options
from kroute.planning.weight_facts import weight_of
from tests.lab.chart import helm
from tests.lab.manifests import KUSTOMIZE, kustomizations, render, the, with_component
from tests.lab.objects import Object
from tests.unit.documented_commands import PAGES, ROOT, Command, commands
from tests.unit.each import assert_each
from tests.unit.kubernetes_schemas import validate

BIN = Path(sys.executable).parent

A_CLUSTER = "needs a running cluster with kubelets; what it names is looked up in the rendered manifests"
A_PROVIDER = "needs an account with a provider; written from the provider's documents"
ANOTHER_PROGRAM = "shows what other tests look at by netlink; the program is not kroute's"

RUN_BY = {
    ".venv/bin/pytest": "runs this test, and that a page's file is there is looked up below",
    "kroute bundle": "tests/unit/cli/bundle/test_bundle.py",
    "kroute check": "tests/scenarios/test_check.py",
    "kroute cleanup": "tests/scenarios/test_s17_only_what_is_ours.py",
    "kroute completion": "tests/shells/test_shells.py",
    "kroute director": "tests/scenarios/test_director.py",
    "kroute explain": "tests/scenarios/test_explain.py",
    "kroute help": "tests/unit/cli/test_help.py",
    "kroute man": "tests/shells/test_shells.py",
    "kroute migrate": "tests/scenarios/test_migrate.py",
    "kroute plan": "tests/scenarios/test_plan.py",
    "kroute policy": "tests/scenarios/test_policy_log.py",
    "kroute run": "tests/scenarios/test_api_server.py",
    "kroute show": "tests/scenarios/test_show.py",
    "kroute status": "tests/unit/cli/test_status.py",
    "make demo": "not run: it is for people to watch; tests/scenarios/ covers what it shows",
    "make cluster": "tests/cluster/test_installation.py",
    "make e2e": "not run: it takes an hour; tests/unit/test_cluster_e2e.py reads and writes what it does",
    "make test": "not run: it runs this test",
    "helm install": "tests/unit/test_documented_commands.py",
    "helm uninstall": A_CLUSTER,
    "helm upgrade": "tests/unit/test_documented_commands.py",
    "kubectl annotate": "tests/unit/test_documented_commands.py",
    "kubectl apply": A_CLUSTER,
    "kubectl create": A_CLUSTER,
    "kubectl delete": A_CLUSTER,
    "kubectl describe": A_CLUSTER,
    "kubectl exec": A_CLUSTER,
    "kubectl get": A_CLUSTER,
    "kubectl kroute": "tests/unit/cli/fleet/test_kubectl_kroute.py",
    "kubectl label": A_CLUSTER,
    "kubectl logs": A_CLUSTER,
    "kubectl patch": "tests/unit/test_documented_commands.py",
    "kubectl rollout": A_CLUSTER,
    "kubectl set": A_CLUSTER,
    "kubectl top": A_CLUSTER,
    "docker build": "not run by docker: buildah builds the same file, for tests/scenarios/test_image.py",
    "docker buildx": "not run: there is no docker; one architecture of it is what docker build makes",
    "docker push": "not run: there is no registry",
    "make release": "not run: it takes minutes; tests/release/ builds its files",
    "apt install": "tests/machine/under_systemd.py",
    "ctr images": "not run: there is no containerd; tests/release/ looks at the names in the archive",
    "sed": "tests/scenarios/test_newcomer.py",
    "sha256sum": "tests/release/test_files.py",
    "systemctl enable": "tests/machine/under_systemd.py",
    "cosign": "not run: no release has been published",
    "gh": "not run: no release has been published",
    "systemd-tmpfiles": "not run: deploy/debian/postinst runs it, in tests/machine/under_systemd.py",
    "systemctl status": ANOTHER_PROGRAM,
    "journalctl": ANOTHER_PROGRAM,
    "python3": "not run: pip would ask PyPI; deploy/install makes the image's /opt/kroute in the same way",
    "/opt/kroute/bin/pip": "not run: pip would ask PyPI; deploy/install makes the image's /opt/kroute in the same way",
    "ln": "not run: it would change this machine; deploy/debian has the same link",
    "cp": "not run: it would change this machine; the file is looked up",
    "vi": "not run: it is for people; tests/scenarios/test_newcomer.py writes the file",
    "aws eks": A_PROVIDER,
    "az aks": A_PROVIDER,
    "firewall-cmd": "not run: there is no firewalld; firewall-offline-cmd 1.3.3 took each line",
    "ufw": "not run: there is no ufw; tests/scenarios/test_host_firewalls.py has its rules",
    "bird": "tests/scenarios/test_announcing.py",
    "grep": ANOTHER_PROGRAM,
    "ip address": ANOTHER_PROGRAM,
    "ip rule": ANOTHER_PROGRAM,
    "ipset list": ANOTHER_PROGRAM,
    "iptables-save": ANOTHER_PROGRAM,
    "xargs": "tests/cluster/test_all_of_kube_router.py",
}
"""For each command with its verb the test that runs it, or the reason why none does."""

EXAMPLES = {
    "ADDRESS:PORT": "10.96.0.10:80",
    "ADDRESS:PORT[/udp]": "10.96.0.10:80/udp",
    "NAMESPACE/NAME": "default/web",
    "CLIENT": "192.0.2.7",
    "ADDRESS": "192.0.2.7",
}
"""What a reader puts in place of these words."""

ALL = commands()
WHOLE = [command for command in ALL if command.is_whole]


def of(program: str) -> list[Command]:
    """The commands of this program, each once; of kroute also those that kubectl runs in a pod."""
    found = {command.words: command for command in ALL if command.words[0] == program}
    if program == "kroute":
        for command in WHOLE:
            if "--" in command.words:
                words = command.words[command.words.index("--") + 1 :]
                found.setdefault(words, command._replace(words=words))
    return sorted(found.values())


def verb(command: Command) -> str:
    """The program and its verb, as the table has them: `kubectl exec`."""
    if command.words[0] in RUN_BY:
        return command.words[0]
    words = [*command.words]
    while len(words) > 2 and words[1].startswith("-"):
        del words[1 : 3 if words[1] in {"-n", "--namespace"} else 2]
    return " ".join(words[:2])


def test_every_line_that_looks_like_a_command_was_collected() -> None:
    known = {row.split()[0] for row in RUN_BY}
    for page in PAGES:
        lines = re.findall(r"^ {4,}(?:# )?([a-z-]+) [a-z-]", page.read_text(), re.MULTILINE)
        collected = [command.words[0] for command in WHOLE if command.page == page.name]
        assert sum(word in known for word in lines) <= len(collected), page


def test_every_command_has_a_test_that_runs_it_or_a_reason() -> None:
    assert [str(command) for command in WHOLE if verb(command) not in RUN_BY] == []


def test_the_table_names_commands_of_the_pages_and_tests_that_exist() -> None:
    assert RUN_BY.keys() - {verb(command) for command in ALL} == set()
    for row, test in RUN_BY.items():
        if test.startswith("tests/"):
            assert row.split()[-1] in (ROOT / test).read_text(), row


def test_kroute_takes_every_flag_and_value(tmp_path_factory: pytest.TempPathFactory) -> None:
    def check(command: Command) -> None:
        directory = tmp_path_factory.mktemp("paths")
        name, *arguments = [existing(EXAMPLES.get(word, word), directory) for word in command.words[1:]]
        assert name in COMMANDS
        complaint = complaint_of(name, arguments)
        if command.is_whole:
            assert complaint is None
        else:  # in a sentence it may lack its arguments
            assert complaint is None or isinstance(complaint, click.MissingParameter | click.BadOptionUsage)

    assert_each(of("kroute"), check)


def complaint_of(name: str, arguments: list[str]) -> click.UsageError | None:
    """What the real command line has against these arguments."""
    try:
        load(name).make_context(name, arguments)
    except click.exceptions.Exit:  # --help
        return None
    except click.UsageError as error:
        return error
    return None


def existing(word: str, directory: Path) -> str:
    """A path that a reader has in place of this one; the word itself if it is no path."""
    path = directory / Path(word).name
    if word.endswith("/manifests"):
        path.mkdir()
    elif word.startswith("/etc/"):
        path.write_text("{}")
    elif word == "config.conf":
        path.write_text("{kind: KubeProxyConfiguration, apiVersion: kubeproxy.config.k8s.io/v1alpha1}")
    else:
        return word
    return str(path)


def help_of(program: str, *verbs: str) -> str:
    """What the real program says of a verb and its flags. It fails if it has no such verb."""
    general = output_of("kubectl", "options") if program == "kubectl" else ""
    return f"{output_of(program, *verbs, '--help')}\n{general}"


@cache
def output_of(program: str, *arguments: str) -> str:
    done = subprocess.run([BIN / program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plugin_takes_every_flag_and_value() -> None:
    def check(command: Command) -> None:
        name, *arguments = [EXAMPLES.get(word, word) for word in command.words[2:]]
        plugin.commands[name].make_context(name, arguments)

    assert_each([command for command in of("kubectl") if verb(command) == "kubectl kroute"], check)


def test_kubectl_and_helm_have_every_verb_and_flag() -> None:
    def check(command: Command) -> None:
        program, name = verb(command).split()
        first = command.words.index(name)
        verbs = command.words[first : first + 1 + {"rollout": 1, "top": 1, "create": 2}.get(name, 0)]
        text = help_of(program, *verbs)
        assert f"{program} {' '.join(verbs)}" in text
        own = command.words[: command.words.index("--")] if "--" in command.words else command.words
        for flag in (word for word in own if word.startswith("-")):
            assert re.search(rf"(?<![\w-]){re.escape(flag.partition('=')[0])}(?![\w-])", text), flag

    assert_each([command for command in (*of("kubectl"), *of("helm")) if verb(command) != "kubectl kroute"], check)


def test_what_kubectl_is_asked_for_is_in_the_manifests(tmp_path: Path) -> None:
    objects = [item for name in kustomizations() for item in render(KUSTOMIZE / name)]
    objects += with_component("announce", tmp_path)
    made = {(item["kind"].lower(), item["metadata"]["name"]) for item in objects}
    pods = [item["spec"]["template"] for item in objects if "template" in item.get("spec", {})]

    def check(command: Command) -> None:
        words = " ".join(command.words)
        for kind, name in re.findall(r"\b(daemonset|ds|secret|lease)[/ ](kroute[\w-]*)", words):
            assert ({"ds": "daemonset"}.get(kind, kind), name) in made
        for label in re.findall(r"(?:-l|--selector) (\S+)=(\S+)", words):
            assert any(pod["metadata"]["labels"].get(label[0]) == label[1] for pod in pods)
        for flag, path in re.findall(r"(-k|-f) (\S+)", words):
            assert path in {".", "OVERLAY", "-"} or (
                path.removeprefix("deploy/kustomize/") in kustomizations() if flag == "-k" else (ROOT / path).is_file()
            )

    assert_each(of("kubectl"), check)


@pytest.mark.parametrize("command", [it for it in of("kubectl") if verb(it) == "kubectl patch"], ids=str)
def test_every_patch_leaves_a_valid_object(command: Command, tmp_path: Path) -> None:
    """`--local` applies it to a DaemonSet of that name without a cluster."""
    name = command.words[command.words.index("daemonset") + 1]
    daemonset = {**the("DaemonSet", render(KUSTOMIZE / "base")), "metadata": {"name": name}}
    daemonset["spec"]["template"]["spec"]["containers"][0]["args"] = ["--v=2"]
    (tmp_path / "daemonset.json").write_text(json.dumps(daemonset))
    options = command.words[command.words.index("--type") :]
    patched = kubectl("patch", "--local", "-f", str(tmp_path / "daemonset.json"), "-o", "json", *options)
    validate(patched)
    assert re.search("kroute.io/service-proxy|--run-service-proxy=false", json.dumps(patched))
    assert patched["spec"]["template"]["spec"] != daemonset["spec"]["template"]["spec"]


@pytest.mark.parametrize("command", [it for it in of("kubectl") if verb(it) == "kubectl annotate"], ids=str)
def test_every_annotation_is_taken_as_it_is_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "service.json").write_text('{"kind": "Service", "apiVersion": "v1", "metadata": {"name": "web"}}')
    _, _, kind, _, *annotations = command.words
    annotated = kubectl("annotate", "--local", "-f", str(tmp_path / "service.json"), "-o", "json", *annotations)
    if kind == "node":
        metadata = ObjectMeta("n1", annotations=annotated["metadata"]["annotations"])
        assert weight_of(metadata).weight != 1
        return
    assert kind == "service"
    before = Options(scheduler="mh", scheduler_flags=("mh-fallback",))
    options, problems = apply_annotations(before, annotated["metadata"]["annotations"])
    assert options != before
    assert problems == []


def kubectl(*arguments: str) -> Object:
    done = subprocess.run([BIN / "kubectl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Object = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("command", [it for it in of("helm") if verb(it) != "helm uninstall"], ids=str)
def test_helm_renders_the_chart_with_every_value(command: Command) -> None:
    """`helm template` is `helm install` without a cluster. --reuse-values takes those of the installation."""
    chart = f"kroute-{__version__}.tgz"
    files = {chart: "deploy/helm/kroute", "values.yaml": "tests/unit/golden/values/kubeadm.yaml"}
    words = [files.get(word, word) for word in command.words[2:] if word != "--reuse-values"]
    if verb(command) == "helm upgrade":
        words += ["--set", "apiServer.host=192.0.2.1"]
    done = helm("template", *words)
    assert done.returncode == 0, done.stderr
    assert f"name: kroute{'-uninstall' if 'mode=uninstall' in words else ''}\n" in done.stdout


@pytest.mark.parametrize("command", of(".venv/bin/pytest"), ids=str)
def test_a_test_that_a_page_runs_is_there(command: Command) -> None:
    [file] = [word for word in command.words if word.startswith("tests/")]
    assert (Path(__file__).parents[2] / file).is_file()


def test_files_of_the_repository_and_of_a_release_have_the_names_in_the_page() -> None:
    def check(command: Command) -> None:
        for path in (word for word in command.words if word.startswith(("deploy/", "requirements/"))):
            assert (ROOT / path).is_file()
        for name in (word for word in command.words if word.endswith(".whl")):
            assert name == f"kroute-{__version__}-py3-none-any.whl"

    assert_each([*of("cp"), *of("/opt/kroute/bin/pip")], check)


def test_docker_and_make_find_the_files_and_targets() -> None:
    def check(command: Command) -> None:
        words = " ".join(command.words)
        for path in re.findall(r"--file (\S+)", words):
            assert (ROOT / path).is_file()
        for version in re.findall(r"kroute:(\S+)", words):
            assert version == __version__
        for target in re.findall(r"^make ([a-z0-9-]+)", words):
            assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert_each([*of("docker"), *of("make")], check)
