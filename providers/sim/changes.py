"""Changes of which every field may be left out. No I/O."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def applied(present: T, change: msgspec.Struct) -> T:
    """A value with the fields that the change gives; what it leaves out (`UNSET`) stays."""
    fields = msgspec.structs.asdict(change)
    given = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    return msgspec.structs.replace(present, **given)
