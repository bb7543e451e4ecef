"""Errors between kroute and the API server."""

from typing import Self

import msgspec

from kroute.watchers.json_text import decoded

LONGEST_MESSAGE = 1000
"""Characters that are kept of a server's message."""
LONGEST_PAUSE = 300.0
"""The longest pause in seconds that a server may ask for before the next try."""


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
    """The server does not answer a streaming list as one."""


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
        return self.status in {401, 403}

    @property
    def lacks_field_selector(self) -> bool:
        """Whether the server cannot select by a field. Servers before 1.32 cannot select Services by clusterIP."""
        return self.status == 400 and "field label not supported" in self.message


def _pause(header: str | None, in_status: float | None) -> float | None:
    """The pause in seconds that a server asks for, at most LONGEST_PAUSE.

    The header Retry-After takes precedence over the Status.
    """
    if header is not None and header.isascii() and header.isdigit():
        return LONGEST_PAUSE if len(header) > 9 else min(float(header), LONGEST_PAUSE)
    return None if in_status is None else min(max(in_status, 0.0), LONGEST_PAUSE)


class UnreachableError(ApiError):
    """There is no answer, or only a part of it: the connection was refused, reset or cut short."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "", message)


class AnswerTooLongError(UnreachableError):
    """An answer has more bytes than kroute reads."""


class UntrustedStreamError(UnreachableError):
    """A watch was silent for too long or sent something unreadable.

    Changes may be missing, so the kind is listed again.
    """
