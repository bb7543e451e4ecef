"""What all fakes share: the kernel they belong to, and opening and closing."""

from typing import Self

from tests.fakes.kernel import FakeKernel


class FakeClient:
    """Opened and closed like the real one; using it unopened is an error in the real one, so it is in this one."""

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
