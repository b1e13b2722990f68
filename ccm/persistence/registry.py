"""Registry of backends: entry points of `ccm.persistence` and `ccm.secret_persistence`.

```toml
[project.entry-points."ccm.persistence"]
acme = "ccm_acme:storage"
```

```python
@persistence.backend(config=Config)
def storage(given, context):
    return AcmeProvider([config.bucket for config in given], writer=context.writer)
```

`Config` is a msgspec Struct; `given` contains one `Config` for each instance of the backend in the
`--persistence-config` file. Only backends that the file names are imported.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

import msgspec

from ccm.persistence import objects
from ccm.persistence.engine import StoreProvider
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.errors import BackendDead
from ccm.persistence.store import Store

OBJECTS = "ccm.persistence"
SECRETS = "ccm.secret_persistence"
"""Entry-point groups of object and secret backends."""

_REMOVED = {
    "file": "use `sqlite: {path: /var/lib/kube-ccm/store/ccm.db}`, a local file or one on NFS",
}
"""Backends of earlier versions -> advice."""


class ApiRequests(Protocol):
    """Client of the API server, for backends that store objects there."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Send a request and return the body of the response.

        An exception for an HTTP error has the attribute `status`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendContext:
    """Input for the construction of a backend.

    Attributes:
        writer: returns the current writer; called at each write.
        requests: client of the API server; None = no API server is connected.
        namespace: namespace of the daemon's Lease.
        lease: name of the daemon's Lease.
        build: builds a provider from an entry of the config file, for a backend that contains
            another backend. The second argument is the position of the entry in the file, for error
            messages. None = no config file.
    """

    writer: Callable[[], WriterIdentity] = WriterIdentity
    requests: ApiRequests | None = None
    namespace: str = "kube-system"
    lease: str = "cloud-controller-manager"
    build: Callable[[Mapping[str, Any], str], Any] | None = None


BackendFactory = Callable[[Sequence[Any], BackendContext], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class backend:  # noqa: N801 - a decorator
    """Decorator that turns a factory function into a backend.

    The function takes the settings of all instances and a `BackendContext`, and returns a provider.
    The daemon configures one instance.

    Attributes:
        config: Struct with the settings of one instance.
    """

    config: type[msgspec.Struct]

    def __call__(self, make: BackendFactory) -> BackendFactory:
        """Attach this declaration to the function."""
        make.declared = self  # type: ignore[attr-defined]
        return make


def store_backend(
    name: str,
    config: type[msgspec.Struct],
    make: Callable[[Any], Store],
    identity: Sequence[str],
) -> BackendFactory:
    """Return the backend that uses a store for each instance.

    Args:
        name: name of the backend.
        config: Struct with the settings of one instance.
        make: function from the settings of an instance to its store.
        identity: settings that identify the storage.
    """

    def storage(configs: Sequence[Any], context: BackendContext) -> StoreProvider:
        stores = {}
        for given in configs:
            place = {setting: getattr(given, setting) for setting in identity}
            named = objects.instance_name(name, msgspec.to_builtins(place, enc_hook=str))
            stores[named] = make(given)
        return StoreProvider(name, stores, writer=context.writer)

    return backend(config=config)(storage)


def load_backend(name: str, group: str = OBJECTS) -> tuple[type[msgspec.Struct], BackendFactory]:
    """Import a backend; return its settings Struct and its factory.

    Raises:
        BackendDead: the name is unknown or registered twice, the import failed, or the factory
            lacks the decorator.
    """
    entries = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if not entries:
        if name in _REMOVED:
            raise BackendDead(f"persistence backend {name!r} no longer exists; {_REMOVED[name]}")
        installed = sorted(entry_points(group=group).names)
        similar = difflib.get_close_matches(name, installed, n=1)
        hint = f"; did you mean {similar[0]!r}?" if similar else ""
        raise BackendDead(
            f"unknown persistence backend {name!r}{hint or '.'} "
            f"Installed backends: {', '.join(installed)}"
        )
    if len(entries) > 1:
        raise BackendDead(
            f"persistence backend {name!r} is registered twice, as {' and as '.join(entries)}; "
            "uninstall one of them"
        )
    (entry,) = entries.values()
    try:
        make = entry.load()
    except ImportError as error:
        raise BackendDead(
            f"persistence backend {name!r} needs the package {error.name}; install "
            f"kube-ccm[{name}] in the environment or image of the daemon"
        ) from error
    if not isinstance(declaration := getattr(make, "declared", None), backend):
        raise BackendDead(
            f"persistence backend {name!r}: {entry.value} is not decorated with "
            "@persistence.backend(config=...)"
        )
    return declaration.config, make
