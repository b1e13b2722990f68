"""The kinds this server serves: names, scope, verbs, shape, columns and rules.

The built-in ones are the rows of `kinds.toml`; what is special about one is a function of
`builtin` that has its name: `default_node`, `begin_node`, `judge_node`.

Custom resources add rows while the server runs (`extensions`); a `Registry` holds them all.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ccm.sandbox.apiserver import builtin, errors, limits, schema, services, validate
from ccm.sandbox.apiserver import columns as table

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
PART_VERBS = ("get", "patch", "update")
"""What may be done to a sub-resource that shows a part of the object."""

EVICTION = "eviction"
"""The sub-resource that is only asked to do something."""

Default = Callable[[dict[str, Any], Mapping[str, Any] | None], None]
Judge = Callable[[validate.Body, validate.Body | None], validate.Causes]


@dataclasses.dataclass(frozen=True)
class Scale:
    """Where a kind keeps what its scale sub-resource shows: dotted paths, `.spec.replicas`."""

    replicas: str
    status_replicas: str
    selector: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Kind(errors.Resource):
    """One kind: how it is called, where it lives, and what may be done to it.

    `selectable` lists the fields that a field selector may name beside `metadata.name`
    and `metadata.namespace`, each with the paths it is read from (the first that is
    not empty) and its value when it is absent. `default` completes an object (the second
    argument is the stored one that it replaces), `begin` completes a new one; `judge` yields
    the faults beyond the shape's.
    """

    version: str = "v1"
    shape: schema.Type
    singular: str = ""
    namespaced: bool = True
    status: bool = False
    scale: Scale | None = None
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    selectable: tuple[tuple[str, tuple[str, ...], str], ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    columns: tuple[table.Column, ...] = table.PLAIN
    name_rule: limits.Rule = limits.subdomain
    default: Default | None = None
    begin: Callable[[dict[str, Any]], None] | None = None
    judge: Judge | None = None
    evictable: bool = False
    counts: bool = False
    keeps_new_status: bool = False
    is_returned_when_deleted: bool = False
    is_custom: bool = False

    @property
    def api_version(self) -> str:
        """`v1`, or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        """Where the group's paths begin, such as `/api/v1`."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    @property
    def subresources(self) -> tuple[str, ...]:
        """The parts of an object that have paths of their own."""
        parts = {EVICTION: self.evictable, "status": self.status, "scale": self.scale is not None}
        return tuple(name for name, is_there in parts.items() if is_there)

    def part_verbs(self, part: str) -> tuple[str, ...]:
        """What may be done to one of them."""
        return ("create",) if part == EVICTION else PART_VERBS


def _read_table() -> dict[str, Kind]:
    text = pathlib.Path(__file__).with_name("kinds.toml").read_text()
    found = (_kind(name, **row) for name, row in tomllib.loads(text).items())
    return {kind.plural: kind for kind in found}


def _kind(
    name: str,
    *,
    selectable: Sequence[str] = (),
    columns: str = table.PLAIN_TEXT,
    name_rule: str = "subdomain",
    **rest: Any,
) -> Kind:
    rules = services if name == "Service" else builtin
    more: dict[str, Any] = rest | {
        key: tuple(value) for key, value in rest.items() if isinstance(value, list)
    }
    for step in ("default", "begin", "judge"):
        more[step] = getattr(rules, f"{step}_{name.lower()}", None)
    return Kind(
        kind=name,
        shape=schema.kubernetes()[name],
        selectable=tuple(_selectable(one) for one in selectable),
        columns=table.parse(columns),
        name_rule=limits.RULES[name_rule],
        **more,
    )


def _selectable(text: str) -> tuple[str, tuple[str, ...], str]:
    places, _, default = text.partition("~")
    name, _, stated = places.partition("=")
    return name, tuple((stated or name).split("|")), default


BUILTIN = _read_table()
"""The built-in kinds by plural."""

CONFIG_MAPS, EVENTS, LEASES = (BUILTIN[plural] for plural in ("configmaps", "events", "leases"))
NODES, NAMESPACES = BUILTIN["nodes"], BUILTIN["namespaces"]
PODS, BUDGETS = BUILTIN["pods"], BUILTIN["poddisruptionbudgets"]
SERVICES = BUILTIN["services"]
DEFINITIONS = BUILTIN["customresourcedefinitions"]


class Registry:
    """The kinds that one server serves now, by group, version and plural."""

    def __init__(self) -> None:
        self._by_path = {(one.group, one.version, one.plural): one for one in BUILTIN.values()}

    def __iter__(self) -> Iterator[Kind]:
        return iter(sorted(self._by_path.values(), key=lambda one: (one.api_version, one.plural)))

    def get(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind that a request path names."""
        return self._by_path.get((group, version, plural))

    def named(self, qualified: str) -> Kind:
        """The kind of that plural and group, such as `leases.coordination.k8s.io`."""
        return next(one for one in self._by_path.values() if one.qualified == qualified)

    def has_version(self, group: str, version: str) -> bool:
        """Whether there are kinds of a group version."""
        return any(key[:2] == (group, version) for key in self._by_path)

    def replace(self, group: str, plural: str, kind: Kind | None) -> None:
        """Serve this custom kind, and no other, as that resource; None: no longer."""
        for key, one in list(self._by_path.items()):
            if one.is_custom and (one.group, one.plural) == (group, plural):
                del self._by_path[key]
        if kind is not None:
            self._by_path[group, kind.version, plural] = kind
