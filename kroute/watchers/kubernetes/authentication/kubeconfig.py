"""Credentials by a kubeconfig file, which kubernetes-asyncio reads.

They are refreshed before each request: a token file, an exec plugin or an OIDC plugin is read again every minute, and
the file itself when it has changed.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from kroute.settings.wording import in_words
from kroute.watchers.kubernetes.authentication import exec_plugin
from kroute.watchers.kubernetes.authentication.configuration import (
    REFRESH_PERIOD,
    Configuration,
    authorization,
    fingerprint,
    sentence,
)
from kroute.watchers.kubernetes.client_package import ConfigException, load_kube_config
from kroute.watchers.kubernetes.errors import ConfigurationError

exec_plugin.install()

_NO_SERVER = "http://localhost"
"""For a cluster without a server, as in kubernetes-asyncio."""
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


class KubeconfigCredentials:
    """A kubeconfig file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loader: Any = None
        self._file_seen: tuple[int, ...] = ()
        self._refreshed = 0.0
        self.configuration = Configuration(_NO_SERVER)

    async def load(self) -> None:
        """Read the file.

        Raises:
            ConfigurationError: it cannot be read, or kubernetes-asyncio cannot use it.
        """
        _check_kubeconfig(self._path)
        configuration = Configuration(_NO_SERVER)
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
            token = self.configuration.api_key.get("BearerToken")
            return {} if token is None else authorization(str(token))

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
            raise ConfigurationError(f"kubeconfig {self._path} cannot be used: {sentence(error)}") from error

    def _adopt(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._refreshed = time.monotonic()


def _check_kubeconfig(path: Path) -> None:
    """Refuse a file for which kubernetes-asyncio would print a warning or a traceback."""
    where = f"kubeconfig {path}"
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST_KUBECONFIG + 1)
        if len(text) > LONGEST_KUBECONFIG:
            raise ConfigurationError(f"{where} has more than {LONGEST_KUBECONFIG >> 20} MiB: it is not a kubeconfig")
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
