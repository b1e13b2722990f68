"""The definitions of the objects: up to date, structural, and taken by API servers with samples."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from ccm.gardener import crds, kinds
from ccm.gardener.names import GROUP, VERSION
from ccm.kube.resources import Kind
from ccm.sandbox.apiserver import extensions
from tests import servers
from tests.waiting import DEADLINE_S

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OBJECTS = f"/apis/{GROUP}/{VERSION}/namespaces/default"
SAMPLES = crds.MANIFESTS / "samples" / "machines.yaml"
MERGE = {"Content-Type": "application/merge-patch+json"}
KINDS = [one.kind for one in crds.DEFINITIONS]


def parsed(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


@pytest.mark.parametrize(
    ("file", "text"),
    [(crds.FILE, crds.written()), (crds.CHART_FILE, crds.in_the_chart())],
    ids=["manifests", "chart"],
)
def test_the_definitions_are_those_of_the_types(file: Path, text: str) -> None:
    assert file.read_text() == text, "run python -m ccm.gardener.crds"


def test_names_columns_and_sub_resources_are_those_of_the_origin() -> None:
    told = {
        one["spec"]["names"]["kind"]: (
            one["metadata"]["name"],
            one["spec"]["names"]["shortNames"],
            sorted(one["spec"]["versions"][0].get("subresources", ())),
            [
                each["name"]
                for each in one["spec"]["versions"][0].get("additionalPrinterColumns", ())
            ],
        )
        for one in parsed(crds.FILE)
    }

    assert told == {
        "Machine": (
            "machines.machine.sapcloud.io",
            ["mc"],
            ["status"],
            ["Status", "Age", "Node", "ProviderID"],
        ),
        "MachineSet": (
            "machinesets.machine.sapcloud.io",
            ["mcs"],
            ["scale", "status"],
            ["Desired", "Current", "Ready", "Age"],
        ),
        "MachineDeployment": (
            "machinedeployments.machine.sapcloud.io",
            ["mcd"],
            ["scale", "status"],
            ["Ready", "Desired", "Up-to-date", "Available", "Age"],
        ),
        "MachineClass": ("machineclasses.machine.sapcloud.io", ["mcc"], [], []),
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_field_of_a_type_is_kept_by_its_definition(kind: Kind[Any]) -> None:
    """What a definition does not name, an API server drops without a word."""
    definition = next(one for one in crds.DEFINITIONS if one.kind is kind)
    shape = extensions.kind_of(dict(crds.manifest(definition))).shape

    assert set(shape.fields) >= {field.encode_name for field in msgspec.structs.fields(kind.type)}


@pytest.mark.both_servers
async def test_an_api_server_takes_definitions_and_samples(api_server: servers.ApiServer) -> None:
    async with servers.connect(api_server) as session:
        for one in parsed(crds.FILE):
            await told(session, "POST", DEFINITIONS, one)
        try:
            await established(session)
            for one in parsed(SAMPLES):
                if one["kind"] != "Secret":
                    made = await told(session, "POST", f"{OBJECTS}/{plural(one)}", one)
                    assert contains(made, one), "the definition drops what the sample says"
            status = {"status": {"currentStatus": {"phase": "Pending", "lastUpdateTime": None}}}
            path = f"{OBJECTS}/machines/worker-0"
            await told(session, "PATCH", f"{path}/status", status)
            read = await told(session, "GET", path)
            scale = await told(session, "GET", f"{OBJECTS}/machinedeployments/workers/scale")
        finally:
            for definition in parsed(crds.FILE):
                name = definition["metadata"]["name"]
                async with session.delete(f"{DEFINITIONS}/{name}") as response:
                    assert response.status == 200

    machine = msgspec.convert(read, kinds.MACHINES.type)
    assert machine.status.current_status.phase == "Pending"
    assert machine.spec.node_template.metadata == {"labels": {"example.com/pool": "workers"}}
    assert scale["spec"] == {"replicas": 3}


async def established(session: aiohttp.ClientSession) -> None:
    """A real API server serves a kind a moment after its definition was made."""
    async with asyncio.timeout(DEADLINE_S):
        while not all([await is_served(session, kind) for kind in KINDS]):
            await asyncio.sleep(0.05)


async def is_served(session: aiohttp.ClientSession, kind: Kind[Any]) -> bool:
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


def contains(whole: Any, part: Any) -> bool:
    """Whether all that one object says is in the other too."""
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    return bool(whole == part)
