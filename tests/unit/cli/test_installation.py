"""`kroute check --cluster`, `kubectl kroute check` and `kubectl kroute values`, before anything is installed."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from jsonschema import Draft7Validator

from kroute.base import logs
from kroute.checks import cluster_checks, cluster_reader
from kroute.checks.cluster_reader import Cluster, Query, read_cluster
from kroute.checks.finding import Finding, Level
from kroute.cli.chart_values import OF_THE_POD, text_of, values_of
from kroute.cli.installation import findings_by, findings_of, with_kubeconfig
from kroute.cli.kubectl import command
from kroute.settings import Settings
from kroute.watchers.kubernetes.errors import ApiError, ConfigurationError
from tests.apiserver.resources import Object
from tests.apiserver.server import ApiServer
from tests.lab.chart import CHART, helm, render_chart
from tests.lab.manifests import the
from tests.unit import chart_schema
from tests.unit.cli import clusters
from tests.unit.cli.clusters import get_of
from tests.unit.cli.fleet.cluster import cluster as cluster_with_agents
from tests.unit.command_line import exit_code
from tests.unit.kubernetes_schemas import NEWEST, OLDEST

GOLDEN = Path(__file__).parents[1] / "golden" / "values"
K3S_FLAGS = ("--kube-proxy-arg", "proxy-mode=ipvs", "--kube-proxy-arg=ipvs-scheduler=lc", "--service-cidr=10.50.0.0/16")
CLUSTERS = {
    "kubeadm": clusters.kubeadm(),
    "kubeadm-iptables": clusters.kubeadm(""),
    "k3s": clusters.k3s(),
    "k3s-three-servers": clusters.k3s(3, *K3S_FLAGS),
    "kube-router": clusters.kube_router("--hairpin-mode=true", "--service-cluster-ip-range", "10.97.0.0/16"),
    "cilium": clusters.cilium("false"),
    "calico": clusters.calico(),
}


async def read(*objects: Object, denied: Iterable[str] = (), version: str = "v1.36.2") -> Cluster:
    return await read_cluster(get_of(objects, denied=[*denied], version=version), "kube-system")


async def found(*objects: Object, **how: Any) -> dict[str, list[Finding]]:
    """The findings by their checks."""
    by_check: dict[str, list[Finding]] = {}
    for finding in findings_of(await read(*objects, **how)):
        by_check.setdefault(finding.check, []).append(finding)
    return by_check


async def values_text(*objects: Object) -> str:
    return text_of(values_of(await read(*objects)), "kube-system")


async def values_in(*objects: Object) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(await values_text(*objects))
    return content


class TestValues:
    """`kubectl kroute values`."""

    @pytest.mark.parametrize("name", CLUSTERS)
    async def test_they_are_those_of_the_golden_file_and_the_chart_takes_them(self, name: str, tmp_path: Path) -> None:
        text = await values_text(*CLUSTERS[name])
        path = GOLDEN / f"{name}.yaml"
        if "KROUTE_WRITE_GOLDEN" in os.environ:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text()
        values = yaml.safe_load(text)
        Draft7Validator(json.loads((CHART / "values.schema.json").read_text())).validate(values)
        rendered = the("ConfigMap", render_chart(values))["data"]
        server = values["apiServer"]
        if "hosts" in server:
            assert rendered["KROUTE_MASTER"] == ",".join(f"https://{host}" for host in server["hosts"])
        else:
            assert rendered["KUBERNETES_SERVICE_HOST"] == server["host"]
        (tmp_path / "values.yaml").write_text(text)
        done = helm("template", "kroute", str(CHART), "--values", str(tmp_path / "values.yaml"))
        assert done.returncode == 0, done.stderr

    async def test_what_the_chart_settles_is_not_among_them(self) -> None:
        assert OF_THE_POD == chart_schema.OF_THE_POD
        objects = clusters.kubeadm()
        [conf] = [each for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "kube-proxy"]
        conf["data"]["config.conf"] = conf["data"]["config.conf"].replace(
            'hostnameOverride: ""', "hostnameOverride: node1"
        )
        assert not OF_THE_POD & (await values_in(*objects))["settings"].keys()

    async def test_a_wrong_value_is_left_out_and_named_and_the_others_stay(self) -> None:
        objects = clusters.kube_proxy("ipvs", scheduler="fastest", detectLocalMode="NodeCIDR")
        text = await values_text(*clusters.kubeadm()[:4], *objects)
        settings = yaml.safe_load(text)["settings"]
        assert "scheduler" not in settings
        assert settings["detect-local-mode"] == "NodeCIDR"
        assert "# - ConfigMap kube-system/kube-proxy, config.conf, ipvs.scheduler: 'fastest' is not one of" in text
        [finding] = [each for each in (await found(*objects))["settings"] if each.level is Level.WARNING]
        assert "ipvs.scheduler: 'fastest' is not one of" in finding.message

    async def test_settings_that_need_each_other_are_a_failure_if_one_is_missing(self) -> None:
        objects = clusters.kube_proxy(detectLocalMode="BridgeInterface")
        [failure] = [each for each in (await found(*objects))["settings"] if each.level is Level.FAIL]
        assert "--pod-bridge-interface need each other" in failure.message

    async def test_flags_are_translated_where_there_is_no_file(self) -> None:
        """AKS and clusters by hand give kube-proxy flags."""
        flags = (
            "kube-proxy",
            "--proxy-mode=ipvs",
            "--ipvs-scheduler=sh",
            "--masquerade-all",
            "--ipvs-udp-timeout",
            "9s",
        )
        program = clusters.container("kube-proxy", *flags, "--v=3", "--metrics-bind-address=0.0.0.0:10249")
        text = await values_text(clusters.daemon_set("kube-proxy", program))
        assert yaml.safe_load(text)["settings"] == {
            "scheduler": "sh",
            "masquerade-all": True,
            "ipvs-udp-timeout": "9s",
            "metrics-bind-address": "0.0.0.0:10249",
        }
        assert "# kube-proxy's flags, DaemonSet kube-system/kube-proxy, --ipvs-scheduler\n" in text

    async def test_what_objects_contain_stays_in_its_comment_or_string(self) -> None:
        evil = "fine\\nmode: uninstall"
        objects = clusters.kube_proxy("ipvs", scheduler=f'"{evil}"', bridgeInterface=f'"{evil}"')
        objects[1]["data"]["config.conf"] += '"evil\\nmode: uninstall": 1\n'
        text = await values_text(*objects)
        assert {"mode"} & yaml.safe_load(text).keys() == set()
        assert "evil\\x0amode: uninstall" in text


class TestApiServers:
    """Which address of the API server is chosen."""

    @pytest.mark.parametrize(
        ("cluster_info", "kube_proxy", "own", "chosen"),
        [
            ("https://192.0.2.10:8443", "https://192.168.1.1:6443", ["192.168.1.1", "192.168.1.2"], "192.0.2.10:8443"),
            ("https://192.168.1.1:6443", "https://127.0.0.1:6443", ["192.168.1.1"], "127.0.0.1:6443"),
            ("https://127.0.0.1:6443", "https://192.168.1.1:6443", ["192.168.1.1"], "192.168.1.1:6443"),
            (
                "",
                "https://abc.gr7.eu-west-1.eks.amazonaws.com",
                ["10.0.0.7"],
                "abc.gr7.eu-west-1.eks.amazonaws.com:443",
            ),
            ("https://[fd00::1]:6443", "", ["192.168.1.1"], "[fd00::1]:6443"),
            ("https://bad host:6443", "https://h:99999", ["192.168.1.1"], "192.168.1.1:6443"),
            ("https://192.168.1.1:6443", "", [], "192.168.1.1:6443"),
        ],
        ids=["balanced", "kubespray's local balancer", "a loopback", "a name", "IPv6", "nonsense", "no slice"],
    )
    async def test_one_that_balances_comes_first(
        self, cluster_info: str, kube_proxy: str, own: list[str], chosen: str
    ) -> None:
        objects = [
            clusters.config_map("cluster-info", {"kubeconfig": clusters.kubeconfig(cluster_info)}, "kube-public"),
            *clusters.kube_proxy(server=kube_proxy),
            *([clusters.api_servers(*own)] if own else []),
        ]
        [finding] = (await found(*objects))["api server"]
        assert (finding.level, finding.message.partition(" (")[0]) == (Level.OK, chosen)

    async def test_where_nothing_balances_all_are_taken(self) -> None:
        text = await values_text(clusters.api_servers("192.168.1.1", "192.168.1.2", "192.168.1.3"))
        hosts = ["192.168.1.1:6443", "192.168.1.2:6443", "192.168.1.3:6443"]
        assert yaml.safe_load(text)["apiServer"] == {"hosts": hosts}

    async def test_without_any_the_file_is_not_complete(self) -> None:
        [finding] = (await found())["api server"]
        assert finding.level is Level.FAIL
        assert (await values_in())["apiServer"] == {"host": "", "port": 6443}


class TestFindings:
    """The rows of the table."""

    @pytest.mark.parametrize(
        ("version", "level"),
        [
            (f"v{OLDEST}", Level.OK),
            (f"v{NEWEST}+k3s1", Level.OK),
            ("v1.29.9-eks-1", Level.FAIL),
            ("v1.38.0", Level.WARNING),
            ("soon", Level.WARNING),
        ],
    )
    async def test_versions(self, version: str, level: Level) -> None:
        assert [each.level for each in (await found(version=version))["version"]] == [level]

    def test_the_versions_are_those_by_which_the_manifests_are_checked(self) -> None:
        versions = [".".join(map(str, each)) for each in (cluster_checks.OLDEST, cluster_checks.NEWEST)]
        assert [f"{each}.0" for each in versions] == [OLDEST, NEWEST]

    @pytest.mark.parametrize(
        ("level", "expected"),
        [("", Level.OK), ("privileged", Level.OK), ("baseline", Level.FAIL), ("restricted", Level.FAIL)],
    )
    async def test_pod_security(self, level: str, expected: Level) -> None:
        [finding] = (await found(clusters.namespace(enforce=level)))["namespace"]
        assert finding.level is expected

    async def test_a_namespace_that_is_not_there_is_created_by_helm(self) -> None:
        [finding] = (await found())["namespace"]
        assert (finding.level, finding.next_step) == (Level.WARNING, "install with `--create-namespace`")

    async def test_nodes(self) -> None:
        nodes = [
            clusters.node("a"),
            clusters.node("b", kernelVersion="5.14.0-570.el9", architecture="arm64", osImage="RHEL\x1b[2J"),
            clusters.node("w", operatingSystem="windows"),
        ]
        summary, old, architecture, windows = (await found(*nodes))["nodes"]
        assert summary.message.startswith("2 Nodes: Linux 6.1.0-41-amd64 (1), 5.14.0-570.el9 (1); ")
        assert [each.level for each in (summary, old, architecture, windows)] == ["OK", "WARNING", "WARNING", "OK"]
        assert "5.14.0-570.el9" in old.message
        assert "arm64" in architecture.message

    @pytest.mark.parametrize(
        ("objects", "level", "words"),
        [
            (clusters.calico(), Level.OK, "Calico: DaemonSet calico-system/calico-node"),
            (clusters.calico(is_ebpf=True), Level.FAIL, "eBPF data plane"),
            (clusters.cilium("true"), Level.FAIL, "kube-proxy-replacement is true"),
            (clusters.cilium("strict"), Level.FAIL, "kube-proxy-replacement is strict"),
            (clusters.cilium("partial"), Level.WARNING, "some kinds of Services"),
            (clusters.cilium("disabled"), Level.OK, "Cilium without"),
            (clusters.cilium()[:-1], Level.WARNING, "cilium-config is not known"),
            (clusters.kube_router("--service-cluster-ip-range=10.96.0.0/12"), Level.OK, "its routes and policies stay"),
            (clusters.kube_router(), Level.WARNING, "does not know the Service range"),
            (clusters.k3s(), Level.OK, "flannel, as a part of K3s"),
            ([clusters.daemon_set("x", clusters.container("logger"))], Level.WARNING, "no DaemonSet is that of"),
            ([], Level.WARNING, "no DaemonSet is known"),
            *(
                ([clusters.daemon_set("x", *map(clusters.container, names))], level, words)
                for names, level, words in [
                    (["kube-flannel"], Level.OK, "flannel"),
                    (["calico-node", "kube-flannel"], Level.OK, "Canal"),
                    (["weave", "weave-npc"], Level.WARNING, "ingress policies"),
                    (["ovnkube-controller", "ovn-controller"], Level.FAIL, "OVN-Kubernetes"),
                    (["cni-server"], Level.WARNING, "--enable-lb"),
                    (["kindnet-cni"], Level.OK, "kindnet"),
                    (["aws-node"], Level.OK, "VPC CNI"),
                    (["antrea-agent", "antrea-ovs"], Level.WARNING, "antrea-agent.conf is not known"),
                ]
            ),
        ],
    )
    async def test_cni_plugins(self, objects: list[Object], level: Level, words: str) -> None:
        [finding] = (await found(*objects))["cni"]
        assert finding.level is level
        assert words in finding.message

    @pytest.mark.parametrize(
        ("conf", "level"),
        [
            ("antreaProxy:\n  enable: true\n  proxyAll: true\n", Level.FAIL),
            ("antreaProxy:\n  proxyAll: false\n", Level.OK),
            ("antreaProxy:\n  #proxyAll: true\n", Level.OK),
        ],
    )
    async def test_antrea(self, conf: str, level: Level) -> None:
        agent = clusters.daemon_set("antrea-agent", clusters.container("antrea-agent"), config_map="antrea-config")
        config = clusters.config_map("antrea-config", {"antrea-agent.conf": conf})
        assert [each.level for each in (await found(agent, config))["cni"]] == [level]

    async def test_calicos_switch_on_its_daemon_set_counts_before_its_configuration(self) -> None:
        objects = [each for each in clusters.calico(is_ebpf=True) if each["kind"] != "DaemonSet"]
        program = clusters.container("calico-node", FELIX_BPFENABLED="false")
        objects.append(clusters.daemon_set("calico-node", program))
        assert [each.level for each in (await found(*objects))["cni"]] == [Level.OK]

    @pytest.mark.parametrize(
        ("objects", "level", "words"),
        [
            (clusters.kubeadm(), Level.WARNING, "DaemonSet kube-system/kube-proxy, on 3 Nodes, mode ipvs"),
            (clusters.kubeadm(""), Level.WARNING, "mode iptables"),
            (clusters.kubeadm("nftables"), Level.WARNING, "mode nftables"),
            (clusters.k3s(), Level.WARNING, "a part of K3s or RKE2, on 2 Nodes, mode iptables"),
            (clusters.k3s(1, *K3S_FLAGS), Level.WARNING, "mode ipvs"),
            (clusters.k3s(1, "--disable-kube-proxy"), Level.OK, "disabled in K3s or RKE2"),
            (clusters.k3s(1, "--disable-kube-proxy=true"), Level.OK, "disabled in K3s or RKE2"),
            (clusters.kube_router(), Level.WARNING, "kube-router serves Services"),
            (clusters.kube_router("--run-service-proxy=false"), Level.OK, "no Pod of kube-proxy was found"),
            (clusters.cilium(), Level.OK, "no Pod of kube-proxy was found"),
            ([clusters.static_pod("kube-proxy", "--proxy-mode=ipvs")], Level.WARNING, "static Pods such as"),
            (
                [clusters.daemon_set("kube-proxy", clusters.container("kube-proxy"), nodes=0)],
                Level.OK,
                "on 0 Nodes",
            ),
            (
                [clusters.daemon_set("kube-proxy-windows", clusters.container("kube-proxy"), os="windows")],
                Level.OK,
                "no Pod of kube-proxy was found",
            ),
            ([], Level.WARNING, "is not known"),
            (
                [
                    clusters.daemon_set(
                        "kroute", clusters.container("kroute"), labels={"app.kubernetes.io/name": "kroute"}
                    )
                ],
                Level.OK,
                "kroute is installed already",
            ),
        ],
    )
    async def test_service_proxies(self, objects: list[Object], level: Level, words: str) -> None:
        finding, *_ = (await found(*objects))["proxy"]
        assert finding.level is level
        assert words in finding.message

    async def test_a_pod_of_the_daemon_set_is_no_other_kube_proxy(self) -> None:
        """AKS gives these Pods the label of static ones."""
        pod = clusters.static_pod("kube-proxy", "--proxy-mode=ipvs")
        del pod["metadata"]["annotations"]
        assert len((await found(*clusters.kubeadm(), pod))["proxy"]) == 1

    async def test_a_second_kube_proxy_is_named(self) -> None:
        other = clusters.daemon_set("kube-proxy-arm", clusters.container("kube-proxy"), nodes=1)
        first, second = (await found(*clusters.kubeadm(), other))["proxy"]
        assert "kube-system/kube-proxy," in first.message
        assert "another kube-proxy (DaemonSet kube-system/kube-proxy-arm)" in second.message

    async def test_metallb_needs_strict_arp(self) -> None:
        speaker = clusters.daemon_set("speaker", clusters.container("speaker"), namespace="metallb-system")
        _, finding = (await found(*clusters.kubeadm(), speaker))["neighbours"]
        assert (finding.level, finding.next_step) == (Level.WARNING, "set settings.strict-arp to on")
        assert len((await found(*clusters.kubeadm(""), speaker))["neighbours"]) == 1

    async def test_pod_networks(self) -> None:
        aside = clusters.node("aside", pods="172.16")
        good, bad = (await found(*clusters.kubeadm(), aside))["pods"]
        assert good.message.startswith("10.244.0.0/16, fd00:10:244::/56 (")
        assert "Node aside has podCIDR 172.16.1.0/24" in bad.message
        [only_nodes] = (await found(clusters.node("a")))["pods"]
        assert "NodeCIDR" in only_nodes.message
        [unknown] = (await found())["pods"]
        assert unknown.level is Level.WARNING
        flag = clusters.static_pod("kube-controller-manager", "--cluster-cidr=10.7.0.0/16")
        assert (await values_in(flag))["settings"] == {"cluster-cidr": ["10.7.0.0/16"]}

    async def test_service_ranges(self) -> None:
        flag = clusters.static_pod("kube-apiserver", "--service-cluster-ip-range=10.8.0.0/16")
        assert (await values_in(flag))["settings"]["service-cidr"] == ["10.8.0.0/16"]
        assert "service-cidr" not in (await values_in(flag, clusters.service_cidr("10.8.0.0/16")))["settings"]


class TestReading:
    """What is denied, missing, too long or of another form costs itself alone."""

    @pytest.mark.parametrize(
        ("plural", "lost"),
        [
            ("nodes", {"nodes"}),
            ("daemonsets", {"proxy", "cni", "neighbours"}),
            ("configmaps", {"api server", "proxy", "pods", "settings"}),
            ("endpointslices", set()),
            ("servicecidrs", {"services"}),
            ("namespaces", {"namespace"}),
            ("pods", set()),
        ],
    )
    async def test_a_denied_read_is_one_line_and_nothing_else_is_lost(self, plural: str, lost: set[str]) -> None:
        everything, less = await found(*clusters.kubeadm()), await found(*clusters.kubeadm(), denied=[plural])
        assert {it.partition(" may not be read")[1] for it in map(str, less.pop("access"))} == {" may not be read"}
        assert {check for check in everything if less.get(check) != everything[check]} == lost

    async def test_an_object_of_another_form_costs_itself_alone(self) -> None:
        odd = clusters.node("odd")
        odd["spec"]["podCIDRs"] = {"a": 1}
        cluster = await read(odd, clusters.node("good"))
        assert [node.metadata.name for node in cluster.nodes] == ["good"]
        assert [each.message for each in cluster.unread] == [
            "one of Nodes cannot be read: Expected `array | null`, got `object` - at `$.spec.podCIDRs`"
        ]

    async def test_an_object_that_is_nested_too_deep_costs_itself_alone(self) -> None:
        get = get_of([clusters.node("deep"), clusters.node("good")])

        async def deep(path: str, query: Query) -> bytes:
            answer = await get(path, query)
            return answer.replace(b'"name": "deep"', b'"name":"deep","x":' + b"[" * 2_000 + b"]" * 2_000, 1)

        cluster = await read_cluster(deep, "kube-system")
        assert [node.metadata.name for node in cluster.nodes] == ["good"]
        assert [each.message for each in cluster.unread] == ["one of Nodes cannot be read: it is nested too deep"]

    async def test_a_list_is_read_in_pages_and_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster_reader, "PAGE", 2)
        nodes = [clusters.node(f"n{number}") for number in range(7)]
        assert len((await read(*nodes)).nodes) == 7
        monkeypatch.setattr(cluster_reader, "MOST_PAGES", 3)
        cluster = await read(*nodes)
        assert len(cluster.nodes) == 6
        assert [each.message for each in cluster.unread] == ["only the first 6 of Nodes were read"]

    async def test_a_long_text_is_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster_reader, "LONGEST_TEXT", 1024)
        checks = await found(*clusters.kubeadm())
        assert [each.message for each in checks["access"]] == [
            "config.conf of the ConfigMap kube-system/kube-proxy is longer than 1 KiB"
        ]
        assert checks["pods"][0].message.endswith("networking.podSubnet)")

    async def test_aliases_that_stand_for_too_much_are_refused(self) -> None:
        bomb = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True):
            bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
        config = clusters.config_map("kubeadm-config", {"ClusterConfiguration": bomb})
        assert "NodeCIDR" in (await found(clusters.node("a"), config))["pods"][0].message

    async def test_an_unknown_answer_is_no_cluster(self) -> None:
        async def get(_path: str, _query: Query) -> bytes:
            return b"<html>"

        [finding] = await findings_by(get, "kube-system")
        assert (finding.check, finding.level) == ("api", Level.FAIL)

    async def test_the_version_may_be_denied(self) -> None:
        async def get(path: str, _query: Query) -> bytes:
            raise ApiError(403 if path == "/version" else 404, "", "no")

        assert {each.check for each in await findings_by(get, "kube-system")} >= {"version", "namespace"}


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    """The stand-in with the objects of a cluster by kubeadm."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    async with ApiServer() as server:
        for item in clusters.kubeadm():
            server.apply(item)
        server.kubeconfig(tmp_path / "kubeconfig")
        yield server


