"""The API server's address and the credentials for it, by kubernetes-asyncio.

The order is that of kube-proxy: a kubeconfig file, in which `--master` replaces the server's address; `--master` alone,
without credentials; the Pod's service account. Credentials are refreshed before each request: a token file, an exec
plugin or an OIDC plugin is read again every minute, and a kubeconfig file when it has changed.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import yaml

from kroute.settings import Settings
from kroute.settings.wording import in_words
from kroute.watchers.kubernetes.authentication import exec_plugin
from kroute.watchers.kubernetes.client_package import (
    ConfigException,
    Configuration,
    load_incluster_config,
    load_kube_config,
)
from kroute.watchers.kubernetes.errors import ConfigurationError

exec_plugin.install()

REFRESH_PERIOD = 60.0
"""Seconds for which a token is used before its source is read again. client-go keeps a token file as long."""

LONGEST_TOKEN = 64 << 10
"""Characters. Servers accept headers of some 8 to 64 KiB."""
LONGEST_KUBECONFIG = 16 << 20
"""Bytes."""

_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that kubernetes-asyncio and PyYAML raise, besides their own, for files that they do not check."""


class Credentials(Protocol):
    """A kubernetes-asyncio `Configuration` that is kept up to date."""

    configuration: Any

    async def refresh(self, *, rejected: bool = False) -> None:
        """Bring `configuration` up to date. `rejected`: whether the server refused the current credentials.

        Raises:
            ConfigurationError: the source of the credentials cannot be used (any more).
        """

    async def headers(self) -> dict[str, str]:
        """The request headers that authenticate. Raises as `refresh` does."""


async def _headers(configuration: Any) -> dict[str, str]:
    """The headers that authenticate. Raises ConfigurationError if HTTP cannot carry one.

    A token file often ends with a line feed, which is not part of the token. client-go strips white space, too.
    """
    schemes = (await configuration.auth_settings()).values()
    headers: dict[str, str] = {}
    for scheme in schemes:
        method, _, token = str(scheme["value"]).partition(" ")
        headers[scheme["key"]] = value = f"{method} {token.strip()}"
        if not token.strip():
            raise ConfigurationError("the token is empty: its file has to hold one")
        if len(value) > LONGEST_TOKEN or not value.isascii() or not value.isprintable():
            raise ConfigurationError(
                f"the token cannot be sent: allowed are up to {LONGEST_TOKEN:,} printable ASCII characters in one line"
            )
    return headers


class MasterCredentials:
    """A server's URL without any credentials."""

    def __init__(self, url: str) -> None:
        self.configuration: Any = Configuration(host=checked_url(url))

    async def refresh(self, *, rejected: bool = False) -> None:
        """Do nothing: there are no credentials."""

    async def headers(self) -> dict[str, str]:
        return {}


class InClusterCredentials:
    """The Pod's service account. kubernetes-asyncio reads its token file again every minute."""

    def __init__(self) -> None:
        self.configuration: Any = Configuration()
        try:
            load_incluster_config(client_configuration=self.configuration)
        except (ConfigException, *_FAILURES) as error:
            raise ConfigurationError(
                f"no API server: this is not a Pod of a cluster ({error}); "
                "give --kubeconfig FILE, --master URL or --manifests DIR"
            ) from error

    async def refresh(self, *, rejected: bool = False) -> None:
        """Do nothing: the configuration's own hook reads the token file when `headers` needs the token."""

    async def headers(self) -> dict[str, str]:
        """The header with the service account's token."""
        try:
            return await _headers(self.configuration)
        except (ConfigException, *_FAILURES) as error:
            raise ConfigurationError(f"the service account's token cannot be read: {_sentence(error)}") from error


class KubeconfigCredentials:
    """A kubeconfig file, with `master`, if given, in place of the server's address."""

    def __init__(self, path: Path, master: str | None = None) -> None:
        self._path = path
        self._master = checked_url(master) if master else None
        self._loader: Any = None
        self._file_seen: tuple[int, ...] = ()
        self._refreshed = 0.0
        self.configuration: Any = None

    async def load(self) -> None:
        """Read the file.

        Raises:
            ConfigurationError: it cannot be read, or kubernetes-asyncio cannot use it.
        """
        _check_kubeconfig(self._path)
        configuration = Configuration()
        seen = fingerprint(self._path)
        with self._named():
            self._loader = await load_kube_config(
                config_file=str(self._path), client_configuration=configuration, persist_config=False
            )
        self._adopt(configuration)
        self._file_seen = seen

    async def headers(self) -> dict[str, str]:
        """The header with the user's token, if there is one."""
        with self._named():
            return await _headers(self.configuration)

    async def refresh(self, *, rejected: bool = False) -> None:
        """Read a changed file again. After a minute, read token files and run plugins again."""
        if fingerprint(self._path) != self._file_seen or rejected:
            await self.load()
        elif time.monotonic() - self._refreshed >= REFRESH_PERIOD:
            with self._named():
                await self._loader.load_and_set(self.configuration)
            self._adopt(self.configuration)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file in every error of kubernetes-asyncio, whose loader does not check the file."""
        try:
            yield
        except (ConfigException, *_FAILURES) as error:
            raise ConfigurationError(f"kubeconfig {self._path} cannot be used: {_sentence(error)}") from error

    def _adopt(self, configuration: Any) -> None:
        if self._master:
            configuration.host = self._master
        self.configuration = configuration
        self._refreshed = time.monotonic()


async def load_credentials(settings: Settings) -> Credentials:
    """The credentials that the settings name.

    Raises:
        ConfigurationError: the file, the URL or the service account cannot be used.
    """
    if settings.kubeconfig is not None:
        kubeconfig = KubeconfigCredentials(settings.kubeconfig, settings.master)
        await kubeconfig.load()
        return kubeconfig
    if settings.master is not None:
        return MasterCredentials(settings.master)
    return InClusterCredentials()


def checked_url(url: str) -> str:
    """`url` without a trailing slash.

    Raises:
        ConfigurationError: it is not the address of an HTTP server.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(f"--master {url!r} is not a URL: allowed is http://HOST[:PORT] or https://HOST[:PORT]")
    return url.rstrip("/")


def fingerprint(path: Path | str | None) -> tuple[int, ...]:
    """A value that changes when a file changes or is replaced; empty if there is no file."""
    if path is None:
        return ()
    try:
        status = Path(path).stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _check_kubeconfig(path: Path) -> None:
    """Refuse a file for which kubernetes-asyncio would print a warning or a traceback."""
    where = f"kubeconfig {path}"
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST_KUBECONFIG + 1)
        if len(text) > LONGEST_KUBECONFIG:
            raise ConfigurationError(f"{where} has more than {LONGEST_KUBECONFIG >> 20} MiB: it is none")
        content = yaml.safe_load(text)
    except OSError as error:
        raise ConfigurationError(f"{where} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, *_FAILURES) as error:
        raise ConfigurationError(f"{where} is not YAML: {in_words(error)}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{where} is not a kubeconfig: it must be a mapping with clusters and contexts")
    for name in ("clusters", "contexts", "current-context"):
        if not content.get(name):
            raise ConfigurationError(f"{where} has no {name}: `kubectl config view` shows a complete one")


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
