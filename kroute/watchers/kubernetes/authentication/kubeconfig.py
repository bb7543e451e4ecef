"""Credentials by a kubeconfig file: what kube-proxy reads of one, by client-go.

They are refreshed before each request: a token file is read and an exec plugin is run again every minute, and the file
itself is read again when it has changed. Credentials in the file's own text are never written to another file. An
`auth-provider` is refused, as by kube-proxy: client-go has deprecated them for exec plugins.
"""

import base64
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from kroute.base.wording import in_words, with_path
from kroute.watchers import yaml_text
from kroute.watchers.kubernetes.authentication import exec_plugin
from kroute.watchers.kubernetes.authentication.configuration import (
    LONGEST_TOKEN,
    REFRESH_PERIOD,
    Configuration,
    Credentials,
    Pem,
    authorization,
)
from kroute.watchers.kubernetes.errors import ConfigurationError

_NO_SERVER = "http://localhost"
"""For a cluster without a server, as with `--master`, which takes its place."""
LONGEST_KUBECONFIG = 16 << 20
"""Bytes."""
_BEFORE_ITS_END = timedelta(minutes=5)
"""How long before the end of its credential a plugin is run again."""


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _Context(msgspec.Struct):
    cluster: str
    user: str = ""


class _User(msgspec.Struct, rename="kebab"):
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    exec: exec_plugin.Plugin | None = None
    auth_provider: dict[str, Any] | None = None


class _Entry(msgspec.Struct):
    name: str
    cluster: _Cluster | None = None
    context: _Context | None = None
    user: _User | None = None


class _Kubeconfig(msgspec.Struct, rename="kebab"):
    """`v1` Config. An entry has the field of the list that it is in."""

    clusters: list[_Entry]
    contexts: list[_Entry]
    current_context: str
    users: list[_Entry] | None = None

    def current(self) -> tuple[_Cluster, _User]:
        """The cluster and the user of the current context. Raises ValueError: the file lacks one of them."""
        context = _named(self.contexts, self.current_context, "contexts").context
        if context is None:
            raise ValueError(f"context {self.current_context} names no cluster")
        cluster = _named(self.clusters, context.cluster, "clusters").cluster or _Cluster()
        user = _named(self.users or (), context.user, "users").user if context.user else None
        return cluster, user or _User()


class KubeconfigCredentials(Credentials):
    """A kubeconfig file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_seen: tuple[int, ...] = ()
        self._user = _User()
        self._refreshed = 0.0
        self._ends_at: datetime | None = None
        super().__init__(_NO_SERVER)

    async def load(self) -> None:
        """Read the file.

        Raises:
            ConfigurationError: it cannot be read or used.
        """
        seen, content = _fingerprint(self._path), _content(self._path)
        with self._names_itself():
            cluster, self._user = msgspec.convert(content, _Kubeconfig).current()
            self._ends_at = None
            configuration = _configuration(cluster, self._user, self._path.parent)
            await self._ask_again(configuration)
        self.configuration, self._file_seen = configuration, seen

    async def refresh(self, *, rejected: bool = False) -> None:
        """Read a changed file again. After a minute, read the token file or run the plugin again."""
        if _fingerprint(self._path) != self._file_seen or rejected:
            await self.load()
        elif time.monotonic() - self._refreshed >= REFRESH_PERIOD:
            with self._names_itself():
                await self._ask_again(self.configuration)

    async def _ask_again(self, configuration: Configuration) -> None:
        """Take what the plugin says, or the token file. One that is empty, as while it is replaced, changes nothing."""
        user = self._user
        if user.exec is not None:
            if self._ends_at is None or self._ends_at <= datetime.now(UTC) + _BEFORE_ITS_END:
                credential = await exec_plugin.ask(user.exec, self._path.parent)
                if credential.token:
                    configuration.headers = authorization(f"Bearer {credential.token}")
                if credential.client_certificate_data:
                    configuration.certificate = credential.client_certificate_data
                    configuration.key = credential.client_key_data
                self._ends_at = credential.expiration_timestamp
        elif user.token_file and (token := _token_in(self._path.parent / user.token_file)):
            configuration.headers = authorization(f"Bearer {token}")
        self._refreshed = time.monotonic()

    @contextmanager
    def _names_itself(self) -> Iterator[None]:
        """Name the file in every error that comes from its contents."""
        try:
            yield
        except (ConfigurationError, msgspec.ValidationError, OSError, ValueError) as error:
            raise ConfigurationError(f"kubeconfig {self._path} cannot be used: {with_path(error)}") from error


def _fingerprint(path: Path) -> tuple[int, ...]:
    """A value that changes when a file changes or is replaced; empty if there is no file."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: NUL in its name
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _content(path: Path) -> dict[str, Any]:
    """The mapping in the file. Raises ConfigurationError: there is none, or it lacks what every kubeconfig has."""
    where = f"kubeconfig {path}"
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST_KUBECONFIG + 1)
    except OSError as error:
        raise ConfigurationError(f"{where} cannot be read: {error.strerror}") from error
    if len(text) > LONGEST_KUBECONFIG:
        raise ConfigurationError(f"{where} has more than {LONGEST_KUBECONFIG >> 20} MiB: it is not a kubeconfig")
    try:
        [content] = yaml_text.load(text) or [None]
    except yaml_text.FAILURES as error:
        raise ConfigurationError(f"{where} is not YAML: {in_words(error)}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{where} is not a kubeconfig: it must be a mapping with clusters and contexts")
    for name in ("clusters", "contexts", "current-context"):
        if not content.get(name):
            raise ConfigurationError(f"{where} has no {name}: `kubectl config view` shows a complete one")
    return content


def _named(entries: Iterable[_Entry], name: str, among: str) -> _Entry:
    for entry in entries:
        if entry.name == name:
            return entry
    raise ValueError(f"there is no object with name {name} in {among}")


def _configuration(cluster: _Cluster, user: _User, directory: Path) -> Configuration:
    if user.auth_provider is not None:
        raise ValueError(
            "kroute has no auth-provider: give its user an exec plugin, a token, a tokenFile or a client-certificate"
        )
    return Configuration(
        (cluster.server or _NO_SERVER).rstrip("/"),
        _headers(user),
        authority=_pem(cluster.certificate_authority_data, cluster.certificate_authority, directory),
        certificate=_pem(user.client_certificate_data, user.client_certificate, directory),
        key=_pem(user.client_key_data, user.client_key, directory),
        verify_tls=not cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name,
        proxy=cluster.proxy_url,
    )


def _pem(data: str | None, file: str | None, directory: Path) -> Pem | None:
    """What is in a field with data, in base64, or else the file."""
    if data:
        return base64.b64decode(data).decode("ascii")
    return directory / file if file else None


def _headers(user: _User) -> dict[str, str]:
    """What authenticates by the file alone."""
    if user.token:
        return authorization(f"Bearer {user.token}")
    if user.username is not None and user.password is not None:
        return authorization("Basic " + base64.b64encode(f"{user.username}:{user.password}".encode()).decode())
    return {}


def _token_in(file: Path) -> str:
    with file.open() as opened:
        return opened.read(LONGEST_TOKEN + 1)
