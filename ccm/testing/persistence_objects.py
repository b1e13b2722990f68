"""Cases of the persistence contract about objects: what may be stored, under which name."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from ccm.base.tasks import Group
from ccm.persistence import errors
from ccm.persistence.interface import GVK, ObjectKey
from ccm.persistence.objects import DEEPEST, LARGEST
from ccm.testing.persistence_harness import PersistenceHarness

KIND = GVK("journal.ccm", "v1", "CloudResource")
ODD = ("a:b", "Upper", "upper", "100%", ".hidden", "x" * 253, "ünï-☃", "a/b", "..", "~", "_")
NEEDLE = "s3cr3t-needle-in-the-hay"


def thing(name: str = "one", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """An object."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "metadata": metadata,
        "spec": {"size": 3, "zones": ["a", None, True, 1.5], "text": "größe\n"} | spec,
    }


class ObjectCases:
    """Part of `PersistenceContract`."""

    async def test_round_trip(self, provider: Any, first: str) -> None:
        """What is read equals what was written."""
        obj = thing()
        before = copy.deepcopy(obj)

        key = await provider.put_object(first, obj)

        assert await provider.get_object(first, KIND, key) == before == obj

    async def test_key_is_the_same_everywhere(self, provider: Any) -> None:
        """It comes from namespace and name; a second put replaces."""
        first, second = provider.instances()
        key = await provider.put_object(first, thing(size=1))

        assert await provider.put_object(second, thing(size=2)) == key
        assert await provider.put_object(first, thing(size=3)) == key
        assert await provider.get_all_objects(first, KIND) == [thing(size=3)]

    async def test_what_is_no_object_is_refused(self, provider: Any, first: str) -> None:
        """And nothing of it is written."""
        deep: Any = "end"
        for _ in range(DEEPEST + 1):
            deep = [deep]
        refused = [
            {"kind": "K", "metadata": {"name": "n"}},
            {"apiVersion": "v1", "metadata": {"name": "n"}},
            {"apiVersion": "v1", "kind": "K", "metadata": {}},
            *(
                thing(bad=bad)
                for bad in (math.nan, math.inf, b"bytes", {1: 2}, deep, {1}, "\ud800")
            ),
        ]
        for bad in refused:
            with pytest.raises(errors.InvalidObject):
                await provider.put_object(first, bad)
        with pytest.raises(errors.ObjectTooLarge):
            await provider.put_object(first, thing(big="x" * LARGEST))

        assert await provider.get_all_objects(first, KIND) == []
        await provider.put_object(first, thing(big="x" * (LARGEST - 1000)))

    async def test_scopes(self, provider: Any, first: str) -> None:
        """Namespace, group, version and kind tell objects apart."""
        others = [
            thing() | {"apiVersion": "journal.ccm/v1beta1"},
            thing() | {"apiVersion": "v1"},
            thing() | {"kind": "Other"},
            thing(namespace="other"),
            thing(namespace=""),
        ]
        for obj in (thing(), *others):
            await provider.put_object(first, obj)

        beta = GVK("journal.ccm", "v1beta1", KIND.kind)
        assert await provider.get_all_objects(first, beta) == [others[0]]
        assert len(await provider.get_all_objects(first, KIND)) == 3

    async def test_delete(self, provider: Any, first: str) -> None:
        """It is gone; once more is fine; it can be written again."""
        key = await provider.put_object(first, thing())

        await provider.delete_object(first, KIND, key)
        await provider.delete_object(first, KIND, key)

        assert await provider.get_object(first, KIND, key) is None
        assert await provider.get_all_objects(first, KIND) == []
        assert await provider.put_object(first, thing()) == key
        assert await provider.get_object(first, KIND, key) == thing()

    async def test_unknown_names_and_keys(self, provider: Any, first: str) -> None:
        """Refused before anything is asked."""
        unknown, key = "nobody-0123456789abcdef", ObjectKey("default/one")
        for call in (
            provider.put_object(unknown, thing()),
            provider.get_object(unknown, KIND, key),
            provider.delete_object(unknown, KIND, key),
            provider.get_all_objects(unknown, KIND),
        ):
            with pytest.raises(errors.UnknownInstance):
                await call
        for bad in ("../x", "x", "a/../b", "a/b/c", "A/b", "a/.b", "", "a/%zz", "a/" + "b" * 300):
            for refused in (provider.get_object, provider.delete_object):
                with pytest.raises(errors.InvalidObject):
                    await refused(first, KIND, ObjectKey(bad))

    async def test_instances_are_isolated(self, provider: Any) -> None:
        """One does not see what the other has."""
        first, second = provider.instances()
        key = await provider.put_object(first, thing())

        assert await provider.get_object(second, KIND, key) is None
        assert await provider.get_all_objects(second, KIND) == []

    async def test_odd_names(self, provider: Any, first: str) -> None:
        """None is lost, none taken for another."""
        keys = {name: await provider.put_object(first, thing(name, odd=name)) for name in ODD}

        assert len(set(keys.values())) == len(ODD)
        assert len({key.lower() for key in keys.values()}) == len(ODD)
        for name, key in keys.items():
            assert await provider.get_object(first, KIND, key) == thing(name, odd=name)

    async def test_list_beyond_a_page(
        self, harness: PersistenceHarness, provider: Any, first: str
    ) -> None:
        """All of them; changing what was returned changes nothing."""
        count = harness.many
        await put_many(provider, first, count)

        found = await provider.get_all_objects(first, KIND)

        assert sorted(each["metadata"]["name"] for each in found) == sorted(
            f"n{at}" for at in range(count)
        )
        found[0]["spec"]["size"] = "changed"
        again = await provider.get_all_objects(first, KIND)
        assert all(each["spec"]["size"] == 3 for each in again)


async def put_many(provider: Any, instance: str, count: int) -> None:
    """Write so many objects, some at a time."""
    names = iter(range(count))

    async def work() -> None:
        for at in names:
            await provider.put_object(instance, thing(f"n{at}"))

    async with Group() as group:
        for number in range(16):
            group.start(work(), name=f"puts-{number}")
