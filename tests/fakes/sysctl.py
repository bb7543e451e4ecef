"""The sysctls of a fake kernel."""

from kroute.kernel.errors import KernelError
from tests.fakes.kernel import FakeKernel


class FakeSysctls:
    """Same shape as kroute.kernel.sysctl.Sysctls; a sysctl that a test did not set does not exist."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel

    def read(self, name: str) -> str | None:
        return self.kernel.sysctls.get(name)

    def write(self, name: str, value: str) -> None:
        if name not in self.kernel.sysctls:
            raise KernelError(f"cannot set {name} to {value}: there is no such sysctl")
        self.kernel.operate("set sysctl", f"{name}={value}")
        self.kernel.sysctls[name] = value

    def is_writable(self, name: str) -> bool:
        return name in self.kernel.sysctls and name not in self.kernel.read_only_sysctls
