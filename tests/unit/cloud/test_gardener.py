"""Adapter for drivers with Gardener's interface: requests, responses and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from ccm.cloud import (
    Credentials,
    GardenerRequest,
    GetVolumeIDsRequest,
    Identity,
    ListMachinesRequest,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    MigrationRequest,
    errors,
    from_gardener,
)
from ccm.cloud.machines import find_record, partial_info

WHO = Identity(cluster="c1", pool="workers", name="m-1", uid="u-1")
SECRET = Credentials({"token": b"secret"})


def asking(**fields: Any) -> MachineRequest:
    given = {"user_data": b"#!", "provider_spec": {"size": "big"}, **fields}
    return MachineRequest(identity=WHO, credentials=SECRET, **given)


STARTED = asking(last_known_state="step 2", creation_started=True)


class OriginError(Exception):
    def __init__(self, text: str, **fields: Any) -> None:
        super().__init__(text)
        vars(self).update(fields)


class Origin:
    """Driver with Gardener's interface, partly synchronous; VMs are identified by name only."""

    def __init__(self) -> None:
        self.vms: dict[str, str] = {}
        self.asked: list[tuple[str, GardenerRequest]] = []
        self.threads: set[int] = set()

    def create_machine(self, req: GardenerRequest) -> dict[str, Any]:
        assert req.machine is not None
        self.asked.append(("create", req))
        self.threads.add(threading.get_ident())
        self.vms.setdefault(req.machine.metadata.name, f"acme://{len(self.vms)}")
        return self._shown(req)

    async def get_machine_status(self, req: GardenerRequest) -> Any:
        assert req.machine is not None
        self.asked.append(("status", req))
        if req.machine.metadata.name not in self.vms:
            raise OriginError("no such VM", code=5)
        return SimpleNamespace(**self._shown(req))

    def delete_machine(self, req: GardenerRequest) -> None:
        assert req.machine is not None
        self.asked.append(("delete", req))
        self.vms.pop(req.machine.metadata.name, None)

    async def list_machines(self, req: GardenerRequest) -> dict[str, str]:
        assert req.machine is None
        return {provider_id: name for name, provider_id in self.vms.items()}

    def get_volume_ids(self, req: Any) -> dict[str, Any]:
        return {"volume_ids": [spec["csi"]["volumeHandle"] for spec in req.pv_specs]}

    def _shown(self, req: GardenerRequest) -> dict[str, Any]:
        assert req.machine is not None
        name = req.machine.metadata.name
        return {
            "provider_id": self.vms[name],
            "node_name": name,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "last_known_state": "made",
        }


async def test_vm_of_an_unanswered_creation_is_found_by_name() -> None:
    origin = Origin()
    driver = from_gardener(origin)
    await driver.create_machine(STARTED)

    assert (await driver.get_machine_status(STARTED)).provider_id == "acme://0"
    assert (await driver.create_machine(STARTED)).provider_id == "acme://0"
    await driver.delete_machine(STARTED)
    assert origin.vms == {}


async def test_vm_of_the_same_name_is_ignored_without_a_recorded_creation() -> None:
    """A VM with that name belongs to another owner; the driver is not even called."""
    origin = Origin()
    origin.vms["m-1"] = "acme://theirs"
    driver, req = from_gardener(origin), asking(last_known_state="step 1")

    with pytest.raises(errors.FailedPrecondition):
        await driver.create_machine(req)
    with pytest.raises(errors.NotFound):
        await driver.get_machine_status(req)
    await driver.delete_machine(req)

    assert (origin.vms, origin.asked) == ({"m-1": "acme://theirs"}, [])


async def test_volume_ids_are_returned() -> None:
    specs = [{"csi": {"volumeHandle": "v-1"}}]

    found = await from_gardener(Origin()).get_volume_ids(GetVolumeIDsRequest(pv_specs=specs))

    assert found == ["v-1"]


async def test_listing_of_a_wrong_type_is_an_internal_error() -> None:
    broken: Any = SimpleNamespace(list_machines=lambda _: ["m-1"])

    with pytest.raises(errors.Internal, match="returned list, not a mapping"):
        await from_gardener(broken).list_machines(
            ListMachinesRequest(cluster="c1", pool="p", provider_spec={}, credentials=SECRET)
        )


async def test_migration_is_delegated_to_the_driver() -> None:
    asked = MigrationRequest(provider_specific_machine_class={}, machine_class={}, class_spec={})

    def migrate(req: MigrationRequest) -> None:
        req.machine_class["provider"] = "acme"

    driver = from_gardener(SimpleNamespace(generate_machine_class_for_migration=migrate))
    await driver.generate_machine_class_for_migration(asked)

    assert asked.machine_class == {"provider": "acme"}


class Code(Enum):
    QUOTA = 8


FULL = errors.ResourceExhausted
IN_TEXT = "machine codes error: code = [Unavailable] message = [busy]"
ANSWERED = {"provider_id": "a://1", "node_name": "m-1"}


@pytest.mark.parametrize(
    ("error", "kind", "text", "state"),
    [
        (OriginError("full", code=8), FULL, "full", None),
        (OriginError("full", code="ResourceExhausted"), FULL, "full", None),
        (OriginError("full", code=Code.QUOTA), FULL, "full", None),
        (OriginError(IN_TEXT), errors.Unavailable, "busy", None),
        (OriginError("x", code=14, last_known_state="nic"), errors.Unavailable, "x", "nic"),
        (OriginError("x", code=17, response=ANSWERED), errors.Uninitialized, "x", None),
        (OriginError("odd", code=4711), errors.Internal, "OriginError: odd", None),
        (errors.Aborted("ours"), errors.Aborted, "ours", None),
        (ValueError("x"), errors.Internal, "ValueError: x", None),
    ],
    ids=repr,
)
async def test_errors_of_gardener_drivers_are_translated(
    error: Exception, kind: type[errors.CloudError], text: str, state: str | None
) -> None:
    def fail(_: object) -> None:
        raise error

    with pytest.raises(errors.CloudError) as raised:
        await from_gardener(SimpleNamespace(create_machine=fail)).create_machine(STARTED)

    assert (type(raised.value), str(raised.value)) == (kind, text)
    assert partial_info(raised.value).last_known_state == state
    assert (partial_info(raised.value).provider_id == "a://1") == (kind is errors.Uninitialized)


@pytest.mark.parametrize("wrap", [lambda found: found, lambda found: {"machine_list": found}])
async def test_listed_vm_without_owner_labels_matches_no_machine(
    wrap: Callable[[Any], Any],
) -> None:
    listed: Any = SimpleNamespace(list_machines=lambda _: wrap({"acme://0": "m-1"}))

    records = await from_gardener(listed).list_machines(
        ListMachinesRequest(cluster="c1", pool="workers", provider_spec={}, credentials=SECRET)
    )

    marks = Identity(cluster="", pool="workers", name="m-1", uid="")
    assert records == [MachineRecord(identity=marks, info=MachineInfo(provider_id="acme://0"))]
    assert find_record(records, WHO) is None