async def plugin(*arguments: object) -> int:
    """Run `kubectl-kroute` in a thread, since the server is in this one; return the exit code."""

    def call() -> int:
        with patch.object(logs, "configure"), pytest.raises(SystemExit) as stop:
            command.main([*map(str, arguments), "--timeout", "120s"])
        assert isinstance(stop.value.code, int)
        return stop.value.code

    return await asyncio.to_thread(call)


@pytest.mark.kubectl
class TestTransports:
    """One reader by kubectl and by kroute's own client."""

    async def test_both_find_the_same(self, api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        api.access.forbid("list", "nodes")
        expected = findings_of(await read(*clusters.kubeadm(), denied=["nodes"]))
        options = ("--kubeconfig", tmp_path / "kubeconfig", "-o", "json")
        assert await plugin("check", *options) == 0
        first = json.loads(capsys.readouterr().out)
        assert await asyncio.to_thread(exit_code, "check", "--cluster", *options) == 0
        assert json.loads(capsys.readouterr().out) == first
        assert [(it["check"], it["level"], it["message"]) for it in first["items"]] == [
            (it.check, it.level, it.message) for it in expected
        ]

    async def test_values_are_written_to_standard_output(
        self, api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ("values", "--kubeconfig", tmp_path / "kubeconfig")
        assert await plugin(*options) == 0
        assert capsys.readouterr().out == (GOLDEN / "kubeadm.yaml").read_text()
        assert await plugin(*options, "--node", "node1") == 2
        for kind, name, namespace in (
            ("ConfigMap", "cluster-info", "kube-public"),
            ("ConfigMap", "kube-proxy", "kube-system"),
            ("EndpointSlice", "kubernetes", "default"),
        ):
            api.delete(kind, name, namespace)
        assert await plugin(*options) == 1
        written = capsys.readouterr()
        assert yaml.safe_load(written.out)["apiServer"]["host"] == ""
        assert "set apiServer.host" in written.err

    async def test_without_a_cluster_the_reason_is_named(
        self, api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ("--kubeconfig", tmp_path / "kubeconfig")
        async with api.out_of_reach():
            assert await plugin("values", *options) == 1
            written = capsys.readouterr()
            assert (written.out, "refused" in written.err) == ("", True)
            assert await plugin("check", *options) == 1
            assert await asyncio.to_thread(exit_code, "check", "--cluster", *options) == 1
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
        assert [line.startswith("FAIL     api  the cluster cannot be read: ") for line in lines] == [True, True]

    async def test_once_agents_are_there_check_runs_on_each_node(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        monkeypatch.setenv("HOME", str(tmp_path))
        async with cluster_with_agents(tmp_path) as nodes:
            await nodes.node("node1")
            await plugin("check", *nodes.options)
            assert "== node1 ==" in capsys.readouterr().out
            await plugin("check", "--before-install", *nodes.options)
            assert "OK       api         the API server answers" in capsys.readouterr().out
            assert await plugin("check", "--node", "node9", *nodes.options) != 0
            assert "no pod of kroute on node node9" in capsys.readouterr().err

    def test_the_kubeconfig_is_kubectls(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        none = Settings(node_name="here")
        with pytest.raises(ConfigurationError, match=r"there is no kubeconfig .*\.kube/config"):
            with_kubeconfig(none)
        (tmp_path / ".kube").mkdir()
        usual = tmp_path / ".kube" / "config"
        usual.touch()
        assert with_kubeconfig(none).kubeconfig == usual
        monkeypatch.setenv("KUBECONFIG", f"{usual}:/b")
        with pytest.raises(ConfigurationError, match="names several files"):
            with_kubeconfig(none)
        given = Settings(node_name="here", kubeconfig=Path("/given"))
        assert with_kubeconfig(given) is given
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
        assert with_kubeconfig(none) is none
