"""The control socket of BIRD 2: a line for each command, answers of lines that begin with a code.

A code of four digits is followed by a space in the last line of an answer and by a hyphen in all others; a line that
begins with a space goes on with the code before it. Codes from 8000 on are errors (BIRD's doc/reply_codes).
"""

import asyncio
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self
from zlib import crc32

import msgspec

from kroute.kernel.errors import KernelError

ANSWER_WITHIN = 5.0
"""Seconds for one answer. BIRD reads 10,000 routes in 0.02 s, but stands still while it does."""
LONGEST_ANSWER = 1 << 20
_LINE = re.compile(r"(?:(\d{4})([ -])|[ +])(.*)")
_COUNT = re.compile(r"(\d+) (\w+)")
_FIRST_ERROR = 8000
_RECONFIGURED = frozenset({3, 4, 18})
"""It is done, goes on, or comes after one that goes on."""
_NAME = "kroute_text"
_MARK = f"define {_NAME} = "
"""How the last line of what is written begins: a constant that nothing uses, by which BIRD says what it has read."""


class Session(msgspec.Struct, frozen=True):
    """A BGP session as BIRD has it. `since` is as BIRD writes it, counts are of routes of both families.

    `bfd` is the state of the BFD session beside it; "" if there is none.
    """

    name: str
    state: str
    since: str
    neighbor: str = ""
    asn: int = 0
    learned: int = 0
    announced: int = 0
    last_error: str = ""
    bfd: str = ""


class BirdError(KernelError):
    """BIRD cannot be reached, or refuses. `is_refusal`: it has answered."""

    def __init__(self, sentence: str, *, is_refusal: bool = False) -> None:
        super().__init__(sentence)
        self.is_refusal = is_refusal


