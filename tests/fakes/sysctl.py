"""The sysctls of a fake kernel."""

from kroute.kernel.errors import KernelError
from tests.fakes.kernel import FakeKernel

FORWARDING = "net.ipv6.conf.all.forwarding"
BUCKETS = "net.netfilter.nf_conntrack_buckets"
BUCKETS_A_PAGE = 512


def disable_ipv6(interface: str) -> str:
    """The name of the sysctl that takes IPv6 from an interface. A new link takes it over from `default`."""
    return f"net.ipv6.conf.{interface}.disable_ipv6"


class FakeSysctls:
    """Same shape as kroute.kernel.sysctl.Sysctls; a sysctl that a test did not set does not exist."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel

    def read(self, name: str) -> str | None:
        return self.kernel.sysctls.get(name)

    def write(self, name: str, value: str) -> None:
        if name not in self.kernel.sysctls:
            raise KernelError(f"cannot set {name} to {value}: there is no such sysctl")
        if name in self.kernel.read_only_sysctls:
            raise KernelError(f"cannot set {name} to {value}: Permission denied; set it on the host")
        self.kernel.operate("set sysctl", f"{name}={value}")
        if name == FORWARDING and value == "1" != self.kernel.sysctls[name]:
            self._begin_to_forward()
        self.kernel.sysctls[name] = self._in_whole_pages(value) if name == BUCKETS else value

    def is_writable(self, name: str) -> bool:
        return name in self.kernel.sysctls and name not in self.kernel.read_only_sysctls

    def hearing_routers(self) -> list[str]:
        return sorted(self.kernel.hearing_routers)

    def _begin_to_forward(self) -> None:
        """Delete what routers have advertised, where they are not heard in spite of it (`rt6_purge_dflt_routers`)."""
        heard = self.kernel.hearing_routers
        heard -= {it for it in heard if self.kernel.sysctls[f"net.ipv6.conf.{it}.accept_ra"] != "2"}

    @staticmethod
    def _in_whole_pages(buckets: str) -> str:
        """Round up, as `nf_ct_alloc_hashtable` does."""
        return str(-(-int(buckets) // BUCKETS_A_PAGE) * BUCKETS_A_PAGE)
