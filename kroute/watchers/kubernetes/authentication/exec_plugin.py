"""Plugins for credentials (`exec` of a kubeconfig), which kroute runs every minute: none may take forever or too much.

client-go's are the same programs; see "client-go credential plugins" in Kubernetes' documentation. A plugin has no
terminal here, so it can ask nobody for a password.
"""

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from kroute.base import program
from kroute.watchers.json_text import decoded
from kroute.watchers.kubernetes.errors import ConfigurationError

TIME_OUT = 30.0
"""Seconds that a plugin may take; each minute one is asked."""
LONGEST_OUTPUT = 1 << 20
"""Bytes that it may write on each of its outputs; a token or a certificate has some 10 KiB."""
_NAMED = 300
"""Characters of its complaints that are passed on."""


class Variable(msgspec.Struct):
    """A variable of the plugin's environment."""

    name: str
    value: str = ""


class Plugin(msgspec.Struct, rename="camel"):
    """`exec` of a kubeconfig's user."""

    api_version: str
    command: str
    args: list[str] | None = None
    env: list[Variable] | None = None


class Credential(msgspec.Struct, rename="camel"):
    """What a plugin answers with: a token, a client certificate (PEM), or both."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: Credential


_decode = msgspec.json.Decoder(_ExecCredential).decode


async def ask(plugin: Plugin, directory: Path) -> Credential:
    """Run a plugin. `directory`: that of the kubeconfig, from which a command with a `/` in its name is found.

    Raises ConfigurationError, OSError, or ValueError: it cannot be run, or gives no credential.
    """
    question = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = {
        **os.environ,
        **{variable.name: variable.value for variable in plugin.env or ()},
        "KUBERNETES_EXEC_INFO": msgspec.json.encode(question).decode(),
    }
    command = str(directory / plugin.command) if "/" in plugin.command else plugin.command
    return credential_in(await _output([command, *(plugin.args or ())], environment), command, plugin.api_version)


def credential_in(output: bytes, command: str, api_version: str) -> Credential:
    """What the command has answered to a question of this version. Raises ConfigurationError: it is no credential."""
    try:
        answer = decoded(_decode, output)
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"exec: the answer of {command} is not JSON, or lacks apiVersion, kind or status: {error}"
        ) from error
    if answer.api_version != api_version:
        raise ConfigurationError(f"exec: {command} answers {answer.api_version[:_NAMED]}, not {api_version}")
    credential = answer.status
    if not (credential.token or (credential.client_certificate_data and credential.client_key_data)):
        raise ConfigurationError(f"exec: the answer of {command} has neither a token nor a certificate with its key")
    return credential


async def _output(arguments: list[str], environment: dict[str, str]) -> bytes:
    name = arguments[0]
    try:
        ended = await program.run(arguments, seconds=TIME_OUT, most=LONGEST_OUTPUT, environment=environment)
    except TimeoutError:
        raise ConfigurationError(f"exec: {name} took more than {TIME_OUT:g} s and was killed") from None
    except OverflowError:
        raise ConfigurationError(f"exec: {name} wrote more than {LONGEST_OUTPUT >> 20} MiB and was killed") from None
    if ended.code != 0:
        said = " ".join(ended.errors.decode(errors="replace").split())[:_NAMED]
        raise ConfigurationError(f"exec: {name} returned {ended.code}: {said}")
    return ended.output
