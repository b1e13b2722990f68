"""The served kinds: names, scope, verbs, types, columns and defaults.

Built-in kinds are the rows of `kinds.toml`. A stored CustomResourceDefinition adds a kind, served
only at the storage version. The definition determines structural schema (pruning, defaults, enums
and limits), status and scale subresources, printer columns, selectable fields and names.
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
"""Verbs of the approval, status and scale subresources."""

APPROVAL, EVICTION = "approval", "eviction"

_NOT_READY = {"key": names.TAINT_NOT_READY, "effect": "NoSchedule"}


@dataclasses.dataclass(frozen=True)
class Scale:
    """Dotted paths, such as `.spec.replicas`, of the fields that the scale subresource uses."""

    replicas: str
    status_replicas: str
    selector: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ServedKind(errors.KindNames):
    """A served kind.

    Attributes:
        selectable: fields that field selectors may use besides `metadata.name` and
            `metadata.namespace`. Each is a tuple of the field's name, the paths of its value (the
            first that is not empty counts), and its default.
        keeps_new_status: whether a create request may set the status.
        is_returned_when_deleted: whether the response to a deletion is the object, not a Status.
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
    approvable: bool = False
    evictable: bool = False
    has_generation: bool = False
    keeps_new_status: bool = False
    is_returned_when_deleted: bool = False
    is_custom: bool = False

    @property
    def api_version(self) -> str:
        """`v1`, or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        """Path prefix of the group version, such as `/api/v1`."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    @property
    def subresources(self) -> tuple[str, ...]:
        """Names of the subresources."""
        parts = {
            APPROVAL: self.approvable,
            EVICTION: self.evictable,
            "status": self.status,
            "scale": self.scale is not None,
        }
        return tuple(name for name, is_there in parts.items() if is_there)

    def part_verbs(self, part: str) -> tuple[str, ...]:
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
        """Return the values of selectable fields; absent fields have their default."""
        metadata = body["metadata"]
        fields = {f"metadata.{key}": metadata.get(key, "") for key in ("name", "namespace")}
        for name, places, default in self.selectable:
            values = [value for place in places for value in tables.find(body, f".{place}")]
            texts = (tables.as_text(value) for value in values if value is not None)
            fields[name] = next(filter(None, texts), default)
        return fields


def _built_in(
    name: str,
    *,
    selectable: Sequence[str] = (),
    columns: str = tables.PLAIN_TEXT,
    scale: Sequence[str] = (),
    **rest: Any,
) -> ServedKind:
    lists = {key: tuple(value) for key, value in rest.items() if isinstance(value, list)}
    return ServedKind(
        kind=name,
        shape=schema.kubernetes()[name],
        selectable=tuple(_selectable(field_text) for field_text in selectable),
        columns=tables.parse(columns),
        scale=Scale(*scale) if scale else None,
        **(rest | lists),
    )


def _selectable(text: str) -> tuple[str, tuple[str, ...], str]:
    places, _, default = text.partition("~")
    name, _, stated = places.partition("=")
    return name, tuple((stated or name).split("|")), default


_TABLE = tomllib.loads(pathlib.Path(__file__).with_name("kinds.toml").read_text())
BUILTIN = {row["plural"]: _built_in(name, **row) for name, row in _TABLE.items()}
"""The built-in kinds by plural."""

NODES, NAMESPACES, SERVICES = (BUILTIN[plural] for plural in ("nodes", "namespaces", "services"))
PODS, BUDGETS = BUILTIN["pods"], BUILTIN["poddisruptionbudgets"]
CONFIG_MAPS, LEASES = BUILTIN["configmaps"], BUILTIN["leases"]
DEFINITIONS = BUILTIN["customresourcedefinitions"]


def kind_of_definition(definition: Mapping[str, Any]) -> ServedKind:
    """Return the kind that a CustomResourceDefinition describes.

    Raises:
        StatusError: 422, the definition is incomplete or invalid.
    """
    spec = definition["spec"]
    try:
        words = spec["names"]
        (version,) = [item for item in spec["versions"] if item.get("storage")]
        parts = version.get("subresources") or {}
        paths = ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
        scale = parts.get("scale")
        fields = [item["jsonPath"].lstrip(".") for item in version.get("selectableFields", ())]
        openapi = version["schema"]["openAPIV3Schema"]
        return ServedKind(
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
            selectable=tuple((item, (item,), "") for item in fields),
            columns=tables.custom(version.get("additionalPrinterColumns") or ()),
            has_generation=True,
            is_custom=True,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        cause = errors.StatusCause("spec", f"invalid definition: {type(error).__name__}: {error}")
        raise errors.invalid(DEFINITIONS, definition["metadata"]["name"], [cause]) from error


def establish(definition: dict[str, Any]) -> None:
    """Set the names and the status of a served definition."""
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
        "storedVersions": [
            version["name"] for version in spec["versions"] if version.get("storage")
        ],
    }


# --- defaults that depend on other fields ------------------------------------------------------


def set_dependent_defaults(kind: ServedKind, body: dict[str, Any]) -> None:
    """Set the defaults of a built-in kind that depend on other fields, except for Services."""
    if kind is NODES and (capacity := body["status"].get("capacity")):
        body["status"]["allocatable"] = {**capacity, **body["status"].get("allocatable", {})}
    elif kind is NAMESPACES:
        labels = body["metadata"].setdefault("labels", {})
        labels[names.LABEL_NAMESPACE] = body["metadata"].get("name", "")
    elif kind is BUILTIN["secrets"]:
        for key, value in body.pop("stringData", {}).items():
            body.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()


def set_creation_defaults(kind: ServedKind, body: dict[str, Any]) -> None:
    """Set defaults that only new objects get."""
    if kind is NODES:
        # A new node starts with the not-ready taint until a controller finds it ready.
        taints = body["spec"].setdefault("taints", [])
        if not any(_NOT_READY.items() <= taint.items() for taint in taints):
            taints.append(dict(_NOT_READY))
    if kind is NAMESPACES:
        body["spec"] = {"finalizers": ["kubernetes"]}


class Registry:
    """The currently served kinds, by group, version and plural."""

    def __init__(self) -> None:
        self._by_path = {(kind.group, kind.version, kind.plural): kind for kind in BUILTIN.values()}

    def __iter__(self) -> Iterator[ServedKind]:
        return iter(
            sorted(self._by_path.values(), key=lambda kind: (kind.api_version, kind.plural))
        )

    def get(self, group: str, version: str, plural: str) -> ServedKind | None:
        return self._by_path.get((group, version, plural))

    def named(self, qualified: str) -> ServedKind:
        """Return the kind with a qualified name, such as `leases.coordination.k8s.io`."""
        return next(kind for kind in self._by_path.values() if kind.qualified == qualified)

    def has_version(self, group: str, version: str) -> bool:
        """Return whether a group version has kinds."""
        return any(key[:2] == (group, version) for key in self._by_path)

    def replace(self, group: str, plural: str, kind: ServedKind | None) -> None:
        """Serve this custom kind as the only version of its resource; None removes the resource."""
        for key, served in list(self._by_path.items()):
            if served.is_custom and (served.group, served.plural) == (group, plural):
                del self._by_path[key]
        if kind is not None:
            self._by_path[group, kind.version, plural] = kind
