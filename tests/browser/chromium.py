"""Debian's headless Chromium, driven by the WebDriver protocol (W3C); `scripts/setup test` installs it."""

import asyncio
import json
import os
import socket
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

DRIVER = "/usr/bin/chromedriver"
FLAGS = (
    "--headless=new",
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

    async def _find(self, selector: str) -> str:
        found = await self._command("POST", "element", using="css selector", value=selector)
        return found[_ELEMENT]

    async def _command(self, method: str, command: str, **body: object) -> Any:
        return await ask(self._http, method, f"/session/{self._session}/{command}", body if method == "POST" else None)


async def ask(http: aiohttp.ClientSession, method: str, path: str, body: object = None) -> Any:
    """One command of the protocol; AssertionError with the driver's own words when it fails."""
    async with http.request(method, path, json=body) as answer:
        value = json.loads(await answer.read())["value"]
    assert answer.status == 200, value
    return value


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Browser]:
    """A browser with a new profile in an empty directory, for the length of a block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "HOME": str(profile)}
    driver = await asyncio.create_subprocess_exec(DRIVER, f"--port={port}", "--silent", env=environment, stdout=DEVNULL)
    options = {"args": [*FLAGS, f"--user-data-dir={profile / 'profile'}"]}
    wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            await _answers(http)
            made = await ask(http, "POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            try:
                yield Browser(http, made["sessionId"])
            finally:
                await ask(http, "DELETE", f"/session/{made['sessionId']}")
    finally:
        driver.terminate()
        await driver.wait()


async def _answers(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(STARTS_WITHIN):
        while True:
            try:
                await ask(http, "GET", "/status")
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)
            else:
                return
