"""The contract of machine drivers, as a base class for tests.

Write a `Harness` (see `ccm.testing.contract`) with the hooks about machines, and a subclass with a
`harness` fixture. A package with nothing but a machine driver needs no other class. A package
with more also subclasses `ProviderContract`, with the same harness.

```python
class TestAcmeMachines(MachineContract):
    @pytest_asyncio.fixture
    async def harness(self):
        async with FakeAcme() as fake:
            yield AcmeHarness(fake)
```

Like the daemon, every case stores `last_known_state` from the driver's answers and errors, and
repeats calls that raise `RetryAfter`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from ccm.base import redact
from ccm.cloud import errors
from ccm.cloud.helpers import is_same_instance
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import GetVolumeIDsRequest, MachineMetrics, SpecValidation, UIDMigration
from ccm.testing import machine_probes, probes
from ccm.testing.builders import node as build_node
from ccm.testing.harness import PROMISED, Harness, Made
from ccm.testing.machine_probes import POOL, Machines
from ccm.testing.probes import (
    CANCEL_AFTER,
    InstanceLookups,
    OpeningCases,
    cancel_after,
    outcome,
    retry_within_patience,
    same,
)

WRITES = 4
"""The cases drop the answer of each write of a creation or deletion, up to this number."""


REFUSED = (*PROMISED["denied"], errors.InvalidArgument)
"""Errors allowed for wrong credentials."""


@pytest.mark.asyncio
class MachineFaultCases:
    """Cases about faults, crashes and credentials. `MachineContract` provides the fixtures."""

    @pytest.mark.parametrize("fault", sorted(PROMISED))
    async def test_machine_fault_arrives_as_promised(
        self,
        machines: Machines,
        harness: Harness,
        fault: str,
        caplog: pytest.LogCaptureFixture,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Every call during a fault raises a promised error, without secrets in error or log.

        Afterwards the status is available.
        """
        how = probes.fault_argument(harness, fault)
        caplog.set_level(logging.DEBUG)
        identity, new = machines.identity(), machines.identity()
        vm = await machines.create(identity)
        results: list[object] = []

        await harness.fail(how)
        for name, ask in machine_probes.cloud_calls(machines, identity, vm, new).items():
            result = await probes.outcome_within_patience(harness, name, ask)
            probes.check_error(result, PROMISED[fault], f"{name} during {fault}")
            results.append(result)
        await harness.heal()

        again = await retry_within_patience(
            harness, partial(machines.status, identity, vm.provider_id)
        )
        same(again.provider_id, vm.provider_id, "status after the fault")
        printed = capsys.readouterr()
        machine_probes.check_no_secrets(
            machines,
            f"{machine_probes.error_texts(results)} {caplog.text} {printed.out} {printed.err}",
        )

    @pytest.mark.parametrize("number", range(1, WRITES + 1))
    @pytest.mark.parametrize("what", ["create", "delete"])
    async def test_a_lost_answer_is_mended(
        self, machines: Machines, harness: Harness, what: str, number: int
    ) -> None:
        """Repeating a creation or deletion whose answer was lost completes it.

        One VM exists after the creation, none after the deletion.
        """
        identity = machines.identity()
        provider_id = ""
        if what == "delete":
            provider_id = (await machines.create(identity)).provider_id
        beside = len(await harness.beside_vms())

        async def work() -> None:
            if what == "create":
                await machines.create(identity)
            else:
                await machines.delete(identity, provider_id)

        await harness.lose_answer(number)
        await outcome(work)
        await harness.heal()
        await retry_within_patience(harness, work)

        same(len(await machines.vm_provider_ids()), int(what == "create"), "VMs in the cloud")
        await machines.delete(identity)
        left = len(await harness.beside_vms())
        assert left == 0, f"{left} resources of VMs left; {beside} existed before the lost answer"

    @pytest.mark.parametrize("number", range(1, WRITES + 1))
    async def test_a_creation_that_failed_can_be_deleted(
        self, machines: Machines, harness: Harness, number: int
    ) -> None:
        """After a failed creation, a deletion by identity alone removes all that was created."""
        identity = machines.identity()
        await harness.lose_answer(number)
        await outcome(partial(machines.create_once, identity))
        await harness.heal()

        await retry_within_patience(harness, partial(machines.delete, identity))

        same(await machines.vm_provider_ids(), [], "VMs in the cloud")
        same(list(await harness.beside_vms()), [], "resources of VMs left")

    async def test_a_cancelled_creation_is_completed(
        self, machines: Machines, harness: Harness
    ) -> None:
        """A creation can be cancelled at any await; the next creation ends with one VM."""
        for steps in CANCEL_AFTER:
            identity = machines.identity()
            with probes.watch_tasks(harness) as started:
                await cancel_after(partial(machines.create, identity), steps=steps)
                await started.check_ended("after a cancelled creation")

            vm = await machines.create(identity)
            same(
                await machines.vm_provider_ids(),
                [vm.provider_id],
                f"VMs after a cancellation at step {steps}",
            )
            await machines.delete(identity)
            same(await machines.vm_provider_ids(), [], "VMs after the deletion")
            same(list(await harness.beside_vms()), [], "resources of VMs left")

    async def test_a_creation_cut_short_can_be_deleted(
        self, machines: Machines, harness: Harness
    ) -> None:
        """A deletion by identity alone removes all remains of a cancelled creation."""
        for steps in CANCEL_AFTER:
            identity = machines.identity()
            await cancel_after(partial(machines.create, identity), steps=steps)

            await machines.delete(identity)

            same(await machines.vm_provider_ids(), [], f"VMs after a cancellation at step {steps}")
            same(list(await harness.beside_vms()), [], "resources of VMs left")

    async def test_a_bad_spec_stops_a_creation_alone(
        self, machines: Machines, harness: Harness
    ) -> None:
        """With a bad spec, only creation fails: existing VMs are found, listed and deleted."""
        bad = harness.bad_machine_spec()
        identity, new = machines.identity(), machines.identity()
        vm = await machines.create(identity)

        created = await outcome(partial(machines.create_once, new, provider_spec=bad))
        listed = await machines.list_vms(provider_spec=bad)
        status = await machines.status(identity, vm.provider_id, provider_spec=bad)
        await machines.delete(identity, vm.provider_id, provider_spec=bad)

        wanted = (errors.InvalidArgument, errors.OutOfRange)
        probes.check_error(created, wanted, "creation with an invalid spec")
        same([record.info.provider_id for record in listed], [vm.provider_id], "VMs listed")
        same(status.provider_id, vm.provider_id, "status with an invalid spec")
        same(await machines.vm_provider_ids(), [], "VMs in the cloud")

    async def test_each_request_has_its_own_credentials(self, machines: Machines) -> None:
        """Credentials of one request are never used for another request.

        The case replaces the values of all keys whose names indicate a secret, such as `token`;
        the driver must refuse these credentials. If there is no such key, it replaces the value of
        one key at a time; the driver must refuse at least one of these attempts.
        """
        identity = machines.identity()
        vm = await machines.create(identity)
        good = machines.harness.machine_credentials()
        if not good:
            pytest.skip("the driver needs no credentials")
        secret = [key for key in good if redact.is_secret_name(key)]

        for keys in [secret] if secret else [[key] for key in good]:
            wrong = {key: b"not-the-" + good[key] for key in keys}
            machines.credentials = {**good, **wrong}
            refused = await outcome(machines.list_vms)
            if isinstance(refused, probes.Raised) and isinstance(refused.error, REFUSED):
                break
        machines.credentials = None

        probes.check_error(refused, REFUSED, f"a listing with invalid {', '.join(wrong)}")
        same(
            [record.info.provider_id for record in await machines.list_vms()],
            [vm.provider_id],
            "VMs",
        )

    async def test_rotated_machine_credentials(self, machines: Machines, harness: Harness) -> None:
        """Old credentials give the right answer or are rejected; new credentials work at once."""
        identity = machines.identity()
        vm = await machines.create(identity)
        old = dict(harness.machine_credentials())

        await harness.rotate()

        machines.credentials = old
        status = await probes.outcome_within_patience(
            harness, "status", partial(machines.status, identity, vm.provider_id)
        )
        if isinstance(status, probes.Raised):
            probes.check_error(status, PROMISED["denied"], "status with old credentials")
        machines.credentials = None
        status = await machines.status(identity, vm.provider_id)
        same(status.provider_id, vm.provider_id, "status with new credentials")

    async def test_it_opens_without_a_cloud_config(self, harness: Harness) -> None:
        """A driver opens without a cloud config; closing a second driver does not affect it."""
        async with harness.open_machines() as first:
            async with harness.open_machines():
                pass
            machines = machine_probes.machines_of(first, harness)
            vm = await machines.create(machines.identity())
            same(await machines.vm_provider_ids(), [vm.provider_id], "VMs in the cloud")

    async def test_closing_ends_every_client(self, harness: Harness) -> None:
        """Closing the provider also closes the clients that it opened for MachineClass Secrets."""

        async def ask_and_close() -> None:
            async with probes.in_one_task(harness.open()) as cloud:
                await machine_probes.machines_of(cloud, harness).list_vms()

        left = await probes.unclosed_resources(ask_and_close)

        assert not left, f"resources left open by the closed driver: {left}"


