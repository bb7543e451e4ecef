"""The pages of a Kubernetes component for people who debug it: `/statusz`, `/flagz` and `/configz`.

They have the form of component-base's (KEP-4827, KEP-4828, and `configz`). The first two are text, which no program
should read, or objects of the group `config.k8s.io`, as Kubernetes 1.36 has them. They name no secret: the settings
hold only the names of files that do, and a password in a URL is left out.
"""

import platform
import time
from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from kroute import __version__
from kroute.http.messages import Response, text
from kroute.settings import Settings
from kroute.settings.text import as_flags, without_password
from kroute.telemetry.statistics import STARTED

CONFIGURATION = "kroute.io"
"""The key of `/configz`. In kube-proxy it is the API group of the configuration; kroute's has no group."""

KINDS = {"/flagz": "Flagz", "/statusz": "Statusz"}
"""The pages that have both forms, each with the kind of its object."""

PATHS = ("/configz", "/flagz", "/healthz", "/livez", "/metrics", "/proxyMode", "/readyz", "/statusz")
"""The paths that `/statusz` names."""

_GROUP, _VERSION = "config.k8s.io", "v1beta1"
_HEAD = "\nkroute {}\nWarning: for people who debug; its form may change, and no program should read it.\n\n"


def page(path: str, accept: str, settings: Settings) -> Response:
    """A page of KINDS for a client with this header Accept ("" without one); a refusal if it takes neither form.

    The first form in the header that exists is given. JSON exists only for a client that names the group, the version
    and the kind of the object (`application/json;g=config.k8s.io;v=v1beta1;as=Statusz`).
    """
    kind = KINDS[path]
    structured = {"v": _VERSION, "g": _GROUP, "as": kind}
    for media, parameters in _media_types(accept or "text/plain"):
        if media in {"*/*", "text/*", "text/plain"}:
            return text(HTTPStatus.OK, _flagz(settings) if path == "/flagz" else _statusz())
        if media == "application/json" and structured.items() <= parameters.items():
            about: dict[str, object] = {"flags": _flags(settings)} if path == "/flagz" else _status()
            head = {"kind": kind, "apiVersion": f"{_GROUP}/{_VERSION}", "metadata": {"name": "kroute"}}
            given = "".join(f";{name}={value}" for name, value in structured.items())
            return Response(body=msgspec.json.encode(head | about), content_type=f"application/json{given}")
    sentence = "this page is text/plain, or application/json with g, v and as (docs/metrics.md)\n"
    return text(HTTPStatus.NOT_ACCEPTABLE, sentence)


def configz(settings: Settings) -> bytes:
    """The settings in JSON."""
    return msgspec.json.encode({CONFIGURATION: without_password(settings)}, enc_hook=str)


def _media_types(accept: str) -> list[tuple[str, Mapping[str, str]]]:
    """The media types of a header Accept, each with its parameters."""
    found: list[tuple[str, Mapping[str, str]]] = []
    for one in accept.split(","):
        media, *parameters = (part.strip() for part in one.split(";"))
        pairs = (parameter.partition("=") for parameter in parameters)
        found.append((media.lower(), {name.strip(): value.strip() for name, _, value in pairs}))
    return found


def _status() -> dict[str, object]:
    """Since when this program runs, and what it is."""
    return {
        "startTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(STARTED)),
        "uptimeSeconds": int(time.time() - STARTED),
        "pythonVersion": platform.python_version(),
        "binaryVersion": __version__,
        "paths": PATHS,
    }


def _statusz() -> str:
    up = int(time.time() - STARTED)
    rows = {
        "Started": time.strftime("%a %b %e %H:%M:%S %Z %Y", time.localtime(STARTED)),
        "Up": f"{up // 3600} hr {up // 60 % 60:02} min {up % 60:02} sec",
        "Python version": platform.python_version(),
        "Binary version": __version__,
        "Paths": " ".join(PATHS),
    }
    return _HEAD.format("statusz") + "".join(f"{name}: {value}\n" for name, value in rows.items())


def _flags(settings: Settings) -> dict[str, str]:
    """Every flag of `kroute run` with its value, whether it was given or is the default."""
    return dict(sorted(as_flags(without_password(settings)).items()))


def _flagz(settings: Settings) -> str:
    lines = "".join(f"{name}={value}\n" for name, value in _flags(settings).items())
    return _HEAD.format("flagz") + lines
