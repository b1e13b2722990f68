"""CRDs: up to date, structural, and accepted by API servers together with samples."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from ccm.gardener import codec, crds
from ccm.gardener.names import GROUP, KEPT_BY_HELM, VERSION
from ccm.kube.resources import ResourceKind
from ccm.testing.apiserver import kinds as served
from tests import servers
from tests.generated import crds as generated
from tests.waiting import DEADLINE_S

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OBJECTS = f"/apis/{GROUP}/{VERSION}/namespaces/default"
MERGE = {"Content-Type": "application/merge-patch+json"}
KINDS = [one.kind for one in crds.DEFINITIONS]


def parsed(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


@pytest.mark.parametrize("file", [generated.FILE, generated.KUBERMATIC_FILE])
def test_helm_keeps_the_crds_of_the_chart(file: Path) -> None:
    _, _, text = (generated.CHART_FOLDER / file.name).read_text().partition("\n")
    found = [one for one in yaml.safe_load_all(text.replace("{{- end }}", "")) if one]

    for one, plain in zip(found, parsed(file), strict=True):
        metadata = plain["metadata"]
        kept = {**metadata.get("annotations", {}), **KEPT_BY_HELM}
        assert one == {**plain, "metadata": {**metadata, "annotations": kept}}


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of a schema, by its path."""
    for name, one in schema.get("properties", {}).items():
        yield f"{path}.{name}", one
        yield from fields(one.get("items", one), f"{path}.{name}")


_AGE = ("Age", ".metadata.creationTimestamp")
COLUMNS = {
    "machines": [
        ("Status", ".status.currentStatus.phase"),
        _AGE,
        ("Node", ".metadata.labels.node"),
        ("ProviderID", ".spec.providerID"),
    ],
    "machinesets": [
        ("Desired", ".spec.replicas"),
        ("Current", ".status.replicas"),
        ("Ready", ".status.readyReplicas"),
        _AGE,
    ],
    "machinedeployments": [
        ("Ready", ".status.readyReplicas"),
        ("Desired", ".spec.replicas"),
        ("Up-to-date", ".status.updatedReplicas"),
        ("Available", ".status.availableReplicas"),
        _AGE,
    ],
    "machineclasses": [],
}
"""Of the reference, which marks only `ProviderID` as wide."""


def test_columns_of_the_reference_come_first_and_ours_need_wide_output() -> None:
    for one in parsed(generated.FILE):
        (version,) = one["spec"]["versions"]
        columns = version.get("additionalPrinterColumns", [])
        theirs = COLUMNS[one["spec"]["names"]["plural"]]
        shown = [(column["name"], column["jsonPath"]) for column in columns]
        wide = {column["name"] for column in columns if column.get("priority")}

        assert shown[: len(theirs)] == theirs
        assert wide == {name for name, _ in shown[len(theirs) :]} | (
            {"ProviderID"} & {name for name, _ in theirs}
        )


@pytest.mark.parametrize("file", [generated.FILE, generated.KUBERMATIC_FILE])
def test_every_column_shows_a_field_that_the_schema_has(file: Path) -> None:
    for one in parsed(file):
        (version,) = one["spec"]["versions"]
        for column in version.get("additionalPrinterColumns", ()):
            schema = version["schema"]["openAPIV3Schema"]
            for name in column["jsonPath"].replace("[0]", "").strip(".").split("."):
                if name == "metadata":
                    break  # common to all kinds
                inner = schema.get("properties", {}).get(name)
                if inner is None:
                    # An object without a schema, such as the settings of a provider.
                    assert "properties" not in schema, column
                    assert schema["x-kubernetes-preserve-unknown-fields"], column
                    break
                schema = inner.get("items", inner)


EVERY = {
    f"{one['spec']['names']['kind']}{path}": field
    for one in parsed(generated.FILE)
    for path, field in fields(one["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
}


def test_every_crd_field_has_a_description() -> None:
    plain = {"apiVersion", "kind", "metadata"}
    told = {path: field.get("description", "") for path, field in EVERY.items()}

    assert [
        path
        for path, text in told.items()
        if path.partition(".")[2] not in plain
        and not any(each in path for each in (".conditions.", ".addresses."))
        and (len(text.split()) < 2 or text.startswith("Of "))
    ] == []


async def established(session: aiohttp.ClientSession) -> None:
    """Wait until the API server serves all kinds; a real one needs a moment after the CRD."""
    async with asyncio.timeout(DEADLINE_S):
        while not all([await is_served(session, kind) for kind in KINDS]):
            await asyncio.sleep(0.05)


async def is_served(session: aiohttp.ClientSession, kind: ResourceKind[Any]) -> bool:
    async with session.get(f"{OBJECTS}/{kind.plural}") as response:
        return response.status == 200


async def told(session: aiohttp.ClientSession, verb: str, path: str, body: Any = None) -> Any:
    headers = MERGE if verb == "PATCH" else {}
    async with session.request(verb, path, json=body, headers=headers) as response:
        text = await response.text()
        assert response.status in (200, 201), text
        return msgspec.json.decode(text)


def plural(one: dict[str, Any]) -> str:
    return next(kind.plural for kind in KINDS if kind.kind == one["kind"])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_crd_schema_keeps_every_field_of_its_type(kind: ResourceKind[Any]) -> None:
    """An API server drops fields that the CRD schema lacks."""
    definition = next(one for one in crds.DEFINITIONS if one.kind is kind)
    shape = served.kind_of_definition(dict(definition.to_manifest())).shape
    fields = msgspec.structs.fields(kind.document or kind.type)
    assert set(shape.fields) >= {field.encode_name for field in fields}


@pytest.mark.both_servers
async def test_api_server_accepts_crds_and_samples(api_server: servers.ApiServer) -> None:
    async with servers.connect(api_server) as session:
        for one in parsed(generated.FILE):
            await told(session, "POST", DEFINITIONS, one)
        try:
            await established(session)
            for one in parsed(generated.FILE.parent / "samples" / "machines.yaml"):
                if one["kind"] != "Secret":
                    made = await told(session, "POST", f"{OBJECTS}/{plural(one)}", one)
                    assert contains(made, one), "the definition drops what the sample says"
            status = {"status": {"currentStatus": {"phase": "Pending", "lastUpdateTime": None}}}
            path = f"{OBJECTS}/machines/worker-0"
            await told(session, "PATCH", f"{path}/status", status)
            read = await told(session, "GET", path)
            scale = await told(session, "GET", f"{OBJECTS}/machinedeployments/workers/scale")
        finally:
            for definition in parsed(generated.FILE):
                name = definition["metadata"]["name"]
                async with session.delete(f"{DEFINITIONS}/{name}") as response:
                    assert response.status == 200

    machine = msgspec.convert(read, codec.MACHINES.document)
    assert machine.status.current_status.phase == "Pending"
    assert machine.spec.node_template.metadata == {"labels": {"example.com/pool": "workers"}}
    assert scale["spec"] == {"replicas": 3}


def contains(whole: Any, part: Any) -> bool:
    """Return whether `whole` contains every field of `part`."""
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    return bool(whole == part)
