"""How a backend is found: by an entry point of `ccm.persistence` or `ccm.secret_persistence`.

```toml
[project.entry-points."ccm.persistence"]
acme = "ccm_acme:storage"
```

```python
@persistence.backend(config=Config)
def storage(given, context):
    return AcmeProvider([config.bucket for config in given], writer=context.writer)
```

`Config` is a msgspec Struct; `given` holds one for each instance of that backend in the file.
Only the backends that the file names are imported.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

import msgspec

from ccm.persistence.engine import nobody
from ccm.persistence.envelope import Writer
from ccm.persistence.errors import BackendDead

OBJECTS = "ccm.persistence"
SECRETS = "ccm.secret_persistence"
"""The entry-point groups."""


class Requests(Protocol):
    """The API server, for what is kept there."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Send a request and return the body of the answer; an error has its `status`."""


def _converted(declared: type[msgspec.Struct], given: dict[str, Any], where: str) -> Any:
    try:
        return msgspec.convert(given, declared, strict=False, dec_hook=lambda kind, one: kind(one))
    except msgspec.ValidationError as error:
        raise BackendDead(f"{where}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a backend is made with.

    Attributes:
        writer: asked at each write who leads.
        requests: the API server; None where there is none.
        namespace: of the daemon.
        read: makes settings of what stands in a file, for a backend that holds another one;
            told where it stands.
    """

    writer: Callable[[], Writer] = nobody
    requests: Requests | None = None
    namespace: str = "kube-system"
    read: Callable[[type[msgspec.Struct], dict[str, Any], str], Any] = _converted


Maker = Callable[[Sequence[Any], Context], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class backend:  # noqa: N801 - a decorator
    """Makes a function from configurations and a context to a provider a backend.

    Attributes:
        config: settings of one instance.
    """

    config: type[msgspec.Struct]

    def __call__(self, make: Maker) -> Maker:
        """The function as a backend."""
        make.declared = self  # type: ignore[attr-defined]
        return make


def available(group: str = OBJECTS) -> Mapping[str, EntryPoint]:
    """The installed backends by name; imports none.

    Raises:
        BackendDead: two distributions offer one name.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = found.get(entry.name)
        if other is not None and other.value != entry.value:
            raise BackendDead(
                f"persistence backend {entry.name!r} is offered twice, as {other.value} and as "
                f"{entry.value}; uninstall one of them"
            )
        found[entry.name] = entry
    return found


def load(name: str, group: str = OBJECTS) -> tuple[type[msgspec.Struct], Maker]:
    """Import a backend: its settings, and what makes a provider of them.

    Raises:
        BackendDead: there is none of that name, or it cannot be imported.
    """
    found = available(group)
    entry = found.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, found, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise BackendDead(
            f"unknown persistence backend {name!r}{hint or '.'} "
            f"Installed are {', '.join(sorted(found))}"
        )
    try:
        make = entry.load()
    except ImportError as error:
        raise BackendDead(
            f"persistence backend {name!r} needs the package {error.name}: install "
            f"kube-ccm[{name}] beside the daemon, in the same environment or image"
        ) from error
    if not isinstance(said := getattr(make, "declared", None), backend):
        raise BackendDead(
            f"persistence backend {name!r}: {entry.value} is not decorated with "
            "@persistence.backend(config=...)"
        )
    return said.config, make
