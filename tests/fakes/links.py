"""The links of a fake kernel."""

import errno

from kroute.kernel.errors import KernelError
from kroute.kernel.net.links import LinkState
from tests.fakes.client import FakeClient


class FakeLinks(FakeClient):
    """Same shape as kroute.kernel.net.links.Links."""

    async def index(self, name: str) -> int | None:
        self.check_open()
        link = self.kernel.links.get(name)
        return link.index if link else None

    async def names(self) -> set[str]:
        self.check_open()
        return set(self.kernel.links)

    async def read(self, name: str) -> LinkState | None:
        self.check_open()
        link = self.kernel.links.get(name)
        return LinkState(link.index, link.kind, link.up, link.noarp, link.link_local) if link else None

    async def create_dummy(self, name: str) -> None:
        self.check_open()
        if name in self.kernel.links:
            raise KernelError(f"cannot create {name}: a link of that name exists", errno=errno.EEXIST)
        self.kernel.operate("create dummy", name)
        self.kernel.add_link(name, kind="dummy", noarp=True)

    async def repair(self, name: str) -> None:
        self.check_open()
        if name not in self.kernel.links:
            raise KernelError(f"cannot repair {name}: no such link", errno=errno.ENODEV)
        self.kernel.operate("repair", name)
        link = self.kernel.links[name]
        link.up, link.noarp, link.link_local = True, True, False

    async def delete(self, name: str) -> None:
        self.check_open()
        if name not in self.kernel.links:
            return
        self.kernel.operate("delete link", name)
        self.kernel.delete_link(name)