STEP_S = 1.0
"""Maximum seconds for a creation and one deletion call: no call waits for the cloud's work."""

FOREIGN_VOLUMES: Sequence[Mapping[str, Any]] = (
    {"csi": {"driver": "csi.of-some-other-cloud", "volumeHandle": "v-1"}},
    {"hostPath": {"path": "/mnt"}},
    {},
)


@pytest.mark.asyncio
class MachineContract(OpeningCases, MachineFaultCases):
    """Base class for the tests of a machine driver.

    Name the subclass `Test...` and give it a fixture `harness`.
    """

    @pytest_asyncio.fixture
    async def cloud(self, harness: Harness) -> AsyncIterator[Cloud]:
        """Open the provider."""
        async with probes.in_one_task(harness.open()) as cloud:
            yield cloud

    @pytest.fixture
    def machines(self, cloud: Cloud, harness: Harness) -> Machines:
        """Return a caller of the driver for the machines of our cluster."""
        return machine_probes.machines_of(cloud, harness)

    # --- one VM ---------------------------------------------------------------------------------

    async def test_create_twice_is_one_vm(self, machines: Machines) -> None:
        """A repeated creation returns the existing VM; another machine gets another VM."""
        identity, other = machines.identity(), machines.identity()

        first, again = await machines.create(identity), await machines.create(identity)
        different = await machines.create(other)

        same(again.provider_id, first.provider_id, "provider ID of the second creation")
        same(
            sorted(await machines.vm_provider_ids()),
            sorted([first.provider_id, different.provider_id]),
            "VMs in the cloud",
        )

    async def test_many_machines_at_once_have_a_vm_each(self, machines: Machines) -> None:
        """Concurrent calls about different machines do not disturb each other."""
        identities = [machines.identity() for _ in range(5)]

        vms = await asyncio.gather(*(machines.create(identity) for identity in identities))

        same(
            sorted(await machines.vm_provider_ids()),
            sorted(info.provider_id for info in vms),
            "VMs",
        )

    async def test_a_vm_is_found_when_it_was_made(self, machines: Machines) -> None:
        """The status call raises NotFound before the creation.

        Afterwards it finds the VM by provider ID and by identity.
        """
        identity = machines.identity()
        ask = partial(machines.status, identity)
        probes.check_error(await outcome(ask), (errors.NotFound,), "status before the creation")

        vm = await machines.create(identity)

        for provider_id in (vm.provider_id, ""):
            status = await machines.status(identity, provider_id)
            same(status.provider_id, vm.provider_id, f"provider ID for request {provider_id!r}")
            same(status.node_name, vm.node_name, f"node name for request {provider_id!r}")

    async def test_a_vm_deleted_by_somebody_is_not_found(
        self, machines: Machines, harness: Harness
    ) -> None:
        """For a VM deleted outside the driver, status raises NotFound and deletion succeeds."""
        identity = machines.identity()
        vm = await machines.create(identity)

        await harness.delete(Made(name=vm.node_name, provider_id=vm.provider_id))

        ask = partial(machines.status, identity, vm.provider_id)
        probes.check_error(await outcome(ask), (errors.NotFound,), "status of an absent VM")
        await machines.delete(identity, vm.provider_id)

    @pytest.mark.parametrize("by", ["provider_id", "identity"])
    async def test_a_deleted_vm_is_gone(
        self, machines: Machines, harness: Harness, by: str
    ) -> None:
        """A deletion removes a VM with all its resources, and nothing else; it can be repeated."""
        identity, other = machines.identity(), machines.identity()
        vm, kept = await machines.create(identity), await machines.create(other)
        beside = len(await harness.beside_vms())
        provider_id = vm.provider_id if by == "provider_id" else ""

        await machines.delete(identity, provider_id)
        await machines.delete(identity, provider_id)

        same(await machines.vm_provider_ids(), [kept.provider_id], "VMs in the cloud")
        same(len(await harness.beside_vms()) * 2, beside, "resources of VMs")
        ask = partial(machines.status, identity, vm.provider_id)
        probes.check_error(await outcome(ask), (errors.NotFound,), "status of a deleted VM")

    async def test_deleting_what_was_never_made_is_done(self, machines: Machines) -> None:
        """Deleting a VM that never existed succeeds and changes nothing."""
        vm = await machines.create(machines.identity())

        await machines.delete(machines.identity())

        same(await machines.vm_provider_ids(), [vm.provider_id], "VMs in the cloud")

    async def test_initialising_is_repeated_without_harm(self, machines: Machines) -> None:
        """Initialising twice does no harm; status and listing show the VM as initialised."""
        identity = machines.identity()
        vm = await machines.create(identity)

        await machines.initialize(identity, vm.provider_id)
        await machines.initialize(identity, vm.provider_id)

        ask = partial(
            machines.driver.get_machine_status, machines.request(identity, vm.provider_id)
        )
        result = await outcome(ask)
        assert not isinstance(result, probes.Raised) or isinstance(
            result.error, errors.Unimplemented
        ), f"status of an initialised VM: {result}"
        listed = [record.initialized for record in await machines.list_vms()]
        same(listed, [True], "initialized in the listing")
        same(await machines.vm_provider_ids(), [vm.provider_id], "VMs in the cloud")

    async def test_nothing_waits_in_a_call(self, machines: Machines, harness: Harness) -> None:
        """A call starts a long operation of the cloud and returns; later calls see its end."""
        await harness.slow_vms(slow=True)
        identity = machines.identity()

        async with asyncio.timeout(STEP_S):
            vm = await machines.create(identity)
            ask = partial(machines.driver.delete_machine, machines.request(identity))
            if not isinstance(await outcome(ask), probes.Raised):
                same(await machines.vm_provider_ids(), [], "VMs after a successful deletion")
        await harness.slow_vms(slow=False)

        await machines.delete(identity, vm.provider_id)
        same(await machines.vm_provider_ids(), [], "VMs in the cloud")

    # --- ownership ------------------------------------------------------------------------------

    @pytest.mark.parametrize("whose", ["another_cluster", "a_twin", "another_machine", "nobody"])
    async def test_a_vm_that_only_has_the_name_is_left_alone(
        self, machines: Machines, whose: str
    ) -> None:
        """A foreign VM with the machine's name is not adopted, deleted or listed as ours.

        The creation raises AlreadyExists instead of creating a second VM of that name.
        """
        if whose == "a_twin":
            probes.skip_if_opted_out(machines.harness, "found_by_uid")
        identity = machines.identity(f"{POOL}-taken")
        theirs = await machine_probes.create_foreign_vm(
            machines, identity.name, whose, uid=identity.uid
        )

        created = await outcome(partial(machines.create, identity))
        status = await outcome(partial(machines.status, identity))
        await machines.delete(identity)

        probes.check_error(created, (errors.AlreadyExists,), "creation with a taken name")
        probes.check_error(
            status, (errors.NotFound,), "get_machine_status for a request without a provider ID"
        )
        same(await machines.vm_provider_ids(), [theirs.provider_id], "VMs in the cloud")
        if whose != "another_machine":
            same(await machines.own_provider_ids(), [], "VMs listed as ours")

    async def test_a_vm_without_a_namespace_is_still_its_machines(
        self, machines: Machines, harness: Harness
    ) -> None:
        """A VM that an older version created without a namespace label is found by cluster and UID.

        In the listing, its identity has an empty namespace.
        """
        probes.skip_if_opted_out(harness, "no_machine_marks", "found_by_uid")
        identity = machines.identity()
        older = replace(identity, namespace="")
        held = await harness.foreign_vm(identity.name, older)

        status, vm = await machines.status(identity), await machines.create(identity)

        same(
            status.provider_id,
            held.provider_id,
            "get_machine_status for a request without a provider ID",
        )
        same(vm.provider_id, held.provider_id, "provider ID of the creation")
        same(
            [record.identity for record in await machines.list_vms()], [older], "identities listed"
        )
        await machines.delete(identity)
        same(await machines.vm_provider_ids(), [], "VMs in the cloud")

    @pytest.mark.parametrize("whose", ["another_cluster", "a_twin", "another_machine", "nobody"])
    async def test_the_provider_id_of_another_vm_is_refused(
        self, machines: Machines, harness: Harness, whose: str
    ) -> None:
        """A provider ID of a foreign VM raises NotOwned.

        Users who may edit Machines can set any provider ID: only the labels or tags of the VM
        show its owner.
        """
        probes.skip_if_opted_out(harness, "no_machine_marks", "found_by_uid")
        identity, driver = machines.identity(), machines.driver
        theirs = await machine_probes.create_foreign_vm(
            machines, f"{POOL}-theirs", whose, uid=identity.uid
        )
        req = machines.request(identity, theirs.provider_id)

        for ask in (driver.get_machine_status, driver.delete_machine):
            await probes.must_raise(
                ask.__name__, partial(ask, req), (errors.NotOwned,), f"for a VM of {whose}"
            )
        initialized = await outcome(partial(driver.initialize_machine, req))
        probes.check_error(
            initialized, (errors.NotOwned, errors.Unimplemented), f"initialising a VM of {whose}"
        )
        same(await machines.vm_provider_ids(), [theirs.provider_id], "VMs in the cloud")

    async def test_the_vm_of_a_restored_machine_is_its_own(
        self, machines: Machines, harness: Harness
    ) -> None:
        """A Machine restored from a backup, with a new UID, still owns the VM with the old UID."""
        probes.skip_if_opted_out(harness, "no_machine_marks", "found_by_uid")
        identity = machines.identity()
        vm = await machines.create(identity)
        restored = replace(identity, uid="uid-of-the-restored")

        status = await machines.status(restored, vm.provider_id)
        await machines.delete(restored, vm.provider_id)

        same(status.provider_id, vm.provider_id, "status by provider ID")
        same(await machines.vm_provider_ids(), [], "VMs in the cloud")

    async def test_a_vm_gets_the_uid_of_a_restored_machine(self, machines: Machines) -> None:
        """After `migrate_uid`, a VM is found and deleted by its new UID only.

        Without a VM of the former UID, nothing happens.
        """
        driver: Any = machines.driver
        if not isinstance(driver, UIDMigration):
            pytest.skip("not offered; implement migrate_uid")
        identity = machines.identity()
        vm = await machines.create(identity)
        restored = replace(identity, uid="uid-of-the-restored")

        await driver.migrate_uid(machines.request(restored), identity.uid)
        await driver.migrate_uid(machines.request(machines.identity()), "uid-of-none")

        same((await machines.status(restored)).provider_id, vm.provider_id, "VM of the new UID")
        former = await outcome(partial(machines.status, identity))
        probes.check_error(former, (errors.NotFound,), "status by the former UID")
        await machines.delete(restored)
        same(await machines.vm_provider_ids(), [], "VMs in the cloud")
        same(list(await machines.harness.beside_vms()), [], "resources of VMs left")

    async def test_with_a_provider_id_that_vm_goes_and_no_other(self, machines: Machines) -> None:
        """For an imported VM, the provider ID alone selects the VM to delete."""
        probes.skip_if_opted_out(machines.harness, "found_by_uid")
        identity = machines.identity()
        vm = await machines.create(identity)
        given = await machine_probes.create_foreign_vm(machines, f"{POOL}-given", "nobody")

        status = await machines.status(identity, given.provider_id, is_imported=True)
        await machines.delete(identity, given.provider_id, is_imported=True)

        same(status.provider_id, given.provider_id, "status by provider ID")
        same(await machines.vm_provider_ids(), [vm.provider_id], "VMs in the cloud")

    @pytest.mark.parametrize("provider_id", ["some-other-cloud://1", "{scheme}://", "://1", "x"])
    async def test_a_foreign_provider_id_is_refused(
        self, machines: Machines, provider_id: str
    ) -> None:
        """A malformed or foreign provider ID raises InvalidArgument.

        If status raised NotFound, the controller would create a second VM. If the deletion
        succeeded, the VM would be lost.
        """
        probes.skip_if_opted_out(machines.harness, "found_by_uid")
        identity = machines.identity()
        vm = await machines.create(identity)
        odd = provider_id.format(scheme=vm.provider_id.partition("://")[0])
        req = machines.request(identity, odd)

        for ask in (machines.driver.get_machine_status, machines.driver.delete_machine):
            await probes.must_raise(
                ask.__name__, partial(ask, req), (errors.InvalidArgument,), f"for {odd!r}"
            )
        same(await machines.vm_provider_ids(), [vm.provider_id], "VMs in the cloud")

    async def test_a_listing_has_every_vm_of_its_pool_and_says_whose_it_is(
        self, machines: Machines, harness: Harness
    ) -> None:
        """The listing has each VM of its pool once, and none of another pool of the cluster.

        A foreign VM is not listed as ours.
        """
        identities = [machines.identity() for _ in range(5)]
        identities_by_id = {
            (await machines.create(identity)).provider_id: identity for identity in identities
        }
        elsewhere = await machines.create(machines.identity(pool="other-pool"))
        await machine_probes.create_foreign_vm(machines, f"{POOL}-of-another", "another_cluster")
        with suppress(pytest.skip.Exception):  # without the hook, the listing has one page
            await harness.shrink_pages(2)

        listed = await machines.list_vms()

        ids = [record.info.provider_id for record in listed]
        assert elsewhere.provider_id not in ids, "a VM of another pool is listed"
        same(sorted(set(ids)), sorted(ids), "unique provider IDs in the listing")
        assert set(identities_by_id) <= set(ids), f"listed {ids}, wanted {sorted(identities_by_id)}"
        if probes.is_opted_out(harness, "no_machine_marks"):
            return
        ours = {
            record.info.provider_id: record.identity
            for record in listed
            if record.identity.cluster == machines.cluster
        }
        same(ours, identities_by_id, "identities of VMs listed as ours")

    async def test_an_empty_pool_is_an_empty_listing(self, machines: Machines) -> None:
        """The listing of an empty pool is empty."""
        same(list(await machines.list_vms(pool="never-used")), [], "VMs of an empty pool")

    async def test_the_provider_id_is_the_one_of_the_node(
        self, cloud: Cloud, machines: Machines, harness: Harness
    ) -> None:
        """The instances interface and the machine driver return the same provider ID for a VM."""
        probes.require_capability(cloud.instances, "instances", "an InstancesV2")
        vm = await machines.create(machines.identity())

        node = build_node(vm.node_name)
        face = InstanceLookups(cloud, old=False)
        metadata = await retry_within_patience(harness, partial(face.metadata, node))

        message = f"node {metadata.provider_id!r}, machine {vm.provider_id!r}"
        assert is_same_instance(metadata.provider_id, vm.provider_id), f"different VMs: {message}"
        probes.check_own_id(cloud, vm.provider_id)

    # --- other driver methods -------------------------------------------------------------------

    async def test_provider_names_can_stand_in_a_class(self, cloud: Cloud) -> None:
        """Provider names are not empty, lack outer whitespace, and are unique regardless of case.

        With a single string instead of a list, each letter would be accepted as a provider name.
        """
        declared = cloud.machine_providers
        assert not isinstance(declared, str), f"provider_names is a string: {declared!r}"

        names: list[Any] = list(declared)
        odd = [
            name for name in names if not isinstance(name, str) or not name or name != name.strip()
        ]
        same(odd, [], "invalid provider_names")
        same(len({name.casefold() for name in names}), len(names), f"unique names in {names}")

    async def test_machine_arguments_are_left_alone(self, machines: Machines) -> None:
        """The driver does not modify its arguments."""
        machines.spec = deepcopy(dict(machines.harness.machine_spec()))
        before = deepcopy(machines.spec)
        identity = machines.identity()

        vm = await machines.create(identity)
        for name, ask in machine_probes.cloud_calls(
            machines, identity, vm, machines.identity()
        ).items():
            await outcome(ask)
            same(machines.spec, before, f"provider spec after {name}")

    async def test_metric_labels_have_a_size_and_cost_nothing(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """Metric labels are strings, contain `size`, and need no cloud request.

        An invalid spec has them, too.
        """
        labels: object = cloud.machines
        if not isinstance(labels, MachineMetrics):
            pytest.skip("not offered; implement machine_metrics_labels")
        before = await harness.requests()

        for spec in (harness.machine_spec(), {}, {"size": ["no text"]}):
            pairs: Mapping[Any, Any] = labels.machine_metrics_labels(spec)
            assert "size" in pairs, f"metric labels lack size: {pairs}"
            odd = [text for pair in pairs.items() for text in pair if not isinstance(text, str)]
            same(odd, [], "labels that are not strings")
        same(await harness.requests(), before, "requests to the cloud")

    async def test_validation_tells_good_from_bad(
        self, cloud: Cloud, machines: Machines, harness: Harness
    ) -> None:
        """Validation accepts a good spec and rejects a bad one, without requests unless `live`."""
        driver: object = cloud.machines
        if not isinstance(driver, SpecValidation):
            pytest.skip("not offered; implement validate_spec")
        credentials = machines.request(machines.identity()).credentials
        before = await harness.requests()

        good = await driver.validate_spec(harness.machine_spec(), credentials, live=False)
        bad = await driver.validate_spec(harness.bad_machine_spec(), credentials, live=False)
        same(await harness.requests(), before, "requests to the cloud")
        lively = await driver.validate_spec(harness.machine_spec(), credentials, live=True)

        same([*good, *lively], [], "problems of a valid spec")
        assert bad, "no problems reported for an invalid spec"
        machine_probes.check_no_secrets(machines, " ".join(map(str, bad)))

    async def test_volumes_of_others_are_left_out(self, machines: Machines) -> None:
        """The driver returns only volumes that this cloud attaches to its VMs.

        A deletion waits until these volumes are detached.
        """
        asked = GetVolumeIDsRequest(pv_specs=FOREIGN_VOLUMES)
        try:
            volume_ids = await machines.driver.get_volume_ids(asked)
        except errors.Unimplemented:
            pytest.skip("not implemented: get_volume_ids")

        same(list(volume_ids), [], "IDs of foreign volumes")