class Bird:
    """BIRD, whose control socket is `socket`, and whose configuration is `path`, in a directory of both.

    Each method opens a connection of its own. All raise BirdError.
    """

    def __init__(self, socket: Path, path: Path) -> None:
        self.socket = socket
        self.path = path

    def read(self) -> str | None:
        """The configuration that was written last; None: there is none that can be read."""
        try:
            return self.path.read_text().partition(_MARK)[0]
        except (OSError, UnicodeDecodeError):
            return None

    def remove(self) -> None:
        """Remove the configuration that was written last. A BIRD that runs goes on with it."""
        with _failing("remove", self.path):
            self.path.unlink(missing_ok=True)

    async def has(self, text: str) -> bool:
        """Whether this text is what BIRD has read last. Its start and its clock do not matter."""
        try:
            lines = await self._ask(f"eval {_NAME}")
        except BirdError as error:
            if error.is_refusal:
                return False
            raise
        return lines[-1][1] == str(_checksum(text))

    async def sessions(self) -> list[Session]:
        """All BGP sessions."""
        protocols = _protocols(text for _, text in await self._ask("show protocols all"))
        has_bfd = any(columns[1:2] == ["BFD"] for columns, _ in protocols)
        rows = [text.split() for _, text in await self._ask("show bfd sessions")] if has_bfd else []
        bfd = {row[0]: row[2] for row in rows if len(row) > 2}  # of the heading, too
        bgp = [each for each in protocols if each[0][1:2] == ["BGP"] and len(each[0]) > 4]
        return [_session(columns, details, bfd) for columns, details in bgp]

    async def configure(self, text: str) -> None:
        """Have BIRD read this text instead of what it has. If BIRD refuses it, nothing has changed.

        If BIRD is away, it finds the text when it starts. Reading takes 20 ms with 10,000 routes, so it is done once.
        """
        new = self.path.with_suffix(".new")
        self._write(new, f"{text}{_MARK}{_checksum(text)};\n")
        try:
            await self._have_read(new)
        except BirdError as error:
            if error.is_refusal:
                new.unlink(missing_ok=True)
            else:
                self._replace(new)
            raise
        self._replace(new)

    def _write(self, path: Path, text: str) -> None:
        """Write a file for BIRD alone: it has passwords. BIRD may run as another user, whom its socket names."""
        with _failing("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w") as file:  # noqa: PTH123  the descriptor, not a path
                file.write(text)
                with suppress(FileNotFoundError, PermissionError):  # BIRD itself says that it cannot read the file
                    owner = self.socket.stat()
                    os.chown(file.fileno(), owner.st_uid, owner.st_gid)

    def _replace(self, new: Path) -> None:
        with _failing("write", self.path):
            new.replace(self.path)

    async def _have_read(self, path: Path) -> None:
        command = f'configure "{path}"'
        code, text = (await self._ask(command))[-1]
        if code not in _RECONFIGURED:
            raise BirdError(f"BIRD answers to {command}: {text}", is_refusal=True)

    async def _ask(self, command: str) -> list[tuple[int, str]]:
        """The answer: lines of a code and a text."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN), _Connection(self.socket) as connection:
                return await connection.ask(command)
        except TimeoutError:
            raise BirdError(f"BIRD does not answer on {self.socket} within {ANSWER_WITHIN:g} s: is it hung?") from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            why = getattr(error, "strerror", None) or str(error) or "the connection was closed"
            raise BirdError(f"BIRD cannot be reached on {self.socket}: {why}; is it running?") from None


@contextmanager
def _failing(verb: str, path: Path) -> Iterator[None]:
    """Have what keeps from working on a file said as a BirdError."""
    try:
        yield
    except OSError as error:
        raise BirdError(f"cannot {verb} {path}: {error.strerror}; see --bird-directory") from None


class _Connection:
    """A connection to the socket, past BIRD's greeting."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_unix_connection(self._path, limit=LONGEST_ANSWER)
        try:
            await self._answer()
        except BaseException:
            self._writer.close()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._writer.close()

    async def ask(self, command: str) -> list[tuple[int, str]]:
        """The answer to one command. Raises EOFError, ValueError if it is none, and BirdError for one that refuses."""
        self._writer.write(f"{command}\n".encode())
        lines = await self._answer()
        code, text = lines[-1]
        if code >= _FIRST_ERROR:
            raise BirdError(f"BIRD refuses {command}: {text}", is_refusal=True)
        return lines

    async def _answer(self) -> list[tuple[int, str]]:
        lines: list[tuple[int, str]] = []
        size, code, is_last = 0, 0, False
        while not is_last:
            line = (await self._reader.readuntil()).decode(errors="replace").rstrip("\n")
            size += len(line)
            match = _LINE.fullmatch(line)
            if match is None or size > LONGEST_ANSWER * 16:
                raise ValueError("what answers is not BIRD")
            if match[1]:
                code, is_last = int(match[1]), match[2] == " "
            lines.append((code, match[3]))
        return lines


def _checksum(text: str) -> int:
    return crc32(text.encode())


def _protocols(lines: Iterable[str]) -> list[tuple[list[str], list[str]]]:
    """Of `show protocols all`: a line of columns for each protocol, then its details, which are indented."""
    found: list[tuple[list[str], list[str]]] = []
    for line in lines:
        if line[:1].strip():
            found.append((line.split(maxsplit=5), []))
        elif found:
            found[-1][1].append(line)
    return found


def _session(columns: list[str], details: list[str], bfd: Mapping[str, str]) -> Session:
    """The session. Each family has a line of routes: `Routes: 2 imported, 3 exported, 0 preferred`.

    `bfd` has the states of BFD by address.
    """
    values: dict[str, str] = {}
    routes: Counter[str] = Counter()
    for line in details:
        name, _, value = line.strip().partition(":")
        values[name] = value.strip()
        if name == "Routes":
            routes.update({word: int(number) for number, word in _COUNT.findall(value)})
    return Session(
        name=columns[0],
        state=values.get("BGP state", columns[3]),
        since=columns[4],
        neighbor=(neighbor := values.get("Neighbor address", "")),
        asn=int(values.get("Neighbor AS", "0")),
        learned=routes["imported"],
        announced=routes["exported"],
        last_error=values.get("Last error", ""),
        bfd=bfd.get(neighbor, ""),
    )
