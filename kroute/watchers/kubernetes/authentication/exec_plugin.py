"""Plugins for credentials (`exec` of a kubeconfig), which kroute runs every minute: none may take forever or too much.

kubernetes-asyncio waits without limit, reads without limit, and reads standard error only after standard output: a
plugin that writes much of the former waits for it forever, and every request to the API with it.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from kroute.watchers.kubernetes.client_package import ConfigException, ExecProvider, kube_config

TIME_OUT = 30.0
"""Seconds that a plugin may take; each minute one is asked."""
LONGEST_OUTPUT = 1 << 20
"""Bytes that it may write on each of its outputs; a token or a certificate has some 10 KiB."""
_LAST_WORDS = 5.0
"""Seconds in which a killed plugin has to be gone; what has left its session may hold its outputs longer."""
_NAMED = 300
"""Characters of its complaints that are passed on."""


class BoundedExecProvider(ExecProvider):  # type: ignore[misc]  # kubernetes-asyncio has no types
    """Runs a plugin in a session of its own, which is killed with all that it has started."""

    async def run(self, previous_response: str | None = None) -> Any:
        """The `status` that the plugin answers with. Raises ConfigException or OSError."""
        spec: dict[str, Any] = {"interactive": sys.stdout.isatty()}
        if previous_response:
            spec["response"] = previous_response
        question = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        environment = {**self.env, "KUBERNETES_EXEC_INFO": json.dumps(question)}
        return self._status(await self._output(environment))

    async def _output(self, environment: dict[str, str]) -> bytes:
        name = self.args[0]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self.args,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(TIME_OUT), asyncio.TaskGroup() as group:
                output, errors = (group.create_task(_read(it)) for it in (process.stdout, process.stderr))
            async with asyncio.timeout(TIME_OUT):
                code = await process.wait()
        except TimeoutError:
            raise ConfigException(f"exec: {name} took more than {TIME_OUT:g} s and was killed") from None
        except ExceptionGroup:
            raise ConfigException(f"exec: {name} wrote more than {LONGEST_OUTPUT >> 20} MiB and was killed") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):  # asyncio knows of the end when the outputs have been read to theirs
                async with asyncio.timeout(_LAST_WORDS):
                    await asyncio.gather(_discard(process.stdout), _discard(process.stderr), process.wait())
        if code != 0:
            said = " ".join(errors.result().decode(errors="replace").split())[:_NAMED]
            raise ConfigException(f"exec: {name} returned {code}: {said}")
        return output.result()

    def _status(self, output: bytes) -> Any:
        try:
            answer = json.loads(output)
        except (ValueError, RecursionError) as error:
            raise ConfigException(f"exec: the answer of {self.args[0]} is not JSON: {error}") from error
        if not isinstance(answer, dict) or not answer.keys() >= {"apiVersion", "kind", "status"}:
            raise ConfigException(f"exec: the answer of {self.args[0]} lacks apiVersion, kind or status")
        if answer["apiVersion"] != self.api_version:
            raise ConfigException(f"exec: {self.args[0]} answers {answer['apiVersion']}, not {self.api_version}")
        return answer["status"]


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """All that is written; ValueError for too much."""
    text = bytearray()
    while stream is not None and (piece := await stream.read(1 << 16)):
        text += piece
        if len(text) > LONGEST_OUTPUT:
            raise ValueError("too long")
    return bytes(text)


async def _discard(stream: asyncio.StreamReader | None) -> None:
    while stream is not None and await stream.read(1 << 16):
        pass


def install() -> None:
    """Have kubernetes-asyncio run plugins so."""
    kube_config.ExecProvider = BoundedExecProvider
