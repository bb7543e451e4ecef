"""The modules of a fake kernel."""

from collections.abc import Iterable

from tests.fakes.kernel import FakeKernel


class FakeModules:
    """Same shape as the functions of kroute.kernel.modules."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel

    async def load(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self.kernel.missing_modules]

    def kernel_version(self) -> tuple[int, int]:
        return self.kernel.version
