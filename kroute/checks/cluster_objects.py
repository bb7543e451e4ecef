"""The API's objects as far as kroute's checks of a cluster read them."""

from collections.abc import Mapping

import msgspec

from kroute.model.objects import ObjectMeta

MOST_ELEMENTS = 1000
"""Containers, arguments or addresses of one object that are looked at."""


class Metadata(ObjectMeta, frozen=True):
    """What the checks read of `metadata`."""

    deletion_timestamp: str | None = None


class Object(msgspec.Struct):
    """An object of which only `metadata` is read, such as a Namespace; the base of the others."""

    metadata: Metadata

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}


class _Variable(msgspec.Struct):
    name: str = ""
    value: str = ""


class _Reference(msgspec.Struct):
    name: str = ""


class _Source(msgspec.Struct, rename="camel"):
    config_map_ref: _Reference | None = None


class Container(msgspec.Struct, rename="camel"):
    """One container of a pod."""

    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[_Variable] | None = None
    env_from: list[_Source] | None = None

    @property
    def arguments(self) -> list[str]:
        """The words of its command line, the program first if `command` names it."""
        return [*(self.command or ()), *(self.args or ())][:MOST_ELEMENTS]

    def variable(self, name: str) -> str:
        """The value of an environment variable; empty without one."""
        return next((variable.value for variable in self.env or () if variable.name == name), "")

    @property
    def config_maps(self) -> list[str]:
        """Those whose entries are its variables; the later one counts."""
        return [source.config_map_ref.name for source in self.env_from or () if source.config_map_ref]

    def flag(self, name: str) -> str | None:
        """The value of a flag of its command line, as Go's pflag reads it; the last one counts. None without one."""
        found = None
        words = self.arguments
        for word, following in zip(words, [*words[1:], ""], strict=False):
            written, equals, value = word.partition("=")
            if word.startswith("-") and written.lstrip("-") == name:
                found = value if equals else ("true" if following.startswith("-") or not following else following)
        return found


class _Volume(msgspec.Struct, rename="camel"):
    config_map: _Reference | None = None


class Requirement(msgspec.Struct):
    """A NodeSelectorRequirement."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(msgspec.Struct, rename="camel"):
    """A term of a node affinity."""

    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class _Terms(msgspec.Struct, rename="camel"):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class _NodeAffinity(msgspec.Struct):
    required: _Terms | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class _Affinity(msgspec.Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class Toleration(msgspec.Struct):
    """A toleration of taints."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class PodSpec(msgspec.Struct, rename="camel"):
    """What kroute reads of a pod, or of a DaemonSet's template."""

    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: list[Toleration] | None = None
    containers: list[Container] | None = None
    volumes: list[_Volume] | None = None

    def container(self, program: str) -> Container | None:
        """The container that runs this program: by its name, its image or its command."""
        for container in (self.containers or ())[:MOST_ELEMENTS]:
            image = container.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
            commands = {word.rpartition("/")[2] for word in (container.command or ())[:1]}
            if program in {container.name, image, *commands}:
                return container
        return None

    @property
    def required_terms(self) -> list[NodeSelectorTerm] | None:
        """The terms of which a node has to match one; None without any condition."""
        affinity = self.affinity.node_affinity if self.affinity else None
        return affinity.required.node_selector_terms or [] if affinity and affinity.required else None

    @property
    def config_maps(self) -> list[str]:
        return [volume.config_map.name for volume in self.volumes or () if volume.config_map and volume.config_map.name]


class _Template(msgspec.Struct):
    spec: PodSpec = msgspec.field(default_factory=PodSpec)


class _DaemonSetSpec(msgspec.Struct):
    template: _Template = msgspec.field(default_factory=_Template)


class _DaemonSetStatus(msgspec.Struct, rename="camel"):
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0


class DaemonSet(Object):
    """A DaemonSet. `status` says on how many nodes its pods should be, and on how many of these they are."""

    spec: _DaemonSetSpec = msgspec.field(default_factory=_DaemonSetSpec)
    status: _DaemonSetStatus = msgspec.field(default_factory=_DaemonSetStatus)

    @property
    def pod(self) -> PodSpec:
        return self.spec.template.spec

    @property
    def is_for_linux(self) -> bool:
        return (self.pod.node_selector or {}).get("kubernetes.io/os", "linux") == "linux"


class _PodStatus(msgspec.Struct):
    phase: str = ""


class ClusterPod(Object):
    """A Pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def is_mirror(self) -> bool:
        """Whether the kubelet has made it of a file (`ConfigMirrorAnnotationKey` of its pkg/types)."""
        return "kubernetes.io/config.mirror" in self.annotations


class Taint(msgspec.Struct):
    """A taint of a Node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class _NodeSpec(msgspec.Struct):
    pod_cidrs: list[str] | None = msgspec.field(default=None, name="podCIDRs")
    taints: list[Taint] | None = None


class NodeInfo(msgspec.Struct, rename="camel"):
    """`NodeSystemInfo` of the API, as the kubelet writes it."""

    kernel_version: str = ""
    os_image: str = ""
    architecture: str = ""
    operating_system: str = ""


class _NodeStatus(msgspec.Struct, rename="camel"):
    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)


class ClusterNode(Object):
    """A Node, with what it runs on."""

    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)

    @property
    def info(self) -> NodeInfo:
        return self.status.node_info


class ConfigMap(msgspec.Struct):
    """A ConfigMap."""

    data: dict[str, str] | None = None
