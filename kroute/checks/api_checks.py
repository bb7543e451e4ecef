"""The checks of `kroute check` that query the API server."""

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from kroute.checks.finding import Finding, failed, ok, warning
from kroute.model.kinds import NODES, WATCHED, WatchedKind, watched
from kroute.model.objects import List, Node
from kroute.settings import ALLOCATOR_LEASE, Settings
from kroute.settings.text import without_user
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.decoding import read_answer
from kroute.watchers.kubernetes.errors import RENEW, UNAUTHORIZED, ApiError, ConfigurationError

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Permission(NamedTuple):
    """One verb on one resource in all namespaces, or in one, in the words of an access review."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def rule(self) -> tuple[str, str, str]:
        """API group, resource and verb as an RBAC rule has them."""
        return self.group, "/".join(filter(None, (self.resource, self.subresource))), self.verb


class _ReviewStatus(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _ReviewStatus


SERVICE_CIDRS = Permission("list", "networking.k8s.io", "servicecidrs")
"""What an agent does without where it is not allowed."""


_LEASES = Permission("create", "coordination.k8s.io", "leases", namespace=ALLOCATOR_LEASE[0])
ALLOCATOR = (
    Permission("patch", "", "services", "status"),
    _LEASES,
    *(_LEASES._replace(verb=verb, name=ALLOCATOR_LEASE[1]) for verb in ("get", "update")),
)
"""What an agent needs in addition that may allocate LoadBalancer addresses."""


def needed(kinds: Iterable[WatchedKind] = WATCHED) -> list[Permission]:
    """The permissions that an agent needs: it lists and watches the kinds, and writes Events."""
    permissions = [Permission(verb, kind.group, kind.plural) for kind in kinds for verb in ("list", "watch")]
    return [*permissions, *(Permission(verb, "events.k8s.io", "events") for verb in ("create", "patch"))]


async def _is_allowed(api: Api, permission: Permission) -> bool:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": permission._asdict()},
    }
    return read_answer(_Review, await api.create(REVIEWS, body)).status.allowed


API, RBAC, CLOCK = "api", "rbac", "clock"

TOLERABLE_SKEW = 5.0
"""Seconds by which the clocks may differ. Events and certificates of one side are read by the other side's clock."""


class Known(NamedTuple):
    """What the API server says of this node. `unknown` is why it does not say whether there is a Node; else empty."""

    node: Node | None
    unknown: str = ""


NOTHING_KNOWN = Known(None, "no API server answers")
_LOOK = "look whether it runs, and give its own address: its ClusterIP is not served before kroute is"


async def check_api(settings: Settings) -> tuple[list[Finding], Known]:
    """Check access, permissions and clock of the API server. Also returns what it says of this node."""
    try:
        api = await Api.open(settings)
    except ConfigurationError as error:
        return [failed(API, str(error), "correct --kubeconfig, --master or the Pod's service account")], NOTHING_KNOWN
    async with api:
        try:
            before = time.time()
            theirs = await api.server_time()
            clocks = compare_clocks(theirs, before, time.time())
            findings = [ok(API, f"{without_user(api.server)} answers"), *_others(await api.faults()), clocks]
        except ApiError as error:
            return [failed(API, str(error), RENEW if error.status == UNAUTHORIZED else _LOOK)], NOTHING_KNOWN
        findings += await _permissions(api, settings)
        return findings, await _node(api, settings.node_name)


def _others(faults: Mapping[str, str]) -> Iterable[Finding]:
    """The other API servers of --master, by what is wrong with each."""
    next_step = "correct the address, or repair that server: kroute uses it when the others fail"
    for server, fault in faults.items():
        yield warning(API, f"{server}: {fault}", next_step) if fault else ok(API, f"{server} is ready")


def compare_clocks(theirs: float, before: float, after: float) -> Finding:
    """Compare the server's time, in whole seconds, with the node's times before and after reading it."""
    skew = max(0.0, before - (theirs + 1), theirs - after)
    if skew <= TOLERABLE_SKEW:
        return ok(CLOCK, f"agrees with the API server's to {TOLERABLE_SKEW:.0f} s")
    direction = "behind" if theirs > after else "ahead of"
    message = f"this node's clock is {skew:.0f} s {direction} the API server's"
    return warning(CLOCK, message, "synchronize both (chrony, systemd-timesyncd): certificates and Events go by them")


async def _permissions(api: Api, settings: Settings) -> list[Finding]:
    wanted = (*needed(watched(settings)), SERVICE_CIDRS, *(ALLOCATOR if settings.allocate_load_balancer_ips else ()))
    try:
        missing = [row for row in wanted if not await _is_allowed(api, row)]
    except ApiError as error:
        message = f"the API server does not say what kroute may do: {error}"
        return [failed(RBAC, message, "bind the ClusterRole system:basic-user to the service account")]
    findings = []
    for permission in missing:
        group, resource, verb = permission.rule
        role = "Role" if permission.namespace else "ClusterRole"
        next_step = f'allow the verb {verb} on {resource} of API group "{group}" in the {role} kroute (deploy/)'
        findings.append(failed(RBAC, f"kroute may not {verb} {resource}", next_step))
    return findings or [ok(RBAC, "kroute may do all that it needs")]


async def _node(api: Api, name: str) -> Known:
    """The Node object, by a list, since kroute has no permission to get."""
    try:
        nodes = read_answer(List[Node], await api.get(NODES.path, {"fieldSelector": f"metadata.name={name}"})).items
    except ApiError as error:
        return Known(None, f"the API server does not list Nodes: {error}")
    return Known(nodes[0] if nodes else None)
