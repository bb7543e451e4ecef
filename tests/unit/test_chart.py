"""The Helm chart makes the objects of deploy/kustomize, and refuses values that would not work."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kroute import __version__
from kroute.cli.main import load
from kroute.settings import DEFAULTS
from kroute.settings.text import as_flags, parse_servers
from tests.lab.chart import CHART, REQUIRED, helm, refusal, render_chart
from tests.lab.manifests import DEPLOY, KUSTOMIZE, render, the, with_component
from tests.lab.objects import Object
from tests.unit import chart_readme, chart_schema
from tests.unit.chart_schema import OF_THE_POD
from tests.unit.kubernetes_schemas import NEWEST, OLDEST, validate

NO_HOST = '"KUBERNETES_SERVICE_HOST": ""'
DUAL_STACK = {
    "settings": {
        "cluster-cidr": ["10.244.0.0/16", "fd00:10:244::/56"],
        "service-cidr": "10.96.0.0/12,fd00:10:96::/112",
    }
}
STRICT = {
    "settings": {
        "strict-external-ips": True,
        "external-ip-range": "192.0.2.0/24",
        "loadbalancer-ip-range": ["198.51.100.0/24"],
    }
}
MONITORED = {"settings": {"own-bind-address": "0.0.0.0:9999"}, "podMonitor": {"enabled": True}}
EVERY_VALUE = {
    "image": {"pullPolicy": "Always", "pullSecrets": [{"name": "registry"}], "tag": "1.0"},
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
    "podAnnotations": {"example.com/owner": "network"},
    "nodeSelector": {"pool": "web"},
    "directors": [{"name": "front"}],
    "updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}},
    "podLabels": {"team": "network"},
    "priorityClassName": "own-class",
    "serviceAccount": {"annotations": {"example.com/role": "proxy"}},
    "extraInitContainers": [{"name": "wait", "image": "busybox", "command": ["true"]}],
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://192.0.2.9:3128"}],
    "extraVolumes": [{"name": "extra", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
    "config": {"configMap": "kube-proxy"},
    "admission": True,
    "migration": {"byLabel": True, "handOverTo": "kube-router"},
    "dashboard": {"enabled": True, "annotations": {"grafana_folder": "Network"}},
}
FORMS = [
    ("ASN[,ASN]", ["65000", "64512,4200000000"], ["AS65000", "1.10", "-1"]),
    (
        "CIDR[,CIDR]",
        ["10.0.0.0/8", "10.0.0.1", "fd00::/8,10.244.0.0/16", "::/0", "10.0.0.0/8 fd00::/64", "::ffff:10.0.0.0/104"],
        ["10.0.0.0/33", "256.0.0.0/8", "10.0.0/8", "nodes", "fd00/8", "fd00::/129", "10.0.0.0/8;fd00::/8"],
    ),
    ("CLASS[,CLASS]", ["default", "default,example.com/internal-vip"], ["a b;c", "example.com/", "-a", "A/b"]),
    ("CIDR[,CIDR]|primary", ["primary", "192.0.2.0/24"], ["secondary", "192.0.2.0/40"]),
    ("DURATION", ["30s", "5m", "1h30m", "0", "1h", "2"], ["30 s", "five", "30ms", "-1s", ""]),
    ("FLAG[,FLAG]|none", ["none", "sh-port,sh-fallback", "mh-port"], ["sh_port", "sh-port;mh-port"]),
    ("ID", ["192.0.2.1"], ["1", "fd00::1", "router"]),
    ("IP[,IP]", ["192.0.2.1", "192.0.2.1,fd00::1"], ["192.0.2.0/24", "router"]),
    (
        "IP:PORT|off",
        ["0.0.0.0:10256", ":10256", "[::1]:10256", "off"],
        ["10256", "0.0.0.0", "::1:10256", "localhost:10256", "300.0.0.1:10256"],
    ),
    ("MARK", ["0x4000", "16384"], ["4000h", "-1"]),
    ("NAME", ["cni0"], ["a/b", "a b", ""]),
    ("PERCENT", ["0.1%", "5%", "1 %"], ["0.1", "many", "-1%"]),
    ("DIRECTORY", ["/etc/cni/net.d", "/"], ["net.d", "/etc/a b", ""]),
    ("PORT[,PORT]", ["179", "0,1790"], ["bgp", "179-180", "123456"]),
    ("PORT[-PORT][,...]", ["22", "22,2379-2380"], ["ssh", "22-", "123456"]),
    (
        "SRC:DST[,...]",
        ["10.0.0.0/8:10.0.0.0/8", "fd00::/8:fd00::/8,10.0.0.0/8:192.0.2.1"],
        ["10.0.0.0/8", "10.0.0.0/8-10.0.0.0/8", "a:b"],
    ),
]
"""Of each kind of setting values that are right, and values that are not."""
SCHEMA = CHART / "values.schema.json"
DIGEST = "sha256:" + "ab" * 32


def comparable(objects: list[Object]) -> dict[tuple[str, str], Object]:
    """Objects by kind and name, without what each tool does in its own way.

    A new ConfigMap restarts the pods: with kustomize by a digest in its name, with Helm by one on the pods. Helm gives
    every object the same labels, kustomize one of them, and the component of directors has none.
    """
    text = json.dumps(objects)
    for item in objects:
        if item["kind"] == "ConfigMap":
            text = text.replace(json.dumps(item["metadata"]["name"]), '"kroute"')
            text = text.replace(f'"KUBERNETES_SERVICE_HOST": "{REQUIRED["apiServer"]["host"]}"', NO_HOST)
    made: dict[tuple[str, str], Object] = {}
    for item in json.loads(text):
        if item["kind"] == "DaemonSet":
            of_pod = item["spec"]["template"]["metadata"]
            of_pod["annotations"] = {
                name: value for name, value in of_pod.get("annotations", {}).items() if name != "checksum/config"
            }
        labels = item["metadata"].setdefault("labels", {})
        assert labels.get("helm.sh/chart") in {None, f"kroute-{__version__}"}
        del item["metadata"]["labels"]
        made[item["kind"], item["metadata"]["name"]] = item
    assert len(made) == len(objects)
    return made


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("base", {}),
        ("overlays/dual-stack", DUAL_STACK),
        ("overlays/strict-external-ips", STRICT),
        ("overlays/director", {"directors": [{"name": "kroute-director"}]}),
    ],
)
def test_the_objects_are_those_of_kustomize(name: str, values: dict[str, Any]) -> None:
    assert comparable(render_chart(values)) == comparable(render(KUSTOMIZE / name))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("iptables", {"iptables": True}),
        ("modules-of-the-host", {"loadModules": False}),
        ("admission", {"admission": True}),
        ("pod-weights", {"settings": {"pod-weights": True}}),
        ("network-policies", {"settings": {"network-policies": True}}),
        ("load-balancer-addresses", {"settings": {"allocate-load-balancer-ips": True}}),
        ("direct-return", {"settings": {"direct-return": True}}),
        ("announce", {"settings": {"announce": True}}),
        ("pod-network", {"settings": {"pod-network": True}}),
    ],
)
def test_a_component_of_kustomize_is_a_value(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    assert comparable(render_chart(values)) == comparable(with_component(name, tmp_path))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("uninstall", {"mode": "uninstall"}),
        ("hand-over", {"mode": "hand-over", "migration": {"handOverTo": "kube-proxy"}}),
        ("hand-over-kube-router", {"mode": "hand-over", "migration": {"handOverTo": "kube-router"}}),
    ],
)
def test_the_pods_in_kroutes_place_are_those_of_kustomize(name: str, values: dict[str, Any]) -> None:
    """There kroute's own objects stay meanwhile: `kubectl apply` takes none away."""
    [daemonset] = render_chart(values)
    other = the("DaemonSet", render(KUSTOMIZE / name), daemonset["metadata"]["name"])
    assert comparable([daemonset]) == comparable([other])


