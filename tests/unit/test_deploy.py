"""The manifests in deploy/ are valid for the Kubernetes API, and match what kroute does."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from kroute import __version__
from kroute.checks import api_checks, cluster_proxies, node_checks
from kroute.checks.preflight import NODE
from kroute.cli.main import load
from kroute.director import wiring
from kroute.firewall.backend import BACKENDS
from kroute.model.kinds import WATCHED, WatchedKind, watched
from kroute.reconcile.ledger import Ledger
from kroute.settings import DEFAULTS
from kroute.watchers.kubernetes.authentication import service_account
from tests.builders import settings
from tests.lab.manifests import (
    DEPLOY,
    KUSTOMIZE,
    granted,
    image_environment,
    kustomizations,
    render,
    the,
    with_component,
)
from tests.lab.objects import Object
from tests.unit.kubernetes_schemas import NEWEST, OLDEST, ValidationError, validate


def pods(objects: Iterable[Object]) -> list[Object]:
    return [it["spec"]["template"]["spec"] for it in objects if it["kind"] == "DaemonSet"]


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def environment(overlay: str) -> dict[str, str]:
    return the("ConfigMap", render(KUSTOMIZE / overlay))["data"]


AS_AGENTS = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "priorityClassName",
    "hostNetwork",
    "dnsPolicy",
    "securityContext",
)
"""What BIRD's pods have as the agents' have it."""


@pytest.fixture(params=kustomizations())
def pod(request: pytest.FixtureRequest) -> Object:
    """The pod of each kustomization; where one is to replace another, the new one."""
    return pods(render(KUSTOMIZE / request.param))[-1]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", kustomizations())
def test_every_object_is_valid_by_the_schemas_of_kubernetes(name: str, version: str) -> None:
    objects = render(KUSTOMIZE / name)
    assert objects
    for item in objects:
        validate(item, version)


def test_the_schemas_would_find_a_misspelt_field() -> None:
    daemonset = json.loads(json.dumps(the("DaemonSet", render(KUSTOMIZE / "base"))))
    daemonset["spec"]["template"]["spec"]["hostNetworks"] = True
    with pytest.raises(ValidationError, match="hostNetworks"):
        validate(daemonset)


class TestRights:
    """A role allows what kroute requests, and nothing else."""

    def test_of_an_agent(self) -> None:
        needed = {(it.group, it.resource, it.verb) for it in [*api_checks.needed(WATCHED), api_checks.SERVICE_CIDRS]}
        assert granted(the("ClusterRole", render(KUSTOMIZE / "base"))) == needed

    def test_of_an_agent_to_see_whether_another_proxy_is_meant_for_its_node(self) -> None:
        objects = render(KUSTOMIZE / "base")
        role, binding = the("Role", objects), the("RoleBinding", objects)
        by_name = {("", "configmaps", "get")}
        assert granted(role) == {("", "pods", "list"), ("apps", "daemonsets", "list")} | by_name
        [rule] = [it for it in role["rules"] if it["resources"] == ["configmaps"]]
        assert set(rule["resourceNames"]) == {name for name, *_ in cluster_proxies.CONFIGURED.values()}
        assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == cluster_proxies.NAMESPACE
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"] == the("ClusterRoleBinding", objects)["subjects"]

    @pytest.mark.parametrize("setting", ["pod_weights", "network_policies"])
    def test_of_an_agent_that_watches_pods(self, setting: str, tmp_path: Path) -> None:
        kinds = watched(settings(**{setting: True}))
        needed = {(it.group, it.resource, it.verb) for it in [*api_checks.needed(kinds), api_checks.SERVICE_CIDRS]}
        assert granted(the("ClusterRole", with_component(setting.replace("_", "-"), tmp_path))) == needed

    def test_of_an_agent_that_may_allocate_addresses(self, tmp_path: Path) -> None:
        objects = with_component("load-balancer-addresses", tmp_path)
        base = render(KUSTOMIZE / "base")
        added = {kind: granted(the(kind, objects)) - granted(the(kind, base)) for kind in ("ClusterRole", "Role")}
        in_all, in_one = (
            {it.rule for it in api_checks.ALLOCATOR if bool(it.namespace) == one} for one in (False, True)
        )
        assert added == {"ClusterRole": in_all, "Role": in_one}
        named = [it for it in the("Role", objects)["rules"] if it["apiGroups"] == ["coordination.k8s.io"]]
        assert {(it.get("resourceNames", [""])[0], verb) for it in named for verb in it["verbs"]} == {
            (it.name, it.verb) for it in api_checks.ALLOCATOR if it.namespace
        }

    def test_of_a_director(self) -> None:
        kinds: tuple[WatchedKind, ...] = wiring.watched("app=web")
        needed = {(it.group, it.resource, it.verb) for it in [*api_checks.needed(kinds), api_checks.SERVICE_CIDRS]}
        objects = render(KUSTOMIZE / "overlays/director")
        assert granted(the("ClusterRole", objects, "kroute-director")) == needed
        leases = {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}
        assert granted(the("Role", objects, "kroute-director")) == leases

    def test_are_bound_to_the_account_that_the_pods_have(self) -> None:
        objects = render(KUSTOMIZE / "base")
        account = the("ServiceAccount", objects)["metadata"]
        binding = the("ClusterRoleBinding", objects)
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
        ]
        assert binding["roleRef"]["name"] == the("ClusterRole", objects)["metadata"]["name"]
        [pod] = pods(objects)
        assert pod["serviceAccountName"] == account["name"]

    def test_only_the_container_that_asks_the_api_server_has_the_token(self, pod: Object) -> None:
        assert pod["automountServiceAccountToken"] is False
        projected = {it["name"] for it in pod["volumes"] if "projected" in it}
        mounts = [(it["name"], mount) for it in containers(pod) for mount in it["volumeMounts"]]
        holders = {name: mount["mountPath"] for name, mount in mounts if mount["name"] in projected}
        assert holders == ({} if undoes(pod) else {"kroute": str(service_account.DIRECTORY)})

    def test_the_token_comes_with_what_kubernetes_would_mount(self) -> None:
        [pod] = pods(render(KUSTOMIZE / "base"))
        [sources] = [it["projected"]["sources"] for it in pod["volumes"] if "projected" in it]
        assert sources == [
            {"serviceAccountToken": {"path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]


class TestPods:
    """What every pod of kroute must have, and must not have."""

    def test_it_goes_wherever_pods_go_before_services_do(self, pod: Object) -> None:
        assert pod["hostNetwork"] is True
        assert pod["dnsPolicy"] == "Default"
        assert pod["priorityClassName"] == "system-node-critical"
        assert pod["tolerations"] == [{"operator": "Exists"}]

    def test_no_container_is_privileged_or_can_become_so(self, pod: Object) -> None:
        for container in containers(pod):
            security = container["securityContext"]
            assert not security.get("privileged")
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"]["drop"] == ["ALL"]

    def test_modules_are_loaded_by_an_init_container_alone(self, pod: Object) -> None:
        [loader] = pod["initContainers"]
        assert loader["command"] == ["modprobe", "--all", *NODE.modules]
        assert loader["securityContext"]["capabilities"]["add"] == ["SYS_MODULE"]
        [main] = pod["containers"]
        needed = [*NODE.capabilities, *(BACKENDS["iptables"].capabilities if undoes(pod) else ())]
        assert main["securityContext"]["capabilities"]["add"] == needed

    def test_every_container_says_what_it_needs_of_the_node(self, pod: Object) -> None:
        for container in containers(pod):
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}

    def test_its_volumes_are_where_kroute_looks(self, pod: Object) -> None:
        [container] = pod["containers"]
        paths = {it["name"]: it["hostPath"]["path"] for it in pod["volumes"] if "hostPath" in it}
        mounts = {paths[it["name"]]: it["mountPath"] for it in container["volumeMounts"] if it["name"] in paths}
        [proc_sys] = [it["value"] for it in container["env"] if it["name"] == "KROUTE_PROC_SYS"]
        assert mounts == {
            str(DEFAULTS.state_dir): str(DEFAULTS.state_dir),
            str(DEFAULTS.bird_directory): str(DEFAULTS.bird_directory),
            **({"/run/xtables.lock": "/run/xtables.lock"} if undoes(pod) else {}),
            "/lib/modules": "/lib/modules",
            f"{DEFAULTS.proc_sys}/net": f"{proc_sys}/net",
        }
        assert not mounts[f"{DEFAULTS.proc_sys}/net"].startswith("/proc/")

    def test_its_probes_ask_where_health_is_answered(self) -> None:
        own, healthz = DEFAULTS.own_bind_address, DEFAULTS.healthz_bind_address
        assert own is not None
        assert healthz is not None
        probes = [
            container.get(kind, {})
            for name in kustomizations()
            for pod in pods(render(KUSTOMIZE / name))
            for container in pod["containers"]
            for kind in ("startupProbe", "livenessProbe", "readinessProbe")
        ]
        asked = {(it["httpGet"]["host"], it["httpGet"]["port"]) for it in probes if "httpGet" in it}
        assert asked == {(own.host, own.port)}
        alerts = (DEPLOY / "prometheus/alerts.yaml").read_text()
        assert re.findall(r"localhost:(\d+)/healthz", alerts) == [str(healthz.port)]

    def test_no_probe_asks_before_it_can_be_answered(self) -> None:
        """The kubelet writes a Warning Event for each probe that fails. Liveness waits for the startup probe."""
        [container] = pods(render(KUSTOMIZE / "base"))[0]["containers"]
        startup, readiness = container["startupProbe"], container["readinessProbe"]
        assert startup["httpGet"] == container["livenessProbe"]["httpGet"], "it succeeds while kroute starts"
        assert 0 < startup["initialDelaySeconds"] < readiness["initialDelaySeconds"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 60
        assert "initialDelaySeconds" not in container["livenessProbe"]

    def test_it_runs_a_command_that_kroute_has(self, pod: Object) -> None:
        [container] = pod["containers"]
        program, name, *arguments = container["command"]
        assert program == "kroute"
        load(name).make_context(name, arguments)


@pytest.mark.parametrize("name", ["uninstall", "hand-over", "hand-over-kube-router"])
def test_a_pod_that_undoes_is_ready_when_the_ledger_has_gone(name: str, tmp_path: Path) -> None:
    [container] = pods(render(KUSTOMIZE / name))[-1]["containers"]
    probe = container["readinessProbe"]["exec"]["command"]
    assert probe == ["test", "!", "-e", str(DEFAULTS.state_dir / Ledger.open(tmp_path).path.name)]


class TestInKroutesPlace:
    """Nodes are cleaned, or go back to another proxy: kroute ends there, and another pod does the rest."""

    def test_of_an_uninstallation_kroute_runs_nowhere_and_the_other_pod_everywhere(self) -> None:
        kroute, uninstaller = pods(render(KUSTOMIZE / "uninstall"))
        assert kroute["nodeSelector"]["kroute.io/service-proxy"] == "uninstalled"
        assert uninstaller["nodeSelector"] == {"kubernetes.io/os": "linux"}

    @pytest.mark.parametrize(("name", "proxy"), [("hand-over", "kube-proxy"), ("hand-over-kube-router", "kube-router")])
    def test_of_a_hand_over_too(self, name: str, proxy: str) -> None:
        kroute, back = pods(render(KUSTOMIZE / name))
        assert kroute["nodeSelector"] == {"kubernetes.io/os": "linux", "kroute.io/service-proxy": "handed-over"}
        assert back["nodeSelector"] == {"kubernetes.io/os": "linux"}
        assert "affinity" not in back
        assert back["automountServiceAccountToken"] is False
        words = back["containers"][0]["command"]
        assert words[words.index("--to") + 1] == proxy
        assert {"--hand-over", "--stay"} < set(words)

    def test_by_its_label_a_node_has_exactly_one_of_both(self, tmp_path: Path) -> None:
        kroute, back = pods(with_component("hand-over", tmp_path, "by-label"))
        assert kroute["nodeSelector"]["kroute.io/service-proxy"] == "kroute"
        [term] = back["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [
            {"key": "kroute.io/service-proxy", "operator": "NotIn", "values": ["kroute"]}
        ]

    def test_without_the_other_pod_the_label_says_where_kroute_runs(self, tmp_path: Path) -> None:
        [kroute] = pods(with_component("by-label", tmp_path))
        assert kroute["nodeSelector"]["kroute.io/service-proxy"] == "kroute"


def test_modules_can_be_left_to_the_host(tmp_path: Path) -> None:
    [pod] = pods(with_component("modules-of-the-host", tmp_path))
    assert "initContainers" not in pod


def test_the_other_backend_gets_what_it_needs(tmp_path: Path) -> None:
    [pod] = pods(with_component("iptables", tmp_path))
    needed = BACKENDS["iptables"]
    [loader], [main] = pod["initContainers"], pod["containers"]
    assert loader["command"] == ["modprobe", "--all", *NODE.modules, *needed.modules]
    assert main["securityContext"]["capabilities"]["add"] == [*NODE.capabilities, *needed.capabilities]
    assert "/run/xtables.lock" in [it["mountPath"] for it in main["volumeMounts"]]


def test_direct_return_gets_what_it_needs_and_nobody_else_does(tmp_path: Path) -> None:
    [pod] = pods(with_component("direct-return", tmp_path))
    [loader], [main] = pod["initContainers"], pod["containers"]
    assert pod["hostPID"] is True
    assert main["securityContext"]["capabilities"]["add"] == [
        *NODE.capabilities,
        *node_checks.DIRECT_RETURN_CAPABILITIES,
    ]
    assert main["securityContext"]["allowPrivilegeEscalation"] is False
    assert not main["securityContext"].get("privileged")
    assert loader["securityContext"]["capabilities"]["add"] == ["SYS_MODULE"]
    for name in kustomizations():
        for other in pods(render(KUSTOMIZE / name)):
            assert "hostPID" not in other
            added = {cap for it in containers(other) for cap in it["securityContext"]["capabilities"]["add"]}
            assert not added & node_checks.DIRECT_RETURN_CAPABILITIES.keys()


class TestBird:
    """The DaemonSet that runs BIRD beside agents that announce addresses."""

    @pytest.fixture
    def objects(self, tmp_path: Path) -> list[Object]:
        return with_component("announce", tmp_path)

    @pytest.fixture
    def bird(self, objects: list[Object]) -> Object:
        [_, bird] = pods(objects)
        return dict(bird)

    def test_the_objects_are_valid_by_the_schemas_of_kubernetes(self, objects: list[Object]) -> None:
        for version in (OLDEST, NEWEST):
            for item in objects:
                validate(item, version)

    def test_its_nodes_are_those_of_the_agents(self, objects: list[Object], tmp_path: Path) -> None:
        (tmp_path / "by-label").mkdir()
        for pair in (pods(objects), pods(with_component("announce", tmp_path / "by-label", "by-label"))):
            agent, bird = ({name: pod.get(name) for name in AS_AGENTS} for pod in pair)
            assert agent == bird

    @pytest.mark.parametrize(("component", "label"), [("uninstall", None), ("hand-over", "handed-over")])
    def test_its_nodes_are_cleaned_with_it_and_given_back_without_it(
        self, component: str, label: str | None, tmp_path: Path
    ) -> None:
        _, bird, _ = pods(with_component("announce", tmp_path, component))
        assert bird["nodeSelector"].get("kroute.io/service-proxy") == label

    def test_it_may_speak_and_nothing_else(self, bird: Object) -> None:
        assert bird["automountServiceAccountToken"] is False
        assert [it["hostPath"]["path"] for it in bird["volumes"]] == [str(DEFAULTS.bird_directory)]
        for container in containers(bird):
            security = container["securityContext"]
            assert not security.get("privileged")
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"]["drop"] == ["ALL"]
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        [waiting], [main] = bird["initContainers"], bird["containers"]
        assert "add" not in waiting["securityContext"]["capabilities"]
        assert main["securityContext"]["capabilities"]["add"] == ["NET_BIND_SERVICE", "NET_RAW"]

    def test_it_waits_for_what_kroute_writes_and_is_told_by_the_socket_that_kroute_uses(self, bird: Object) -> None:
        configuration, control = str(DEFAULTS.bird_configuration), str(DEFAULTS.bird_socket)
        [waiting], [main] = bird["initContainers"], bird["containers"]
        assert f"-e {configuration} " in waiting["command"][-1]
        assert main["command"] == ["bird", "-f", "-R", "-c", configuration, "-s", control]
        ends = main["lifecycle"]["preStop"]["exec"]["command"]
        assert ends == ["birdc", "-s", control, "graceful", "restart"]
        assert {tuple(main[it]["exec"]["command"]) for it in ("livenessProbe", "readinessProbe")} == {
            ("birdc", "-r", "-s", control, "show", "status")
        }

    def test_passwords_of_routers_are_for_the_agents_alone(self, objects: list[Object]) -> None:
        agent, bird = pods(objects)
        [volume] = [it for it in agent["volumes"] if "secret" in it]
        assert volume["secret"] == {"secretName": "kroute-peer-passwords", "optional": True, "defaultMode": 0o400}
        [container] = agent["containers"]
        [mounted] = [it["mountPath"] for it in container["volumeMounts"] if it["name"] == volume["name"]]
        assert {"name": "KROUTE_PEER_PASSWORDS", "value": mounted} in container["env"]
        assert not [it for it in bird["volumes"] if "secret" in it]

    def test_its_image_has_the_version_of_bird(self, bird: Object) -> None:
        version = re.search(r"^ARG BIRD=(\S+)$", TestImage.DOCKERFILE, re.MULTILINE)
        assert version is not None
        assert {it["image"] for it in containers(bird)} == {f"kroute-bird:{version[1]}"}


def undoes(pod: Object) -> bool:
    """Whether the pod removes what any backend has made."""
    return bool({"cleanup", "migrate"} & set(pod["containers"][0]["command"]))


class TestConfiguration:
    """The ConfigMap is read as variables."""

    @pytest.mark.parametrize("overlay", ["base", "overlays/dual-stack", "overlays/strict-external-ips"])
    def test_every_name_is_a_setting_or_says_where_the_api_server_is(self, overlay: str) -> None:
        variables = {option.envvar for option in load("run").params}
        assert environment(overlay).keys() <= variables | {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"}

    def test_dual_stack_names_networks_of_both_families(self) -> None:
        for name in ("KROUTE_CLUSTER_CIDR", "KROUTE_SERVICE_CIDR"):
            assert {":" in network for network in environment("overlays/dual-stack")[name].split(",")} == {True, False}

    def test_strict_external_ips_are_switched_on(self) -> None:
        assert environment("overlays/strict-external-ips")["KROUTE_STRICT_EXTERNAL_IPS"] == "true"

    def test_the_pods_take_it(self) -> None:
        objects = render(KUSTOMIZE / "overlays/dual-stack")
        [container] = pods(objects)[0]["containers"]
        assert container["envFrom"] == [{"configMapRef": {"name": the("ConfigMap", objects)["metadata"]["name"]}}]


class TestImage:
    """What the image is built from. tests/scenarios/test_image.py looks at the one that buildah has built."""

    DOCKERFILE = (DEPLOY / "Dockerfile").read_text()

    def test_each_step_of_the_installation_is_a_layer(self) -> None:
        assert re.findall(r"/install (\w+)$", self.DOCKERFILE, re.MULTILINE) == [
            *("dependencies", "program"),
            "bird",
            "system",
        ]
        script = (DEPLOY / "install").read_text()
        assert re.findall(r"^    (\w+)\)$", script, re.MULTILINE) == ["dependencies", "program", "system", "bird"]

    def test_every_base_is_named_by_its_digest(self) -> None:
        stages = re.findall(r"^FROM (?:--\S+ )*(\S+)(?: AS (\S+))?$", self.DOCKERFILE, re.MULTILINE | re.IGNORECASE)
        own = {name for _, name in stages if name}
        bases = [image for image, _ in stages if image not in own]
        assert len(stages) == len(re.findall(r"^FROM\b", self.DOCKERFILE, re.MULTILINE | re.IGNORECASE))
        assert bases
        assert all(re.fullmatch(r"[a-z0-9./-]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}", image) for image in bases)
        assert len(set(bases)) == 1, "both stages have the libraries of one distribution"

    def test_somebody_says_when_a_digest_is_out_of_date(self) -> None:
        updates = yaml.safe_load((DEPLOY.parent / ".github/dependabot.yml").read_text())["updates"]
        watched = {(it["package-ecosystem"], it["directory"]) for it in updates}
        assert watched == {("docker", "/deploy"), ("pip", "/requirements"), ("github-actions", "/")}

    def test_it_starts_kroute_itself_and_not_as_root(self) -> None:
        assert 'ENTRYPOINT ["kroute"]' in self.DOCKERFILE
        assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", self.DOCKERFILE, re.MULTILINE)
        assert image_environment()["PATH"].split(":")[0] == "/opt/kroute/bin"

    def test_the_manifests_name_its_version(self, pod: Object) -> None:
        assert {it["image"] for it in containers(pod)} == {f"kroute:{__version__}"}

    def test_what_is_copied_is_not_ignored(self) -> None:
        ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
        copied = re.findall(r"^COPY (?!--)(.*) \S+$", self.DOCKERFILE, re.MULTILINE)
        for path in " ".join(copied).split():
            assert f"!{path}" in ignore

    def test_its_packages_are_those_that_the_tests_have(self) -> None:
        pin = re.compile(r"^([a-z0-9-]+)==(\S+) ((?:\\\n +--hash=\S+ ?)+)", re.MULTILINE)
        requirements = DEPLOY.parent / "requirements"
        run, dev = (set(pin.findall((requirements / name).read_text())) for name in ("run.txt", "dev.txt"))
        assert len(run) > 5
        assert run <= dev
