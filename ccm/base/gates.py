"""Feature gates: named switches with a default and a stage, set by one `A=true,B=false` map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Stage = Literal["ALPHA", "BETA", "GA", "DEPRECATED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One switch.

    Attributes:
        name: as written in the flag.
        default: its value when nobody sets it.
        stage: how far it has come; `AllAlpha` and `AllBeta` set all of a stage.
        locked: True when it may no longer be changed from its default.
        help: what it does, one sentence; a gate known only for compatibility says so.
    """

    name: str
    default: bool
    stage: Stage
    help: str
    locked: bool = False


class Gates:
    """The effective value of every gate.

    Raises:
        ValueError: the settings name an unknown gate or change a locked one; every
            fault is reported in the one message.
    """

    def __init__(self, known: Iterable[Gate], settings: Mapping[str, bool] | None = None) -> None:
        self.known = {gate.name: gate for gate in known}
        self._values = {name: gate.default for name, gate in self.known.items()}
        faults = list(self._apply(dict(settings or {})))
        if faults:
            raise ValueError("; ".join(faults))

    def enabled(self, name: str) -> bool:
        """Whether a gate is on; an unknown name is a programming error (KeyError)."""
        return self._values[name]

    def _apply(self, settings: dict[str, bool]) -> Iterable[str]:
        for group, stage in (("AllAlpha", "ALPHA"), ("AllBeta", "BETA")):
            if group in settings:
                value = settings.pop(group)
                for gate in self.known.values():
                    if gate.stage == stage and not gate.locked:
                        self._values[gate.name] = value
        for name, value in settings.items():
            found = self.known.get(name)
            if found is None:
                yield f"unrecognized feature gate: {name}"
            elif found.locked and value != found.default:
                wanted, locked = str(value).lower(), str(found.default).lower()
                yield f"cannot set feature gate {name} to {wanted}, feature is locked to {locked}"
            else:
                self._values[name] = value
