"""Who is asking each key, and who waits for it, so that equal questions are asked once a job.

A key that nobody has an answer for is asked by one owner. Owners that want a key which another is asking
wait, and are told: that it is settled, or that asking it has become theirs since the first one died or
gave up. An owner asks its own keys without waiting for anybody's, so waiting cannot go round in a circle.

What the answers are, and where they are kept, is not known here. In memory are only the keys that are
being asked now: what is settled is forgotten here, and its answer must be entered before anybody claims
the key again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

Keys = dict[int, list[bytes]]
"""Keys by the owner whom they concern."""


class Claims:
    """The keys of one table that are being asked."""

    def __init__(self) -> None:
        self._owners: dict[bytes, int] = {}
        self._waiters: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, key: bytes) -> bool:
        return key in self._owners

    def owner(self, key: bytes) -> int | None:
        """Return who is asking a key; None if nobody is."""
        return self._owners.get(key)

    def of(self, owner: int) -> list[bytes]:
        """Return the keys that an owner is asking."""
        return [key for key, other in self._owners.items() if other == owner]

    def ask(self, owner: int, keys: Iterable[bytes]) -> None:
        """Make keys that nobody is asking those of an owner."""
        self._owners.update(dict.fromkeys(keys, owner))

    def wait(self, owner: int, key: bytes) -> None:
        """Let an owner wait for a key that another is asking."""
        waiters = self._waiters.setdefault(key, [])
        if owner not in waiters:
            waiters.append(owner)

    def own(self, owner: int, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of the keys that the owner is asking; others have gone to somebody else."""
        owners = self._owners
        return [key for key in keys if owners.get(key) == owner]

    def settle(self, keys: Iterable[bytes]) -> Keys:
        """Take keys that have an answer out, and return who waits for them."""
        told: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in keys:
            del self._owners[key]
            for waiter in self._waiters.pop(key, ()) if self._waiters else ():
                told[waiter].append(key)
        return told

    def give_up(self, owner: int, keys: Iterable[bytes]) -> Keys:
        """Hand keys that this owner is asking to those that wait longest; return what is whose now."""
        heirs: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in self.own(owner, keys):
            waiters = self._waiters.get(key)
            if not waiters:
                del self._owners[key]
                continue
            heir = self._owners[key] = waiters.pop(0)
            if not waiters:
                del self._waiters[key]
            heirs[heir].append(key)
        return heirs

    def drop(self, owner: int) -> Keys:
        """Forget an owner that is gone; returns as :meth:`give_up` does."""
        for key, waiters in list(self._waiters.items()):
            if owner in waiters:
                waiters.remove(owner)
                if not waiters:
                    del self._waiters[key]
        return self.give_up(owner, self.of(owner))
