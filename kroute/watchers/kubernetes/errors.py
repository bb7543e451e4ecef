"""Errors between kroute and the API server."""

from typing import NamedTuple, Self

import msgspec

from kroute.watchers.json_text import decoded

LONGEST_MESSAGE = 1000
"""Characters that are kept of a server's message."""
NO_STREAMING = frozenset({400, 403, 404, 422})
"""Status codes for a streaming list from servers or proxies that do not support it."""
LONGEST_PAUSE = 300.0
"""The longest pause in seconds that a server may ask for before the next try."""
UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404
RENEW = "renew the token; a Pod's is refused when its account was deleted, also if it was made again: delete the Pod"
"""The next step after UNAUTHORIZED."""


class ConfigurationError(Exception):
    """The access to the API server is configured wrongly. The message is one line: what, where, what is allowed."""


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None
    retry_after: float | None = msgspec.field(name="retryAfterSeconds", default=None)


class _Status(msgspec.Struct):
    """The parts of a `v1` Status that kroute reads."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_decode_status = msgspec.json.Decoder(_Status).decode


class StreamingUnsupportedError(Exception):
    """The server does not answer a streaming list as one. `is_denial`: perhaps because it denies everything now."""

    def __init__(self, message: str, *, is_denial: bool = False) -> None:
        super().__init__(message)
        self.is_denial = is_denial


class ApiError(Exception):
    """The API server answered with an error. `status` is the HTTP status code, `reason` the API's CamelCase word.

    `retry_after` is the pause that the server asks for, in seconds.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @classmethod
    def from_status(cls, body: bytes, status: int = 0, retry_after: str | None = None) -> Self:
        """Read a `v1` Status, or the text that a proxy sent instead of one."""
        try:
            answer = decoded(_decode_status, body)
        except msgspec.DecodeError:
            answer = _Status(message=body[:200].decode(errors="replace").strip())
        details = answer.details or _Details()
        reason = answer.reason[:LONGEST_MESSAGE]
        if any(cause.reason == "ResourceVersionTooLarge" for cause in details.causes or ()):
            reason = "ResourceVersionTooLarge"
        code = status or (answer.code if 100 <= answer.code <= 599 else 0)
        return cls(code, reason, answer.message[:LONGEST_MESSAGE], _pause(retry_after, details.retry_after))

    @property
    def is_expired(self) -> bool:
        """Whether the resourceVersion or continue token is older than those that the server keeps."""
        return self.status == 410 or self.reason in {"Expired", "Gone"}

    @property
    def is_version_unavailable(self) -> bool:
        """Whether another resourceVersion could be served: this one is too old, or the server is behind it."""
        return self.is_expired or self.reason == "ResourceVersionTooLarge"

    @property
    def is_denied(self) -> bool:
        """Whether a permission is missing, or the credentials are not accepted."""
        return self.status in {UNAUTHORIZED, FORBIDDEN}

    @property
    def is_final(self) -> bool:
        """Whether the same request would be refused again: it is the request that the server objects to."""
        return 400 <= self.status < 500 and self.status != 429

    @property
    def is_missing(self) -> bool:
        """Whether there is nothing of that name. For a list: the server does not serve the kind."""
        return self.status == NOT_FOUND

    @property
    def lacks_field_selector(self) -> bool:
        """Whether the server cannot select by a field. Servers before 1.32 cannot select Services by clusterIP."""
        return self.status == 400 and "field label not supported" in self.message

    @property
    def may_lack_streaming(self) -> bool:
        """Whether this answer to a streaming list may only mean that the server has none."""
        return self.status in NO_STREAMING and not self.lacks_field_selector


class Denial(NamedTuple):
    """What the API server denies kroute: a name of it, a clause, and the next step."""

    subject: str
    message: str
    next_step: str


def denial(kind: str, status: int) -> Denial:
    """What it means that the API server refuses with this status to list and watch a kind.

    An unknown token is the same denial for every kind.
    """
    if status == UNAUTHORIZED:
        return Denial("API token", "the API server refuses kroute's token (401 Unauthorized)", RENEW)
    next_step = "compare the ClusterRole and the ServiceAccount with deploy/kustomize/base"
    return Denial(f"API {kind}", f"the API server does not let kroute list and watch every {kind}", next_step)


def _pause(header: str | None, in_status: float | None) -> float | None:
    """The pause in seconds that a server asks for, at most LONGEST_PAUSE.

    The header Retry-After takes precedence over the Status.
    """
    if header is not None and header.isascii() and header.isdigit():
        return LONGEST_PAUSE if len(header) > 9 else min(float(header), LONGEST_PAUSE)
    return None if in_status is None else min(max(in_status, 0.0), LONGEST_PAUSE)


class UnreachableError(ApiError):
    """There is no answer, or only a part of it: the connection was refused, reset or cut short.

    `moved`: requests go to another server since then, or by new connections, and there is an answer.
    """

    def __init__(self, message: str, *, moved: bool = False) -> None:
        super().__init__(0, "", message)
        self.moved = moved


class NoServerError(UnreachableError):
    """None of several servers answers. `refused`: the attempts have cost no server anything."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class AnswerTooLongError(UnreachableError):
    """An answer has more bytes than kroute reads."""


class UntrustedStreamError(UnreachableError):
    """A watch was silent for too long or sent something unreadable.

    Changes may be missing, so the kind is listed again.
    """
