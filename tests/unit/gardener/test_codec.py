"""Objects in neutral terms, however odd they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ccm.gardener import codec, names
from ccm.gardener import types as documents
from ccm.gardener.types import MachineClass
from ccm.model import ObjectMeta, Secret
from ccm.model.machines import Machine, Phase

META = {"name": "m", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}


def machine(spec: Any = None, status: Any = None, **metadata: Any) -> Machine:
    found = {"metadata": META | metadata, "spec": spec or {}, "status": status or {}}
    return codec.machine(msgspec.convert(found, documents.Machine))


@pytest.mark.parametrize(
    ("annotation", "field", "seconds"),
    [
        ("", "", None),
        ("", "90s", 90.0),
        ("1h", "90s", 3600.0),
        ("", "soon", None),
        ("soon", "90s", None),
    ],
)
def test_the_creation_timeout(annotation: str, field: str, seconds: float | None) -> None:
    notes = {names.ANNOTATION_CREATION_TIMEOUT: annotation}
    assert machine({"creationTimeout": field}, annotations=notes).creation_timeout_s == seconds


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ({"kind": "MachineClass", "name": "small"}, "small"),
        ({"kind": "OldClass", "name": "small"}, ""),
        ({"name": "small"}, ""),
        ({}, ""),
    ],
)
def test_only_one_kind_of_class_counts(reference: dict[str, str], name: str) -> None:
    assert machine({"class": reference}).class_name == name


def test_what_nobody_checks_makes_no_trouble() -> None:
    metadata = {"labels": {"a": 1, "b": None}, "annotations": "none"}
    found = machine(
        {"nodeTemplate": {"metadata": metadata}, "nodeConditions": " A, ,B "},
        {"currentStatus": {"phase": "Dancing", "lastUpdateTime": "yesterday"}},
    )

    assert (found.node_labels, found.node_annotations) == ({"a": "1"}, {})
    assert found.unhealthy_conditions == ("A", "B")
    assert (found.phase, found.status.since) == (Phase.FOREIGN, None)


def secret(**data: bytes) -> Secret:
    return Secret(metadata=ObjectMeta(name="s", namespace="default"), data=data)


def test_the_later_secret_counts() -> None:
    given = {
        "metadata": META,
        "secretRef": {"name": "one", "namespace": "default"},
        "credentialsSecretRef": {"name": "two"},
    }
    known = {"one": secret(key=b"1", userData=b"u"), "two": secret(key=b"2")}
    found = codec.machine_class(
        msgspec.convert(given, MachineClass),
        lambda _namespace, name: known[name],
        providers=["acme"],
    )

    assert dict(found.credentials) == {"key": b"2", "userData": b"u"}
    assert (found.user_data, found.faults) == (b"u", ())


def test_a_secret_of_another_namespace_is_refused() -> None:
    given = {"metadata": META, "secretRef": {"name": "one", "namespace": "elsewhere"}}
    found = codec.machine_class(
        msgspec.convert(given, MachineClass),
        lambda _namespace, _name: secret(key=b"1"),
        providers=["acme"],
    )

    assert "has to be in the namespace of the class, default" in found.faults[0]
    assert len(found.credentials) == 0


def test_a_class_is_another_when_what_vms_are_made_of_is() -> None:
    def version(spec: str, key: bytes, **metadata: Any) -> tuple[str, ...]:
        given = {
            "metadata": META | metadata,
            "providerSpec": {"size": spec},
            "secretRef": {"name": "s"},
        }
        made = msgspec.convert(given, MachineClass)
        found = codec.machine_class(
            made, lambda _namespace, _name: secret(key=key), providers=["acme"]
        )
        return found.version

    assert version("a", b"1") == version("a", b"1", resourceVersion="7", finalizers=["x"])
    assert len({version("a", b"1"), version("b", b"1"), version("a", b"2")}) == 3


def test_a_secret_shows_nothing_it_holds() -> None:
    assert repr(secret(key=b"hunter2")) == "Secret(default/s: key)"
