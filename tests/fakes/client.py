"""The base of all fakes: the kernel that they belong to, and opening and closing."""

from typing import Self

from tests.fakes.kernel import FakeKernel


class FakeClient:
    """A client that must be opened before use, like the real one. Using it unopened is an error."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def check_open(self) -> None:
        assert self.is_open, f"{type(self).__name__} is used before open() or after close()"
