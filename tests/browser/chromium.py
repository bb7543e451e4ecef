"""Debian's headless Chromium, driven by the WebDriver protocol (W3C); `scripts/setup test` installs it."""

import base64
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

DRIVER = "/usr/bin/chromedriver"
FLAGS = (
    "--headless=new",
    "--window-size=1280,1000",
    "--hide-scrollbars",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
STARTS_WITHIN = 60.0
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key under which the protocol names an element


class CommandError(Exception):
    """The driver has refused a command, or a script has thrown."""


class Browser:
    """One window. Every method is a command of the protocol."""

    def __init__(self, http: aiohttp.ClientSession, session: str) -> None:
        self._http = http
        self._session = session

    async def open(self, url: str) -> None:
        await self._command("POST", "url", url=url)

    async def title(self) -> str:
        return await self._command("GET", "title")

    async def script(self, source: str, *arguments: object) -> Any:
        """Run a function body in the page; its return value."""
        return await self._command("POST", "execute/sync", script=source, args=list(arguments))

    async def text(self, selector: str) -> str:
        return await self._command("GET", f"element/{await self._find(selector)}/text")

    async def rows(self, selector: str) -> list[list[str]]:
        """The cells' texts of every row of a table's body."""
        return await self.script(
            "return [...document.querySelectorAll(arguments[0] + ' tr')]"
            ".map((row) => [...row.cells].map((cell) => cell.textContent))",
            selector,
        )

    async def resize(self, width: int, height: int) -> None:
        """Make the page this many CSS pixels large."""
        await self._devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def prefer(self, scheme: str) -> None:
        """Show the page as to somebody who prefers it `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self._devtools("Emulation.setEmulatedMedia", features=[feature])

    async def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(await self._command("GET", "screenshot"))

    async def press(self, *keys: str) -> None:
        """Press and release keys, one after the other, wherever the focus is."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        await self._command("POST", "actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])

    async def click(self, selector: str) -> None:
        await self._command("POST", f"element/{await self._find(selector)}/click")

    async def type(self, selector: str, text: str) -> None:
        await self._command("POST", f"element/{await self._find(selector)}/value", text=text)

    async def complaints(self) -> list[str]:
        """What the browser's console says since the last call: errors of scripts, and what the policy forbids."""
        entries = await self._command("POST", "se/log", type="browser")
        return [entry["message"] for entry in entries if entry["level"] in {"WARNING", "SEVERE"}]

    async def requested(self) -> list[str]:
        """The addresses of everything that the page has asked for."""
        return await self.script("return performance.getEntriesByType('resource').map((entry) => entry.name)")

    async def _devtools(self, command: str, **parameters: object) -> None:
        """A command of Chromium's own protocol."""
        await self._command("POST", "goog/cdp/execute", cmd=command, params=parameters)

    async def _find(self, selector: str) -> str:
        found = await self._command("POST", "element", using="css selector", value=selector)
        return found[_ELEMENT]

    async def reset(self) -> None:
        """Leave the page, and forget what was emulated and complained of."""
        await self.open("about:blank")
        await self._devtools("Emulation.clearDeviceMetricsOverride")
        await self._devtools("Emulation.setEmulatedMedia", features=[])
        await self.complaints()

    async def _command(self, method: str, command: str, **body: object) -> Any:
        async with self._http.request(
            method, self._session + command, json=body if method == "POST" else None
        ) as answer:
            return _value(answer.status, await answer.read())


@contextmanager
def chromium(profile: Path) -> Iterator[str]:
    """Chromium with a new profile in an empty directory, for the length of a block: the address of its session.

    It is started once for many tests, each of which has an event loop of its own.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "HOME": str(profile)}
    driver = subprocess.Popen([DRIVER, f"--port={port}", "--silent"], env=environment, stdout=subprocess.DEVNULL)
    options = {"args": [*FLAGS, f"--user-data-dir={profile / 'profile'}"]}
    wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    try:
        _wait_until_it_answers(port)
        made = _ask_now(port, "POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        session = f"/session/{made['sessionId']}"
        try:
            yield f"http://127.0.0.1:{port}{session}/"
        finally:
            _ask_now(port, "DELETE", session)
    finally:
        driver.terminate()
        driver.wait()


@asynccontextmanager
async def window(session: str) -> AsyncIterator[Browser]:
    """The window of a running Chromium, empty, for one test."""
    async with aiohttp.ClientSession() as client:
        made = Browser(client, session)
        try:
            yield made
        finally:
            await made.reset()


def _wait_until_it_answers(port: int) -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            _ask_now(port, "GET", "/status")
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the driver does not start"
            time.sleep(0.05)
        else:
            return


def _ask_now(port: int, method: str, path: str, body: object = None) -> Any:
    """One command outside of an event loop."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STARTS_WITHIN)
    with closing(connection):
        connection.request(method, path, json.dumps(body) if body is not None else None)
        answer = connection.getresponse()
        return _value(answer.status, answer.read())


def _value(status: int, text: bytes) -> Any:
    """The value of an answer; CommandError with the driver's own words when the command has failed."""
    value = json.loads(text)["value"]
    if status != 200:
        raise CommandError(value["message"])
    return value
