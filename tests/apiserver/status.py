"""Errors as the API answers them."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.apiserver.resources import ResourceType, Target

TOO_OLD_TO_CONTINUE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class StatusError(Exception):
    """A `v1` Status with the HTTP status code `code`."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        self.body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata or {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            **({"details": details} if details is not None else {}),
            "code": code,
        }


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(target: Target, verb: str, user: str, resource: str = "") -> StatusError:
    type_ = target.type
    scope = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    name = {"name": target.name} if target.name else {}
    group = {"group": type_.group} if type_.group else {}
    return StatusError(
        403,
        "Forbidden",
        f'{type_.qualified}{f" {chr(34)}{target.name}{chr(34)}" if target.name else ""} is forbidden: User "{user}" '
        f'cannot {verb} resource "{resource or type_.plural}" in API group "{type_.group}" {scope}',
        details={**name, **group, "kind": type_.plural},
    )


def forbidden_path(path: str, user: str) -> StatusError:
    return StatusError(403, "Forbidden", f'forbidden: User "{user}" cannot get path "{path}"')


def no_such_path() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def no_such_object(type_: ResourceType, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{type_.qualified} "{name}" not found', details=_resource(type_, name))


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def bad_continue_token(problem: str) -> StatusError:
    return bad_request(f"invalid continue token: continue key is not valid: {problem}")


def bad_resource_version(text: str) -> StatusError:
    problem = f'strconv.ParseUint: parsing "{text}": invalid syntax'
    return StatusError(500, "", f'resourceVersion: Invalid value: "{text}": {problem}')


def continue_expired(token: str) -> StatusError:
    return StatusError(410, "Expired", TOO_OLD_TO_CONTINUE, metadata={"continue": token})


def version_expired(version: int, oldest: int) -> StatusError:
    return StatusError(410, "Expired", f"too old resource version: {version} ({oldest})")


def version_too_large(version: int, current: int) -> StatusError:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return StatusError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {version}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        retry_after=1,
    )


def invalid_options(problem: str) -> StatusError:
    return StatusError(
        422,
        "Invalid",
        f'ListOptions.meta.k8s.io "" is invalid: {problem}',
        details={"group": "meta.k8s.io", "kind": "ListOptions"},
    )


def already_exists(type_: ResourceType, name: str) -> StatusError:
    return StatusError(
        409, "AlreadyExists", f'{type_.qualified} "{name}" already exists', details=_resource(type_, name)
    )


def invalid(type_: ResourceType, name: str, causes: Sequence[Mapping[str, str]]) -> StatusError:
    """Each cause has a field, a reason and a problem."""
    problems = [f"{cause['field']}: {cause['problem']}" for cause in causes]
    kind = f"{type_.kind}.{type_.internal_group}" if type_.internal_group else type_.kind
    return StatusError(
        422,
        "Invalid",
        f'{kind} "{name}" is invalid: {problems[0] if len(problems) == 1 else "[" + ", ".join(problems) + "]"}',
        details={
            "name": name,
            **({"group": type_.internal_group} if type_.internal_group else {}),
            "kind": type_.kind,
            "causes": [
                {"reason": cause["reason"], "message": cause["problem"], "field": cause["field"]} for cause in causes
            ],
        },
    )


def version_on_create() -> StatusError:
    return StatusError(500, "", "resourceVersion should not be set on objects to be created")


def undecodable(type_: ResourceType, problem: str) -> StatusError:
    return bad_request(f'{type_.kind} in version "{type_.version}" cannot be handled as a {type_.kind}: {problem}')


def wrong_media_type(accepted: Sequence[str]) -> StatusError:
    return StatusError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted),
    )


def no_resource_version(type_: ResourceType, name: str) -> StatusError:
    problem = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
    return StatusError(
        422,
        "Invalid",
        f'{type_.qualified} "{name}" is invalid: {problem}',
        details={"name": name, "group": type_.group, "kind": type_.plural},
    )


def conflict(type_: ResourceType, name: str) -> StatusError:
    message = (
        f'Operation cannot be fulfilled on {type_.qualified} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return StatusError(409, "Conflict", message, details=_resource(type_, name))


def _resource(type_: ResourceType, name: str) -> dict[str, Any]:
    return {"name": name, **({"group": type_.group} if type_.group else {}), "kind": type_.plural}
