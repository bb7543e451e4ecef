"""The pages of a Kubernetes component for people who debug it: `/statusz`, `/flagz` and `/configz`.

They have the form of component-base's (KEP-4827, KEP-4828, and `configz`). The first two are text, for no program to
read. They name no secret: the settings hold only the names of files that do, and a password in a URL is left out.
"""

import platform
import re
import time

import msgspec

from kroute import __version__
from kroute.settings import Settings
from kroute.settings.text import as_flags
from kroute.telemetry.metrics.process import process_figures

CONFIGURATION = "kroute.io"
"""The key of `/configz`. In kube-proxy it is the API group of the configuration; kroute's has no group."""

PATHS = ("/configz", "/flagz", "/healthz", "/livez", "/metrics", "/proxyMode", "/readyz", "/statusz")
"""The paths that `/statusz` names."""

_HEAD = "\nkroute {}\nWarning: for people who debug; its form may change, and no program should read it.\n\n"
_USER = re.compile(r"(?<=//)[^/@]*@")


def accepts_text(accept: str) -> bool:
    """Whether a client with this header Accept takes plain text; one without the header takes anything."""
    kinds = (one.partition(";")[0].strip().lower() for one in accept.split(","))
    return not accept or any(kind in {"*/*", "text/*", "text/plain"} for kind in kinds)


def statusz() -> str:
    """Since when this program runs, and what it is."""
    started = process_figures().started
    up = int(time.time() - started)
    rows = {
        "Started": time.strftime("%a %b %e %H:%M:%S %Z %Y", time.localtime(started)),
        "Up": f"{up // 3600} hr {up // 60 % 60:02} min {up % 60:02} sec",
        "Python version": platform.python_version(),
        "Binary version": __version__,
        "Paths": " ".join(PATHS),
    }
    return _HEAD.format("statusz") + "".join(f"{name}: {value}\n" for name, value in rows.items())


def flagz(settings: Settings) -> str:
    """Every flag of `kroute run` with its value, whether it was given or is the default."""
    flags = as_flags(_without_password(settings))
    return _HEAD.format("flagz") + "".join(f"{name}={value}\n" for name, value in sorted(flags.items()))


def configz(settings: Settings) -> bytes:
    """The settings in JSON."""
    return msgspec.json.encode({CONFIGURATION: _without_password(settings)}, enc_hook=str)


def _without_password(settings: Settings) -> Settings:
    master = _USER.sub("", settings.master) if settings.master else settings.master
    return msgspec.structs.replace(settings, master=master)
