"""The permissions that kroute needs in the cluster, and whether it has them (`authorization.k8s.io/v1`)."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from kroute.model.kinds import WATCHED, WatchedKind
from kroute.watchers.json_text import decoded
from kroute.watchers.kubernetes.errors import ApiError

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Permission(NamedTuple):
    """One verb on one resource in all namespaces, in the words of an RBAC rule."""

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} on {self.resource}{f' of API group {self.group}' if self.group else ''}"


class Reviewer(Protocol):
    """A client that can post an access review (`kroute.watchers.kubernetes.api.Api`)."""

    async def review(self, path: str, body: Mapping[str, Any]) -> bytes:
        """POST a review. Returns it with the server's answer."""


class _ReviewStatus(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _ReviewStatus


_decode_review = msgspec.json.Decoder(_Review).decode


SERVICE_CIDRS = Permission("list", "networking.k8s.io", "servicecidrs")
"""What an agent does without where it is not allowed."""


def needed(kinds: Iterable[WatchedKind] = WATCHED) -> list[Permission]:
    """The permissions that an agent needs: it lists and watches the kinds, and writes Events."""
    permissions = [Permission(verb, kind.group, kind.plural) for kind in kinds for verb in ("list", "watch")]
    return [*permissions, *(Permission(verb, "events.k8s.io", "events") for verb in ("create", "patch"))]


async def denied(api: Reviewer, permissions: Iterable[Permission]) -> list[Permission]:
    """The permissions that the credentials do not have.

    Raises:
        ApiError: the server does not answer the review.
    """
    return [permission for permission in permissions if not await _is_allowed(api, permission)]


async def _is_allowed(api: Reviewer, permission: Permission) -> bool:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": permission._asdict()},
    }
    answer = await api.review(REVIEWS, body)
    try:
        return decoded(_decode_review, answer).status.allowed
    except msgspec.DecodeError as error:
        raise ApiError(0, "", f"an access review was answered by something else: {error}") from error
