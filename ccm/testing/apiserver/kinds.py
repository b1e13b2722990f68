"""The kinds that this server serves: names, scope, verbs, shape, columns and defaults.

The built-in ones are the rows of `kinds.toml`. A stored CustomResourceDefinition adds another:
its stored version, with structural schema (pruning, defaults, choices and limits), status and
scale subresources, printer columns, selectable fields and names.
"""

from __future__ import annotations

import base64
import dataclasses
import pathlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ccm.model import names
from ccm.testing.apiserver import errors, schema, tables

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
PART_VERBS = ("get", "patch", "update")
"""Verbs of a subresource that shows a part of the object."""

EVICTION = "eviction"

_NOT_READY = {"key": names.TAINT_NOT_READY, "effect": "NoSchedule"}


@dataclasses.dataclass(frozen=True)
class Scale:
    """Dotted paths, such as `.spec.replicas`, of the fields that the scale subresource shows."""

    replicas: str
    status_replicas: str
    selector: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Kind(errors.Resource):
    """One kind.

    `selectable` lists the fields that a field selector may name beside `metadata.name`
    and `metadata.namespace`, each with the paths it is read from (the first that is
    not empty) and its value when it is absent.
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
    columns: tuple[tables.Column, ...] = tables.PLAIN
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
        """The start of the paths of the group version, such as `/api/v1`."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    @property
    def subresources(self) -> tuple[str, ...]:
        """The parts of an object that have paths of their own."""
        parts = {EVICTION: self.evictable, "status": self.status, "scale": self.scale is not None}
        return tuple(name for name, is_there in parts.items() if is_there)

    def part_verbs(self, part: str) -> tuple[str, ...]:
        """Return the verbs of a subresource."""
        return ("create",) if part == EVICTION else PART_VERBS

    def clean(
        self,
        body: Mapping[str, Any],
        unknown: list[str] | None = None,
        *,
        known: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return an object in stored form, kind and version first; see `schema.clean`.

        Raises:
            WrongTypeError: a value has a wrong type.
        """
        rest = {key: item for key, item in body.items() if key not in ("kind", "apiVersion")}
        head = {"kind": self.kind, "apiVersion": self.api_version}
        return head | schema.clean(self.shape, rest, [] if unknown is None else unknown, known)

    def fields_of(self, body: Mapping[str, Any]) -> dict[str, str]:
        """Return the values of selectable fields; an absent one is empty, not missing."""
        metadata = body["metadata"]
        found = {f"metadata.{key}": metadata.get(key, "") for key in ("name", "namespace")}
        for name, places, default in self.selectable:
            values = [each for place in places for each in tables.find(body, f".{place}")]
            texts = (tables.as_text(each) for each in values if each is not None)
            found[name] = next(filter(None, texts), default)
        return found


def _built_in(
    name: str, *, selectable: Sequence[str] = (), columns: str = tables.PLAIN_TEXT, **rest: Any
) -> Kind:
    lists = {key: tuple(value) for key, value in rest.items() if isinstance(value, list)}
    return Kind(
        kind=name,
        shape=schema.kubernetes()[name],
        selectable=tuple(_selectable(one) for one in selectable),
        columns=tables.parse(columns),
        **(rest | lists),
    )


def _selectable(text: str) -> tuple[str, tuple[str, ...], str]:
    places, _, default = text.partition("~")
    name, _, stated = places.partition("=")
    return name, tuple((stated or name).split("|")), default


_TABLE = tomllib.loads(pathlib.Path(__file__).with_name("kinds.toml").read_text())
BUILTIN = {row["plural"]: _built_in(name, **row) for name, row in _TABLE.items()}
"""The built-in kinds by plural."""

NODES, NAMESPACES, SERVICES = (BUILTIN[one] for one in ("nodes", "namespaces", "services"))
PODS, BUDGETS = BUILTIN["pods"], BUILTIN["poddisruptionbudgets"]
CONFIG_MAPS, LEASES = BUILTIN["configmaps"], BUILTIN["leases"]
DEFINITIONS = BUILTIN["customresourcedefinitions"]


def custom(definition: Mapping[str, Any]) -> Kind:
    """Return the kind that a CustomResourceDefinition describes.

    Raises:
        ApiError: 422, the definition is incomplete or wrong.
    """
    spec = definition["spec"]
    try:
        words = spec["names"]
        (version,) = [one for one in spec["versions"] if one.get("storage")]
        parts = version.get("subresources") or {}
        paths = ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
        scale = parts.get("scale")
        fields = [one["jsonPath"].lstrip(".") for one in version.get("selectableFields", ())]
        openapi = version["schema"]["openAPIV3Schema"]
        return Kind(
            kind=words["kind"],
            plural=words["plural"],
            singular=words.get("singular", ""),
            group=spec["group"],
            version=version["name"],
            shape=schema.structural(openapi, f"{spec['group']}.{words['kind']}"),
            namespaced=spec["scope"] == "Namespaced",
            status="status" in parts,
            scale=scale and Scale(*(scale.get(path, "") for path in paths)),
            short_names=tuple(words.get("shortNames", ())),
            categories=tuple(words.get("categories", ())),
            selectable=tuple((one, (one,), "") for one in fields),
            columns=tables.custom(version.get("additionalPrinterColumns") or ()),
            counts=True,
            is_custom=True,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        cause = errors.Cause("spec", f"no valid definition: {type(error).__name__}: {error}")
        raise errors.invalid(DEFINITIONS, definition["metadata"]["name"], [cause]) from error


def establish(definition: dict[str, Any]) -> None:
    """Set the status that says that a definition is served."""
    spec, now = definition["spec"], schema.now()
    words = spec["names"]
    words.setdefault("singular", words["kind"].lower())
    words.setdefault("listKind", f"{words['kind']}List")
    reasons = {"NamesAccepted": "NoConflicts", "Established": "InitialNamesAccepted"}
    fresh = [
        {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": now}
        for kind, reason in reasons.items()
    ]
    definition["status"] = {
        "conditions": (definition.get("status") or {}).get("conditions") or fresh,
        "acceptedNames": words,
        "storedVersions": [one["name"] for one in spec["versions"] if one.get("storage")],
    }


# --- defaults that depend on other fields ------------------------------------------------------


def complete(kind: Kind, body: dict[str, Any]) -> None:
    """Set the defaults of a built-in kind that depend on other fields; Services aside."""
    if kind is NODES and (capacity := body["status"].get("capacity")):
        body["status"]["allocatable"] = {**capacity, **body["status"].get("allocatable", {})}
    elif kind is NAMESPACES:
        labels = body["metadata"].setdefault("labels", {})
        labels[names.LABEL_NAMESPACE] = body["metadata"].get("name", "")
    elif kind is BUILTIN["secrets"]:
        for key, value in body.pop("stringData", {}).items():
            body.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()


def begin(kind: Kind, body: dict[str, Any]) -> None:
    """Add what only a new object gets."""
    if kind is NODES:
        # Every new node starts unschedulable until a controller finds it ready.
        taints = body["spec"].setdefault("taints", [])
        if not any(_NOT_READY.items() <= taint.items() for taint in taints):
            taints.append(dict(_NOT_READY))
    if kind is NAMESPACES:
        body["spec"] = {"finalizers": ["kubernetes"]}


class Registry:
    """The kinds that one server serves now, by group, version and plural."""

    def __init__(self) -> None:
        self._by_path = {(one.group, one.version, one.plural): one for one in BUILTIN.values()}

    def __iter__(self) -> Iterator[Kind]:
        return iter(sorted(self._by_path.values(), key=lambda one: (one.api_version, one.plural)))

    def get(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the kind that a request path names."""
        return self._by_path.get((group, version, plural))

    def named(self, qualified: str) -> Kind:
        """Return the kind of that plural and group, such as `leases.coordination.k8s.io`."""
        return next(one for one in self._by_path.values() if one.qualified == qualified)

    def has_version(self, group: str, version: str) -> bool:
        """Return whether there are kinds of a group version."""
        return any(key[:2] == (group, version) for key in self._by_path)

    def replace(self, group: str, plural: str, kind: Kind | None) -> None:
        """Serve this custom kind, and no other, as that resource; None: no longer."""
        for key, one in list(self._by_path.items()):
            if one.is_custom and (one.group, one.plural) == (group, plural):
                del self._by_path[key]
        if kind is not None:
            self._by_path[group, kind.version, plural] = kind