def test_by_label_both_pods_are_those_of_kustomize(tmp_path: Path) -> None:
    objects = render_chart({"migration": {"byLabel": True, "handOverTo": "kube-proxy"}})
    others = with_component("hand-over", tmp_path, "by-label")
    for name in ("kroute", "kroute-hand-over"):
        pods = [the("DaemonSet", it, name)["spec"]["template"]["spec"] for it in (objects, others)]
        for pod in pods:
            for container in [*pod["initContainers"], *pod["containers"]]:
                container.pop("envFrom", None)
        assert pods[0] == pods[1]


@pytest.mark.parametrize("values", [{}, DUAL_STACK, {"mode": "uninstall"}], ids=["default", "dual stack", "uninstall"])
def test_helm_finds_no_fault(values: dict[str, Any]) -> None:
    done = helm("lint", "--strict", str(CHART), values=values)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_the_version_of_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


class TestValues:
    """What the schema lets pass, and what becomes of it."""

    def test_the_schema_knows_every_setting_of_the_command_line(self) -> None:
        if "KROUTE_WRITE_GOLDEN" in os.environ:
            SCHEMA.write_text(chart_schema.text())
        assert SCHEMA.read_text() == chart_schema.text()

    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"settings": {"clustr-cidr": "10.244.0.0/16"}}, "clustr-cidr"),
            ({"settings": {"scheduler": "fastest"}}, "settings.scheduler"),
            ({"settings": {"strict-external-ips": "perhaps"}}, "settings.strict-external-ips"),
            ({"settings": {"metrics-services": -1}}, "settings.metrics-services"),
            ({"settings": {"node-name": "node1"}}, "node-name"),
            ({"apiServer": {"port": 66000}}, "apiServer.port"),
            ({"apiServer": {"hosts": ["https://192.0.2.1"]}}, "apiServer.hosts.0"),
            ({"apiServer": {"hosts": ["192.0.2.1,192.0.2.2"]}}, "apiServer.hosts.0"),
            ({"apiserver": {"host": "192.0.2.1"}}, "apiserver"),
            ({"image": {"digest": "sha256:abc"}}, "image.digest"),
            ({"directors": [{"name": "kroute"}]}, "directors.0.name"),
            ({"directors": [{"name": "b", "syncId": 256}]}, "directors.0.syncId"),
            ({"mode": "off"}, "mode"),
            ({"settings": {"cluster-cidr": "10.244.0.0/33"}}, "settings.cluster-cidr"),
            ({"settings": {"service-cidr": ["10.96.0.0/12", "fd00"]}}, "settings.service-cidr.1"),
            ({"settings": {"resync-period": "soon"}}, "settings.resync-period"),
            ({"settings": {"healthz-bind-address": "10256"}}, "settings.healthz-bind-address"),
            ({"settings": {"resync-budget": "0.1"}}, "settings.resync-budget"),
            ({"podMonitor": {"interval": "30"}}, "podMonitor.interval"),
            ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "podLabels"),
            ({"extraVolumeMounts": [{"name": "extra"}]}, "mountPath"),
            (
                {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "many"}}},
                "updateStrategy.rollingUpdate.maxUnavailable",
            ),
            ({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, "maxSurge"),
        ],
        ids=lambda it: json.dumps(it) if isinstance(it, dict) else "",
    )
    def test_a_wrong_value_is_refused_by_its_name(self, values: dict[str, Any], named: str) -> None:
        assert named in refusal(values)

    @pytest.mark.parametrize(
        ("value", "written"),
        [
            ({"hairpin": False}, "off"),
            ({"strict-external-ips": True}, "true"),
            ({"conntrack-max-per-core": 1073741824}, "1073741824"),
            ({"protected-ports": [22, "2379-2380"]}, "22,2379-2380"),
            ({"masquerade-mark": "0x8000"}, "0x8000"),
        ],
        ids=str,
    )
    def test_a_setting_is_written_as_kroute_reads_it(self, value: dict[str, Any], written: str) -> None:
        [name] = value
        data = the("ConfigMap", render_chart({"settings": value}))["data"]
        assert data["KROUTE_" + name.replace("-", "_").upper()] == written

    def test_several_api_servers_are_written_as_kroute_reads_them(self) -> None:
        hosts = ["192.0.2.1", "127.0.0.1:6444", "api.example", "2001:db8::1", "[2001:db8::2]", "[2001:db8::3]:443"]
        data = the("ConfigMap", render_chart({"apiServer": {"host": "192.0.2.9", "port": 8443, "hosts": hosts}}))[
            "data"
        ]
        assert parse_servers(data["KROUTE_MASTER"]) == (
            "https://192.0.2.1:8443",
            "https://127.0.0.1:6444",
            "https://api.example:8443",
            "https://[2001:db8::1]:8443",
            "https://[2001:db8::2]:8443",
            "https://[2001:db8::3]:443",
        )
        assert "KUBERNETES_SERVICE_HOST" not in data, "the Pod's own variable stays"

    @pytest.mark.parametrize(("kind", "good", "bad"), FORMS)
    def test_the_forms_of_settings_are_those_of_the_command_line(
        self, kind: str, good: list[str], bad: list[str]
    ) -> None:
        options = [it for it in load("run").params if it.type.name == kind and it.opts[0][2:] not in OF_THE_POD]
        assert options
        for option in options:
            accepts = re.compile(chart_schema.of_option(option)["pattern"]).search
            for text in good:
                assert accepts(text), f"{option.opts[0]} {text}"
                option.type.convert(text, option, None)
            for text in bad:
                assert not accepts(text), f"{option.opts[0]} {text}"
                with pytest.raises(click.BadParameter):
                    option.type.convert(text, option, None)

    def test_every_default_of_a_setting_has_its_form(self) -> None:
        options = {it.opts[0][2:]: it for it in load("run").params}
        assert {kind for kind, *_ in FORMS} == chart_schema.ELEMENTS.keys()
        for name, text in as_flags(DEFAULTS).items():
            if text and name not in OF_THE_POD and options[name].type.name in chart_schema.ELEMENTS:
                assert re.search(chart_schema.of_option(options[name])["pattern"], text), name

    def test_the_api_servers_address_is_required_unless_a_kubeconfig_has_it(self) -> None:
        assert "apiServer.host is missing" in refusal({"apiServer": {}})
        assert "apiServer.host" in refusal({"apiServer": {"host": "https://192.0.2.1"}})
        [container] = the("DaemonSet", render_chart({"apiServer": {}, "config": {"configMap": "kube-proxy"}}))["spec"][
            "template"
        ]["spec"]["containers"]
        assert container["command"] == ["kroute", "run", "--config", "/var/lib/kube-proxy/config.conf"]

    def test_what_to_do_beside_another_proxy_is_passed_on(self) -> None:
        values = {"migration": {"otherProxies": "ignore", "takeOverAfter": "2m"}}
        data = the("ConfigMap", render_chart(values))["data"]
        assert data["KROUTE_OTHER_PROXIES"] == "ignore"
        assert data["KROUTE_TAKE_OVER_AFTER"] == "2m"
        assert "migration.takeOverAfter" in refusal({"migration": {"takeOverAfter": "soon"}})

    def test_a_digest_takes_the_place_of_the_tag(self) -> None:
        image = {"repository": "registry.example/kroute", "digest": DIGEST}
        pod = the("DaemonSet", render_chart({"image": image}))["spec"]["template"]["spec"]
        assert {it["image"] for it in [*pod["initContainers"], *pod["containers"]]} == {
            f"registry.example/kroute@{DIGEST}"
        }

    def test_the_other_values_are_taken_as_they_are(self) -> None:
        daemonset = the("DaemonSet", render_chart(EVERY_VALUE), "kroute")["spec"]
        pod = daemonset["template"]["spec"]
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["affinity"] == EVERY_VALUE["affinity"]
        assert pod["nodeSelector"]["pool"] == "web"
        assert daemonset["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
        assert daemonset["template"]["metadata"]["labels"] == {"app.kubernetes.io/name": "kroute", "team": "network"}
        assert pod["priorityClassName"] == "own-class"
        assert pod["initContainers"][1:] == EVERY_VALUE["extraInitContainers"]
        [container] = pod["containers"]
        assert container["env"][-1:] == EVERY_VALUE["extraEnv"]
        assert container["volumeMounts"][-1:] == EVERY_VALUE["extraVolumeMounts"]
        assert pod["volumes"][-1:] == EVERY_VALUE["extraVolumes"]
        assert daemonset["template"]["metadata"]["annotations"]["example.com/owner"] == "network"
        of_the_chart = [pod["initContainers"][0], container]
        assert {(it["image"], it["imagePullPolicy"]) for it in of_the_chart} == {("kroute:1.0", "Always")}
        alone = the("DaemonSet", render_chart({**EVERY_VALUE, "loadModules": False}), "kroute")["spec"]["template"]
        assert alone["spec"]["initContainers"] == EVERY_VALUE["extraInitContainers"]

    def test_pods_may_be_replaced_by_hand(self) -> None:
        daemonset = the("DaemonSet", render_chart({"updateStrategy": {"type": "OnDelete"}}))
        assert daemonset["spec"]["updateStrategy"] == {"type": "OnDelete"}

    def test_an_account_may_exist_already(self) -> None:
        objects = render_chart({"serviceAccount": {"create": False, "name": "mine"}})
        assert "ServiceAccount" not in {it["kind"] for it in objects}
        assert the("DaemonSet", objects)["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
        bindings = [it for it in objects if it["kind"].endswith("RoleBinding")]
        assert len(bindings) == 2
        assert {subject["name"] for it in bindings for subject in it["subjects"]} == {"mine"}

    def test_kube_proxys_configmap_is_mounted_where_its_kubeconfig_is_looked_for(self) -> None:
        """As in kubeadm's DaemonSet: config.conf names /var/lib/kube-proxy/kubeconfig.conf, a key of the same map."""
        pod = the("DaemonSet", render_chart({"config": {"configMap": "kube-proxy"}}))["spec"]["template"]["spec"]
        [volume] = [it for it in pod["volumes"] if it.get("configMap")]
        assert volume["configMap"] == {"name": "kube-proxy"}
        mounts = {it["name"]: it["mountPath"] for it in pod["containers"][0]["volumeMounts"]}
        assert mounts[volume["name"]] == "/var/lib/kube-proxy"

    def test_every_object_has_the_labels_of_helm(self) -> None:
        for item in render_chart({**EVERY_VALUE, **MONITORED}):
            labels = item["metadata"]["labels"]
            assert labels["helm.sh/chart"] == f"kroute-{__version__}"
            assert labels["app.kubernetes.io/managed-by"] == "Helm"
            assert labels["app.kubernetes.io/instance"] == "kroute"
            assert labels["app.kubernetes.io/version"] == __version__

    def test_a_selector_has_none_that_changes_with_the_version(self) -> None:
        for item in render_chart({"migration": {"byLabel": True, "handOverTo": "kube-proxy"}}):
            if item["kind"] == "DaemonSet":
                assert item["spec"]["selector"]["matchLabels"] == {"app.kubernetes.io/name": item["metadata"]["name"]}

    def test_in_another_namespace_other_proxies_are_looked_for_in_kube_system_all_the_same(self) -> None:
        done = helm("template", "kroute", str(CHART), "--namespace", "network", values=REQUIRED)
        objects = [it for it in yaml.safe_load_all(done.stdout) if it]
        for kind in ("Role", "RoleBinding"):
            assert the(kind, objects)["metadata"]["namespace"] == "kube-system"
        assert the("RoleBinding", objects)["subjects"][0]["namespace"] == "network"

    def test_a_change_of_a_setting_restarts_the_pods(self) -> None:
        def digest(values: dict[str, Any]) -> str:
            template = the("DaemonSet", render_chart(values))["spec"]["template"]
            return str(template["metadata"]["annotations"]["checksum/config"])

        assert digest({}) == digest({"podAnnotations": {"a": "b"}}) != digest(STRICT)

    def test_the_probes_follow_kroutes_own_address(self) -> None:
        def probes(address: object) -> list[Object]:
            objects = render_chart({"settings": {"own-bind-address": address}})
            [container] = the("DaemonSet", objects)["spec"]["template"]["spec"]["containers"]
            return [container[it] for it in ("startupProbe", "livenessProbe", "readinessProbe") if it in container]

        assert {it["httpGet"]["port"] for it in probes("[::]:10300")} == {10300}
        hosts = {"127.0.0.1:10300": "127.0.0.1", "[::1]:10300": "::1", ":10300": None, "0.0.0.0:10300": None}
        for address, host in {**hosts, "[::]:10300": None}.items():
            assert {it["httpGet"].get("host") for it in probes(address)} == {host}, "the kubelet asks the pod's address"
        assert probes(False) == []


class TestBird:
    """The DaemonSet of BIRD, which comes with the setting `announce`. tests/unit/test_deploy.py looks into it."""

    @staticmethod
    def bird(values: dict[str, Any], **settings: object) -> Object:
        return the("DaemonSet", render_chart({**values, "settings": {"announce": True, **settings}}), "kroute-bird")

    def test_an_upgrade_of_kroute_and_a_change_of_its_settings_leave_it_alone(self) -> None:
        changes = {"image": {"tag": "99.0"}, "resources": {"limits": {"memory": "1Gi"}}, "podLabels": {"a": "b"}}
        assert self.bird(changes, **{"peer-router-ips": "192.0.2.1"}) == self.bird({})

    def test_its_image_is_beside_kroutes_or_elsewhere(self) -> None:
        def image(own: dict[str, str]) -> str:
            values = {"image": {"repository": "registry.example/kroute", "digest": DIGEST}, "bird": {"image": own}}
            [container] = self.bird(values)["spec"]["template"]["spec"]["containers"]
            return str(container["image"])

        assert image({}).startswith("registry.example/kroute-bird:2.")
        assert image({"tag": "2.0.12-2"}) == "registry.example/kroute-bird:2.0.12-2"
        assert image({"repository": "mirror/bird", "digest": DIGEST}) == f"mirror/bird@{DIGEST}"

    def test_its_other_values_are_taken_as_they_are(self) -> None:
        own: dict[str, Any] = {"resources": {"limits": {"memory": "1Gi"}}, "updateStrategy": {"type": "OnDelete"}}
        own["capabilities"] = ["NET_ADMIN"]
        values = {"bird": own, "image": EVERY_VALUE["image"], "nodeSelector": {"pool": "web"}}
        spec = self.bird(values)["spec"]
        [container] = spec["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"memory": "1Gi"}
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
        assert container["imagePullPolicy"] == "Always"
        assert spec["updateStrategy"] == {"type": "OnDelete"}
        assert spec["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["template"]["spec"]["nodeSelector"]["pool"] == "web"

    def test_it_stays_until_nodes_are_clean_and_ends_before_another_proxy_speaks(self) -> None:
        by_label = {"byLabel": True, "handOverTo": "kube-router"}
        own = self.bird({"migration": by_label})["spec"]["template"]["spec"]
        assert own["nodeSelector"]["kroute.io/service-proxy"] == "kroute"
        assert self.bird({"mode": "uninstall"}) == self.bird({})
        gone = [
            {"mode": "hand-over", "migration": {"handOverTo": "kube-router"}, "settings": {"announce": True}},
            {"bird": {"enabled": False}, "settings": {"announce": True}},
            {},
        ]
        for values in gone:
            assert "kroute-bird" not in {it["metadata"]["name"] for it in render_chart(values)}


class TestWayBack:
    """Nodes that go back to another proxy."""

    def test_by_its_label_a_node_has_one_proxy(self) -> None:
        objects = render_chart({"migration": {"byLabel": True, "handOverTo": "kube-router"}})
        kroute = the("DaemonSet", objects, "kroute")["spec"]["template"]["spec"]
        back = the("DaemonSet", objects, "kroute-hand-over")["spec"]["template"]["spec"]
        assert kroute["nodeSelector"] == {"kubernetes.io/os": "linux", "kroute.io/service-proxy": "kroute"}
        [term] = back["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [
            {"key": "kroute.io/service-proxy", "operator": "NotIn", "values": ["kroute"]}
        ]
        assert "kube-router" in back["containers"][0]["command"]
        [all_at_once] = render_chart({"mode": "hand-over", "migration": {"byLabel": True, "handOverTo": "kube-router"}})
        assert "affinity" not in all_at_once["spec"]["template"]["spec"]

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"mode": "hand-over"}, "migration.handOverTo is missing"),
            ({"migration": {"handOverTo": "kube-proxy"}}, "set mode=hand-over"),
            ({"mode": "hand-over", "migration": {"handOverTo": "cilium"}}, "migration.handOverTo"),
        ],
    )
    def test_what_does_not_go_together_is_said_in_a_sentence(self, values: dict[str, Any], said: str) -> None:
        assert said in refusal(values)


