"""A copy of a cluster in the in-memory API server, which the daemon's controllers may write.

The copy holds what the daemon's types hold. Objects that cannot be decoded are known by their
keys, as they are to a daemon. Nothing is written elsewhere: the copy has no way to the API server
it was read from, and checks nothing, since that server has accepted its objects.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from ccm.base import clock
from ccm.gardener import crds
from ccm.kube.client import Client
from ccm.kube.resources import Kind
from ccm.model.machines import document_of
from ccm.model.meta import KubeObject
from ccm.testing.apiserver import kinds, schema, store
from ccm.testing.apiserver.transport import MemoryTransport

T = TypeVar("T", bound=KubeObject)

_EVERY_CHANGE = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Generic[T]):
    """All objects of one kind.

    Attributes:
        before: by key, as they were read.
        now: by key, as they are by now.
        malformed: keys of those that cannot be decoded.
        touched: key -> when it was first written, or went, by the monotonic clock.
        last: key -> the last state of each that was touched.
    """

    before: Mapping[str, T]
    now: Mapping[str, T]
    malformed: Collection[str]
    touched: Mapping[str, float]
    last: Mapping[str, T]


@dataclass(slots=True)
class _History:
    touched: dict[str, float] = field(default_factory=dict)
    last: dict[str, bytes] = field(default_factory=dict)


class ClusterCopy:
    """The copy; it makes clients as `ccm.app.clients.Clients` does.

    Attributes:
        served: plurals of the machine objects that the cluster serves; None: not known.
    """

    def __init__(self) -> None:
        self.served: Collection[str] | None = None
        self._histories: dict[str, _History] = defaultdict(_History)
        self._loaded: dict[Kind[Any], tuple[Mapping[str, Any], Collection[str]]] = {}
        self._store = store.Store(history=_EVERY_CHANGE, observe=self._note)
        self._transport = MemoryTransport(self._store, is_strict=False)

    def serve(self, plurals: Collection[str]) -> None:
        """Serve the machine objects of these plurals, as the cluster does."""
        self.served = plurals
        for definition in crds.DEFINITIONS:
            kind = kinds.custom(dict(crds.manifest(definition)))
            if kind.plural in plurals:
                self._store.kinds.replace(kind.group, kind.plural, kind)

    def load(
        self, kind: Kind[T], objects: Mapping[str, T], *, malformed: Collection[str] = ()
    ) -> None:
        """These are all the objects of a kind."""
        self._loaded[kind] = objects, malformed
        served = self._served(kind)
        assert served is not None, kind.plural
        for key, obj in objects.items():
            body = msgspec.to_builtins(document_of(obj))
            # An odd time or number, which that server let pass, stays as it is.
            with contextlib.suppress(schema.WrongTypeError):
                body = served.clean(body)
            self._store.restore(served, key, body)
        for key in malformed:
            namespace, _, name = key.rpartition("/")
            # No decoder takes such finalizers.
            stub = {"name": name, "namespace": namespace, "finalizers": 0}
            self._store.restore(served, key, {"metadata": stub})

    def of(self, kind: Kind[T]) -> Copy[T]:
        """Return the objects of a kind; none if it was not loaded."""
        served = self._served(kind)
        before, malformed = self._loaded.get(kind, ({}, ()))
        history = self._histories[f"{kind.plural}.{kind.group}"]
        stored = () if served is None else tuple(self._store.collection(served))
        return Copy(
            before=before,
            now={one.key: kind.decode(one.raw) for one in stored if one.key not in malformed},
            malformed=malformed,
            touched=history.touched,
            last={key: kind.decode(raw) for key, raw in history.last.items()},
        )

    def named(self, name: str) -> Client:
        """Return a client; all write the same copy."""
        return self._transport.client(name)

    def _served(self, kind: Kind[Any]) -> kinds.Kind | None:
        version = kind.api_version.rpartition("/")[2]
        return self._store.kinds.get(kind.group, version, kind.plural)

    def _note(self, kind: kinds.Kind, change: store.Change) -> None:
        history, key = self._histories[f"{kind.plural}.{kind.group}"], change.entry.key
        if change.type == "DELETED" or key not in history.touched:
            history.touched[key] = clock.monotonic()
        history.last[key] = change.entry.raw
