"""The known objects of one kind, and what a new list of them changes.

Only the resourceVersion of an object is kept; the object itself belongs to the catalog.
"""

from kroute.model.objects import Applied, Change, Deleted, KubernetesObject, Listed, ObjectKey


class Inventory:
    """The known objects. Each method returns the changes to pass on."""

    def __init__(self, kind: type[KubernetesObject]) -> None:
        self._kind = kind
        self._versions: dict[ObjectKey, str] = {}
        self._listed = False

    def __len__(self) -> int:
        return len(self._versions)

    def apply(self, item: KubernetesObject, triggered: float | None = None) -> list[Change]:
        """Record that the object exists. Returns nothing if this version is known. `triggered` is passed on."""
        key, version = item.key, item.metadata.resource_version
        if version and self._versions.get(key) == version:
            return []
        self._versions[key] = version
        return [Applied(item, triggered)]

    def delete(self, key: ObjectKey) -> list[Change]:
        """Record that the object was deleted, or is no longer selected."""
        return [Deleted(self._kind, key)] if self._versions.pop(key, None) is not None else []

    def listing(self) -> "Listing":
        """Begin to compare with a complete list."""
        return Listing(self)

    def complete(self, present: set[ObjectKey]) -> list[Change]:
        """Delete the known objects that a complete list does not have. The first time, `Listed` follows."""
        changes: list[Change] = []
        for key in sorted(self._versions.keys() - present):
            changes += self.delete(key)
        if not self._listed:
            self._listed = True
            changes.append(Listed(self._kind))
        return changes


class Listing:
    """A list in progress. Objects are deleted only when it is complete, so there is no moment without objects."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._present: set[ObjectKey] = set()

    def saw(self, key: ObjectKey) -> None:
        """Record that the list has this object. A malformed object counts too: it exists."""
        self._present.add(key)

    def missed(self, key: ObjectKey) -> None:
        """Record that this object was deleted while the list was read."""
        self._present.discard(key)

    def complete(self) -> list[Change]:
        """The list has ended. Returns the remaining changes."""
        return self._inventory.complete(self._present)