class TestMonitoring:
    """Objects for the Prometheus operator."""

    def test_agents_on_loopback_cannot_be_monitored(self) -> None:
        assert "own-bind-address" in refusal({"podMonitor": {"enabled": True}})
        assert "own-bind-address" in refusal({"settings": {"own-bind-address": False}, "podMonitor": {"enabled": True}})

    def test_pods_have_the_port_that_is_asked(self) -> None:
        objects = render_chart(MONITORED)
        monitor = the("PodMonitor", objects)
        pods = the("DaemonSet", objects)["spec"]["template"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        assert pods["spec"]["containers"][0]["ports"] == [{"name": endpoint["port"], "containerPort": 9999}]
        job = pods["metadata"]["labels"][monitor["spec"]["jobLabel"]]
        assert f'up{{job="{job}"}}' in (DEPLOY / "prometheus/alerts.yaml").read_text()

    def test_the_alerts_are_those_of_the_rule_file(self) -> None:
        rule = the("PrometheusRule", render_chart({"prometheusRule": {"enabled": True, "labels": {"release": "kps"}}}))
        assert rule["spec"] == yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
        assert rule["metadata"]["labels"]["release"] == "kps"

    def test_the_runbooks_can_be_at_an_address_of_the_cluster(self) -> None:
        values = {"prometheusRule": {"enabled": True, "runbooks": "https://docs.example.com/alerts.html"}}
        [group] = the("PrometheusRule", render_chart(values))["spec"]["groups"]
        for rule in group["rules"]:
            anchor = rule["alert"].lower()
            assert rule["annotations"]["runbook_url"] == f"https://docs.example.com/alerts.html#{anchor}"

    def test_relabelings_are_added(self) -> None:
        own = [{"targetLabel": "cluster", "replacement": "berlin"}]
        values = {**MONITORED, "podMonitor": {"enabled": True, "relabelings": own}}
        [endpoint] = the("PodMonitor", render_chart(values))["spec"]["podMetricsEndpoints"]
        [node] = the("PodMonitor", render_chart(MONITORED))["spec"]["podMetricsEndpoints"][0]["relabelings"]
        assert endpoint["relabelings"] == [node, *own]

    def test_the_dashboard_is_for_grafanas_sidecar(self) -> None:
        dashboard = the("ConfigMap", render_chart({"dashboard": {"enabled": True}}), "kroute-dashboard")
        assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(dashboard["data"]["kroute.json"]) == json.loads((DEPLOY / "grafana/kroute.json").read_text())

    def test_labels_of_services_are_not_replaced_by_those_of_the_pod(self) -> None:
        """tests/prometheus/ shows what becomes of them otherwise."""
        [endpoint] = the("PodMonitor", render_chart(MONITORED))["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True


class TestDependency:
    """The chart as a dependency of another one."""

    @pytest.fixture
    def parent(self, tmp_path: Path) -> Path:
        shutil.copytree(CHART, tmp_path / "platform/charts/kroute")
        dependency = {"name": "kroute", "version": __version__, "condition": "kroute.enabled"}
        chart = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
        (tmp_path / "platform/Chart.yaml").write_text(json.dumps(chart))
        return tmp_path / "platform"

    def test_its_objects_are_the_same(self, parent: Path) -> None:
        values = {"kroute": {**REQUIRED, "enabled": True}, "global": {"imageRegistry": "registry.example"}}
        assert comparable(render_chart(values, parent)) == comparable(render_chart({}))

    def test_it_is_left_out(self, parent: Path) -> None:
        assert render_chart({"kroute": {"enabled": False}}, parent) == []

    def test_its_values_are_checked_there_too(self, parent: Path) -> None:
        done = helm("template", "platform", str(parent), values={"kroute": {**REQUIRED, "setings": {}}})
        assert "setings" in done.stderr


class TestReadme:
    """What the chart says of itself."""

    def test_it_has_every_value_with_its_comment(self) -> None:
        if "KROUTE_WRITE_GOLDEN" in os.environ:
            chart_readme.README.write_text(chart_readme.text())
        assert chart_readme.README.read_text() == chart_readme.text()

    def test_no_value_is_left_out(self) -> None:
        named = {name.split(".")[0] for name, *_ in chart_readme.values()}
        assert named == chart_schema.schema()["properties"].keys() - {"global"}


def test_every_pair_of_directors_has_an_account_and_a_lease_of_its_own() -> None:
    objects = render_chart({"directors": [{"name": "front"}, {"name": "back", "syncId": 2}]})
    for name in ("front", "back"):
        assert the("Secret", objects, name)["metadata"]["annotations"]["kubernetes.io/service-account.name"] == name
        leases = the("Role", objects, name)["rules"][1]
        assert (leases["resources"], leases["resourceNames"]) == (["leases"], [name])


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(
    "values",
    [
        MONITORED,
        {"iptables": True, **DUAL_STACK},
        {"mode": "uninstall", **STRICT},
        {"mode": "hand-over", "migration": {"handOverTo": "kube-proxy"}},
        EVERY_VALUE,
    ],
    ids=["monitored", "dual stack with iptables", "uninstall", "hand-over", "every other value"],
)
def test_every_object_is_valid_by_the_schemas_of_kubernetes(values: dict[str, Any], version: str) -> None:
    for item in render_chart(values):
        if not item["apiVersion"].startswith("monitoring.coreos.com/"):
            validate(item, version)
