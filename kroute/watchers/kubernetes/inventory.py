"""Which objects of one kind are known, and what a new list of them changes.

Of an object only its resourceVersion is remembered; the object itself belongs to the catalog.
"""

from kroute.model.objects import Applied, Change, Deleted, KubernetesObject, Listed, ObjectKey


class Inventory:
    """The known objects. Each method returns the changes that it means to those who follow."""

    def __init__(self, kind: type[KubernetesObject]) -> None:
        self._kind = kind
        self._versions: dict[ObjectKey, str] = {}
        self._listed = False

    def __len__(self) -> int:
        return len(self._versions)

    def apply(self, item: KubernetesObject, triggered: float | None = None) -> list[Change]:
        """The object exists; nothing changes when this version of it is known. `triggered` is passed on."""
        key, version = item.key, item.metadata.resource_version
        if version and self._versions.get(key) == version:
            return []
        self._versions[key] = version
        return [Applied(item, triggered)]

    def delete(self, key: ObjectKey) -> list[Change]:
        """The object is gone, or no longer selected."""
        return [Deleted(self._kind, key)] if self._versions.pop(key, None) is not None else []

    def listing(self) -> "Listing":
        """Begin to compare with a complete list."""
        return Listing(self)

    def complete(self, present: set[ObjectKey]) -> list[Change]:
        """A list is complete: what is known and not in it is gone. The first time, that is worth saying."""
        changes: list[Change] = []
        for key in sorted(self._versions.keys() - present):
            changes += self.delete(key)
        if not self._listed:
            self._listed = True
            changes.append(Listed(self._kind))
        return changes


class Listing:
    """A list of all objects, as it comes in. Nothing is deleted before it is complete, so there is no empty moment."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._present: set[ObjectKey] = set()

    def saw(self, key: ObjectKey) -> None:
        """This object is in the list (a malformed one too: it exists)."""
        self._present.add(key)

    def missed(self, key: ObjectKey) -> None:
        """This object went away while the list came in."""
        self._present.discard(key)

    def complete(self) -> list[Change]:
        """The list has ended: the difference that is left."""
        return self._inventory.complete(self._present)
