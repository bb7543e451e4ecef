"""The service account of a Pod: Kubernetes puts its token and the server's authority into each of its containers.

The variables and files are those of client-go's `rest.InClusterConfig`. The kubelet replaces the token's file before
the token ends (BoundServiceAccountToken), so it is read again every minute.
"""

import os
import time
from pathlib import Path

from kroute.base.wording import with_path
from kroute.watchers.kubernetes.authentication.configuration import (
    REFRESH_PERIOD,
    Credentials,
    authorization,
)
from kroute.watchers.kubernetes.errors import ConfigurationError

DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"

_FAILURES = (OSError, ValueError)
"""With what reading a file or a variable ends; ValueError: it is no text."""


class InClusterCredentials(Credentials):
    """The Pod's service account, for the server `host` or the one that the variables name.

    Raises ConfigurationError if this is no Pod of a cluster.
    """

    def __init__(self, directory: Path | None = None, host: str | None = None) -> None:
        directory = directory or DIRECTORY
        self._token_file = directory / "token"
        try:
            super().__init__(host or _host())
            self._read_token()
            authority = directory / "ca.crt"
            if not authority.read_text():
                raise ValueError(f"{authority} is empty")
            self.configuration.authority = authority
        except _FAILURES as error:
            raise ConfigurationError(
                f"no API server: this is not a Pod of a cluster ({error}); "
                "give --kubeconfig FILE, --master URL or --manifests DIR"
            ) from error

    async def refresh(self, *, rejected: bool = False) -> None:
        """Read the token's file again after a minute, or when the server has refused the token."""
        if not rejected and time.monotonic() - self._read_at < REFRESH_PERIOD:
            return
        try:
            self._read_token()
        except _FAILURES as error:
            raise ConfigurationError(f"the service account's token cannot be read: {with_path(error)}") from error

    def _read_token(self) -> None:
        token = self._token_file.read_text()
        if not token:
            raise ValueError(f"{self._token_file} is empty")
        self.configuration.headers = authorization(f"Bearer {token}")
        self._read_at = time.monotonic()


def _host() -> str:
    host, port = (os.environ.get(name, "") for name in (HOST, PORT))
    if not (host and port):
        raise ValueError(f"{HOST} and {PORT} are not set")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
