"""Custom resources over HTTP: from the definition to its objects' last part."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.sandbox.apiserver import errors, extensions, journal, store
from tests.unit.sandbox.apiserver.client import Client, serving

DEFINITION: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[3] / "machines.yaml").read_text()
)
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MACHINES = "/apis/example.com/v1/namespaces/default/machines"
STRATEGIC = "application/strategic-merge-patch+json"


def _machine(name: str = "m", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"class": "small", **spec}}


async def machine(ask: Client, code: int = 201, **spec: Any) -> Any:
    return await ask("POST", MACHINES, _machine(**spec), code)


@contextlib.asynccontextmanager
async def defined() -> AsyncIterator[Client]:
    async with serving() as ask:
        await ask("POST", DEFINITIONS, DEFINITION, 201)
        yield ask


async def test_a_definition_is_established_and_its_resource_found() -> None:
    async with defined() as ask:
        conditions = (await ask("GET", f"{DEFINITIONS}/machines.example.com"))["status"][
            "conditions"
        ]
        listed = await ask("GET", "/apis/example.com/v1")
        groups = [one["name"] for one in (await ask("GET", "/apis"))["groups"]]
        document = await ask("GET", "/openapi/v3/apis/example.com/v1")

        assert {one["type"]: one["status"] for one in conditions}["Established"] == "True"
        assert [one["name"] for one in listed["resources"]] == [
            *("machines", "machines/status", "machines/scale"),
        ]
        assert listed["resources"][0]["shortNames"] == ["mc"]
        assert "example.com" in groups
        assert "example.com.Machine" in document["components"]["schemas"]


async def test_objects_are_pruned_and_completed() -> None:
    async with defined() as ask:
        made = await machine(ask, odd=1, raw={"any": [1]}, disks=[{}], note=None, tags={"a": "b"})

        assert made["spec"] == {
            "class": "small",
            "raw": {"any": [1]},
            "disks": [{"size": 10}],
            "note": None,
            "tags": {"a": "b"},
            "replicas": 1,
            "policy": "Delete",
        }
        assert made["metadata"]["generation"] == 1
        refused = await ask("POST", f"{MACHINES}?fieldValidation=Strict", _machine("n", odd=1), 400)
        assert 'unknown field "spec.odd"' in refused["message"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"class": "x"}, "spec.class"),
        ({"class": "A1"}, "spec.class"),
        ({"class": None}, "spec.class"),
        ({"replicas": -1}, "spec.replicas"),
        ({"policy": "Lose"}, "spec.policy"),
        ({"disks": [{}, {}, {}]}, "spec.disks"),
    ],
)
async def test_what_the_schema_forbids_is_refused(spec: dict[str, Any], field: str) -> None:
    async with defined() as ask:
        refused = await machine(ask, 422, **spec)

        assert [cause["field"] for cause in refused["details"]["causes"]] == [field]


@pytest.mark.parametrize("spec", [{"replicas": "1"}, {"tags": []}, {"paused": 1}, {"limit": {}}])
async def test_a_wrong_type_is_refused_with_its_field(spec: dict[str, Any]) -> None:
    async with defined() as ask:
        refused = await machine(ask, 400, **spec)

        assert f"spec.{next(iter(spec))}: must be" in refused["message"]


async def test_the_status_is_a_part_of_its_own() -> None:
    async with defined() as ask:
        await machine(ask)
        one = f"{MACHINES}/m"

        plain = await ask("PATCH", one, {"status": {"phase": "Lost"}, "spec": {"replicas": 2}})
        status = await ask("PATCH", f"{one}/status", {"status": {"phase": "Running"}, "spec": {}})

        assert "status" not in plain
        assert (plain["metadata"]["generation"], status["metadata"]["generation"]) == (2, 2)
        assert (status["status"], status["spec"]["replicas"]) == ({"phase": "Running"}, 2)


async def test_the_scale_reads_and_writes_replicas() -> None:
    async with defined() as ask:
        await machine(ask)
        one = f"{MACHINES}/m"
        await ask("PATCH", f"{one}/status", {"status": {"replicas": 1, "selector": "a=b"}})

        scaled = await ask("PATCH", f"{one}/scale", {"spec": {"replicas": 3}})
        again = await ask("PUT", f"{one}/scale", {**scaled, "spec": {"replicas": 4}})
        stale = await ask("PUT", f"{one}/scale", scaled, 409)

        assert (scaled["kind"], scaled["apiVersion"]) == ("Scale", "autoscaling/v1")
        assert (scaled["spec"], again["spec"]) == ({"replicas": 3}, {"replicas": 4})
        assert again["status"] == {"replicas": 1, "selector": "a=b"}
        assert stale["reason"] == "Conflict"
        assert (await ask("GET", one))["spec"]["replicas"] == 4
        await ask("PATCH", f"{one}/scale", {"spec": {"replicas": -1}}, 422)


async def test_custom_objects_take_no_strategic_patch() -> None:
    async with defined() as ask:
        await machine(ask)

        await ask("PATCH", f"{MACHINES}/m", {}, 415, Content_Type=STRATEGIC)
        applied = await ask(
            "PATCH",
            f"{MACHINES}/m?fieldManager=me",
            {"kind": "Machine", "apiVersion": "example.com/v1", "spec": {"replicas": 7}},
            Content_Type="application/apply-patch+yaml",
        )

        assert applied["spec"]["replicas"] == 7


async def test_tables_and_selectors_are_the_definitions() -> None:
    async with defined() as ask:
        await machine(ask, disks=[{"size": 5}])
        await ask("POST", MACHINES, _machine("other", **{"class": "large"}), 201)

        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        table = await ask("GET", f"{MACHINES}?fieldSelector=spec.class=small", Accept=accept)

        heads = [(one["name"], one["priority"]) for one in table["columnDefinitions"]]
        assert heads == [("Name", 0), ("Class", 0), ("Phase", 0), ("Disks", 0), ("Age", 1)]
        (row,) = table["rows"]
        assert row["cells"][:4] == ["m", "small", "", 5]
        assert row["cells"][4].endswith("s")


async def test_a_definition_goes_when_its_last_object_has_gone() -> None:
    async with defined() as ask:
        await machine(ask)
        await ask("PATCH", f"{MACHINES}/m", {"metadata": {"finalizers": ["example.com/x"]}})

        await ask("DELETE", f"{DEFINITIONS}/machines.example.com")
        assert "deletionTimestamp" in (await ask("GET", f"{MACHINES}/m"))["metadata"]
        await ask("PATCH", f"{MACHINES}/m", {"metadata": {"finalizers": None}})

        await ask("GET", f"{DEFINITIONS}/machines.example.com", code=404)
        assert (await ask("GET", "/apis/policy/v1"))["resources"]
        assert "example.com" not in str(await ask("GET", "/apis"))


async def test_a_definition_can_change() -> None:
    async with defined() as ask:
        await machine(ask)
        changed = await ask("GET", f"{DEFINITIONS}/machines.example.com")
        version = changed["spec"]["versions"][0]
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["new"] = {
            "type": "string"
        }
        await ask("PUT", f"{DEFINITIONS}/machines.example.com", changed)

        assert (await ask("PATCH", f"{MACHINES}/m", {"spec": {"new": "x"}}))["spec"]["new"] == "x"


async def test_a_restarted_server_knows_its_custom_objects(tmp_path: Path) -> None:
    def opened(size: int) -> store.Store:
        return store.Store(journal=journal.Journal(tmp_path / "log", compact_bytes=size))

    async with serving(opened(1)) as ask:
        await ask("POST", DEFINITIONS, DEFINITION, 201)
        made = await machine(ask)

    async with serving(opened(1)) as ask:
        assert await ask("GET", f"{MACHINES}/m") == made


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "name"), "other.example.com"),
        (("spec", "group"), "example"),
        (("spec", "versions"), []),
        (("spec", "names"), {"plural": "machines"}),
        (("spec", "versions", 0, "schema", "openAPIV3Schema"), {"type": "string"}),
        (("spec", "versions", 0, "schema", "openAPIV3Schema", "properties", "spec"), {}),
        (("spec", "versions", 0, "additionalPrinterColumns", 0, "jsonPath"), "spec"),
    ],
)
def test_a_wrong_definition_is_refused(path: tuple[Any, ...], value: Any) -> None:
    broken: Any = copy.deepcopy(DEFINITION)
    *steps, last = path
    place = broken
    for step in steps:
        place = place[step]
    place[last] = value

    try:
        faults = [cause.field for cause in extensions.judge(broken, None)]
    except errors.ApiError as error:
        faults = [cause["field"] for cause in error.details["causes"]]
    assert any(field.startswith(path[0]) for field in faults)
