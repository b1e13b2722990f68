"""The contract of machine drivers, as a test class to subclass.

Write a `Harness` (see `ccm.testing.contract`) with the hooks about machines, and name it in a
subclass. A provider with nothing but machines needs no other class; one that has more keeps
`ProviderContract` beside it, with the same harness.

```python
class TestAcmeMachines(MachineContract):
    @pytest_asyncio.fixture
    async def harness(self):
        async with FakeAcme() as fake:
            yield AcmeHarness(fake)
```

Every case keeps what an answer or an error says of the last known state, and repeats a call that
says `RetryAfter`, as the daemon does.
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
from ccm.cloud.machines import GetVolumeIDsRequest, MachineMetrics, SpecValidation
from ccm.testing import machine_probes, probes
from ccm.testing.builders import node as build_node
from ccm.testing.harness import PROMISED, Harness, Made
from ccm.testing.machine_probes import POOL, Machines
from ccm.testing.probes import (
    CANCEL_AFTER,
    Face,
    OpeningCases,
    cut_short,
    outcome,
    same,
    within_patience,
)

WRITES = 4
"""Up to so many writes of one creation or deletion are cut off from their answers."""


REFUSED = (*PROMISED["denied"], errors.InvalidArgument)
"""What wrong credentials may be called."""


@pytest.mark.asyncio
class MachineWeatherCases:
    """Mixed into `MachineContract`, which brings the fixtures."""

    @pytest.mark.parametrize("fault", sorted(PROMISED))
    async def test_machine_fault_arrives_as_promised(
        self,
        machines: Machines,
        harness: Harness,
        fault: str,
        caplog: pytest.LogCaptureFixture,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """No fault reads as an absence or as success, no secret is told; then all is well."""
        how = probes.scripted(harness, fault)
        caplog.set_level(logging.DEBUG)
        who, new = machines.identity(), machines.identity()
        made = await machines.create(who)
        told: list[object] = []

        await harness.fail(how)
        for name, ask in machine_probes.questions(machines, who, made, new).items():
            found = await probes.patient(harness, name, ask)
            probes.check_error(found, PROMISED[fault], f"{name} during {fault}")
            told.append(found)
        await harness.heal()

        again = await within_patience(harness, partial(machines.status, who, made.provider_id))
        same(again.provider_id, made.provider_id, "status after the fault")
        printed = capsys.readouterr()
        machine_probes.silent(
            machines, f"{machine_probes.chains(told)} {caplog.text} {printed.out} {printed.err}"
        )

    @pytest.mark.parametrize("number", range(1, WRITES + 1))
    @pytest.mark.parametrize("what", ["create", "delete"])
    async def test_a_lost_answer_is_mended(
        self, machines: Machines, harness: Harness, what: str, number: int
    ) -> None:
        """Whichever write was not answered, the next call ends with one VM, or with none."""
        who = machines.identity()
        provider_id = ""
        if what == "delete":
            provider_id = (await machines.create(who)).provider_id
        beside = len(await harness.beside_vms())

        async def work() -> None:
            if what == "create":
                await machines.create(who)
            else:
                await machines.delete(who, provider_id)

        await harness.lose_answer(number)
        await outcome(work)
        await harness.heal()
        await within_patience(harness, work)

        same(len(await machines.held()), int(what == "create"), "VMs in the cloud")
        await machines.delete(who)
        left = len(await harness.beside_vms())
        assert left == 0, f"{left} left of {beside} that were made beside VMs"

    @pytest.mark.parametrize("number", range(1, WRITES + 1))
    async def test_a_creation_that_failed_can_be_deleted(
        self, machines: Machines, harness: Harness, number: int
    ) -> None:
        """After any error, without another creation, the identity alone finds what was made."""
        who = machines.identity()
        await harness.lose_answer(number)
        await outcome(partial(machines.create_once, who))
        await harness.heal()

        await within_patience(harness, partial(machines.delete, who))

        same(await machines.held(), [], "VMs in the cloud")
        same(list(await harness.beside_vms()), [], "left of what was made beside VMs")

    async def test_a_cancelled_creation_is_completed(
        self, machines: Machines, harness: Harness
    ) -> None:
        """It may be cancelled wherever it waits: in the end there is one VM, and then nothing."""
        for steps in CANCEL_AFTER:
            who = machines.identity()
            with probes.watched(harness) as started:
                await cut_short(partial(machines.create, who), steps=steps)
                await started.have_ended("after a cancelled creation")

            made = await machines.create(who)
            same(await machines.held(), [made.provider_id], f"VMs, cancelled after {steps} steps")
            await machines.delete(who)
            same(await machines.held(), [], "VMs after deletion")
            same(list(await harness.beside_vms()), [], "left of what was made beside VMs")

    async def test_a_creation_cut_short_can_be_deleted(
        self, machines: Machines, harness: Harness
    ) -> None:
        """Without another creation, by identity alone: nothing is left."""
        for steps in CANCEL_AFTER:
            who = machines.identity()
            await cut_short(partial(machines.create, who), steps=steps)

            await machines.delete(who)

            same(await machines.held(), [], f"VMs, cancelled after {steps} steps")
            same(list(await harness.beside_vms()), [], "left of what was made beside VMs")

    async def test_a_bad_spec_stops_a_creation_alone(
        self, machines: Machines, harness: Harness
    ) -> None:
        """VMs that were made by an older one are found, listed and deleted."""
        bad = harness.bad_machine_spec()
        who, new = machines.identity(), machines.identity()
        made = await machines.create(who)

        created = await outcome(partial(machines.create_once, new, provider_spec=bad))
        listed = await machines.listed(provider_spec=bad)
        found = await machines.status(who, made.provider_id, provider_spec=bad)
        await machines.delete(who, made.provider_id, provider_spec=bad)

        wanted = (errors.InvalidArgument, errors.OutOfRange)
        probes.check_error(created, wanted, "creation with a bad spec")
        same([one.info.provider_id for one in listed], [made.provider_id], "VMs listed")
        same(found.provider_id, made.provider_id, "status with a bad spec")
        same(await machines.held(), [], "VMs in the cloud")

    async def test_each_request_has_its_own_credentials(self, machines: Machines) -> None:
        """Those of one request open nothing for another, whatever came before.

        Where no key sounds secret, one of the values has to be needed.
        """
        who = machines.identity()
        made = await machines.create(who)
        good = machines.harness.machine_credentials()
        if not good:
            pytest.skip("this driver needs no credentials")
        secret = [key for key in good if redact.is_secret(key)]

        for keys in [secret] if secret else [[key] for key in good]:
            wrong = {key: b"not-the-" + good[key] for key in keys}
            machines.credentials = {**good, **wrong}
            refused = await outcome(machines.listed)
            if isinstance(refused, probes.Raised) and isinstance(refused.error, REFUSED):
                break
        machines.credentials = None

        probes.check_error(refused, REFUSED, f"a listing with {', '.join(wrong)} wrong")
        same([one.info.provider_id for one in await machines.listed()], [made.provider_id], "VMs")

    async def test_rotated_machine_credentials(self, machines: Machines, harness: Harness) -> None:
        """Old ones give the right answer or a refusal; new ones work at once."""
        who = machines.identity()
        made = await machines.create(who)
        old = dict(harness.machine_credentials())

        await harness.rotate()

        machines.credentials = old
        found = await probes.patient(
            harness, "status", partial(machines.status, who, made.provider_id)
        )
        if isinstance(found, probes.Raised):
            probes.check_error(found, PROMISED["denied"], "status with old credentials")
        machines.credentials = None
        found = await machines.status(who, made.provider_id)
        same(found.provider_id, made.provider_id, "status with new credentials")

    async def test_it_opens_without_a_cloud_config(self, harness: Harness) -> None:
        """Twice at once, too; closing one leaves the other alone."""
        async with harness.open_machines() as first:
            async with harness.open_machines():
                pass
            machines = machine_probes.machines_of(first, harness)
            made = await machines.create(machines.identity())
            same(await machines.held(), [made.provider_id], "VMs in the cloud")

    async def test_closing_ends_every_client(self, harness: Harness) -> None:
        """Those that were opened for credentials too."""

        async def ask_and_close() -> None:
            async with probes.in_one_task(harness.open()) as cloud:
                await machine_probes.machines_of(cloud, harness).listed()

        left = await probes.left_open(ask_and_close)

        assert not left, f"left open by a driver that was closed: {left}"


STEP_S = 1.0
"""How long one call may take where nothing fails: it never waits for the cloud's work."""

FOREIGN_VOLUMES: Sequence[Mapping[str, Any]] = (
    {"csi": {"driver": "csi.of-some-other-cloud", "volumeHandle": "v-1"}},
    {"hostPath": {"path": "/mnt"}},
    {},
)


@pytest.mark.asyncio
class MachineContract(OpeningCases, MachineWeatherCases):
    """Subclass it under a name `Test...` and give the subclass a fixture `harness`."""

    @pytest_asyncio.fixture
    async def cloud(self, harness: Harness) -> AsyncIterator[Cloud]:
        """The opened provider."""
        async with probes.in_one_task(harness.open()) as cloud:
            yield cloud

    @pytest.fixture
    def machines(self, cloud: Cloud, harness: Harness) -> Machines:
        """The machines of our cluster."""
        return machine_probes.machines_of(cloud, harness)

    # --- one VM ---------------------------------------------------------------------------------

    async def test_create_twice_is_one_vm(self, machines: Machines) -> None:
        """Repeating a creation finds the VM; another machine gets another one."""
        one, other = machines.identity(), machines.identity()

        first, again = await machines.create(one), await machines.create(one)
        different = await machines.create(other)

        same(again.provider_id, first.provider_id, "provider ID of the second creation")
        same(
            sorted(await machines.held()),
            sorted([first.provider_id, different.provider_id]),
            "VMs in the cloud",
        )

    async def test_many_machines_at_once_have_a_vm_each(self, machines: Machines) -> None:
        """Calls about different machines do not disturb each other."""
        identities = [machines.identity() for _ in range(5)]

        made = await asyncio.gather(*(machines.create(each) for each in identities))

        same(sorted(await machines.held()), sorted(one.provider_id for one in made), "VMs")

    async def test_a_vm_is_found_when_it_was_made(self, machines: Machines) -> None:
        """Before there is NotFound; then it is found by provider ID and by identity alone."""
        who = machines.identity()
        ask = partial(machines.status, who)
        probes.check_error(await outcome(ask), (errors.NotFound,), "status of what was never made")

        made = await machines.create(who)

        for provider_id in (made.provider_id, ""):
            found = await machines.status(who, provider_id)
            same(found.provider_id, made.provider_id, f"provider ID, asked by {provider_id!r}")
            same(found.node_name, made.node_name, f"name of the node, asked by {provider_id!r}")

    async def test_a_vm_deleted_by_somebody_is_not_found(
        self, machines: Machines, harness: Harness
    ) -> None:
        """What was taken away behind our back is absent, and deleting it is done."""
        who = machines.identity()
        made = await machines.create(who)

        await harness.delete(Made(name=made.node_name, provider_id=made.provider_id))

        ask = partial(machines.status, who, made.provider_id)
        probes.check_error(await outcome(ask), (errors.NotFound,), "status of a VM that is gone")
        await machines.delete(who, made.provider_id)

    @pytest.mark.parametrize("by", ["provider_id", "identity"])
    async def test_a_deleted_vm_is_gone(
        self, machines: Machines, harness: Harness, by: str
    ) -> None:
        """Nothing is left of it, deleting it again is done, and no other is touched."""
        one, other = machines.identity(), machines.identity()
        made, kept = await machines.create(one), await machines.create(other)
        beside = len(await harness.beside_vms())
        provider_id = made.provider_id if by == "provider_id" else ""

        await machines.delete(one, provider_id)
        await machines.delete(one, provider_id)

        same(await machines.held(), [kept.provider_id], "VMs in the cloud")
        same(len(await harness.beside_vms()) * 2, beside, "what was made beside VMs")
        ask = partial(machines.status, one, made.provider_id)
        probes.check_error(await outcome(ask), (errors.NotFound,), "status of a deleted VM")

    async def test_deleting_what_was_never_made_is_done(self, machines: Machines) -> None:
        """It changes nothing."""
        made = await machines.create(machines.identity())

        await machines.delete(machines.identity())

        same(await machines.held(), [made.provider_id], "VMs in the cloud")

    async def test_initialising_is_repeated_without_harm(self, machines: Machines) -> None:
        """After it nothing asks for it any more."""
        who = machines.identity()
        made = await machines.create(who)

        await machines.initialize(who, made.provider_id)
        await machines.initialize(who, made.provider_id)

        ask = partial(machines.driver.get_machine_status, machines.request(who, made.provider_id))
        found = await outcome(ask)
        assert not isinstance(found, probes.Raised) or isinstance(
            found.error, errors.Unimplemented
        ), f"status of an initialised VM: {found}"
        listed = [one.initialized for one in await machines.listed()]
        same(listed, [True], "whether the listed VM is initialised")
        same(await machines.held(), [made.provider_id], "VMs in the cloud")

    async def test_nothing_waits_in_a_call(self, machines: Machines, harness: Harness) -> None:
        """What takes long in the cloud is begun, and asked about again."""
        await harness.slow_vms(slow=True)
        who = machines.identity()

        async with asyncio.timeout(STEP_S):
            made = await machines.create(who)
            ask = partial(machines.driver.delete_machine, machines.request(who))
            if not isinstance(await outcome(ask), probes.Raised):
                same(await machines.held(), [], "VMs after a deletion that was told as done")
        await harness.slow_vms(slow=False)

        await machines.delete(who, made.provider_id)
        same(await machines.held(), [], "VMs in the cloud")

    # --- whose it is ----------------------------------------------------------------------------

    @pytest.mark.parametrize("whose", ["another_cluster", "a_twin", "another_machine", "nobody"])
    async def test_a_vm_that_only_has_the_name_is_left_alone(
        self, machines: Machines, whose: str
    ) -> None:
        """It is never adopted, deleted, or taken for ours, and no second is made beside it."""
        who = machines.identity(f"{POOL}-taken")
        theirs = await machine_probes.foreign(machines, who.name, whose, uid=who.uid)

        created = await outcome(partial(machines.create, who))
        status = await outcome(partial(machines.status, who))
        await machines.delete(who)

        probes.check_error(created, (errors.AlreadyExists,), "creation under a name that is taken")
        probes.check_error(status, (errors.NotFound,), "status without a provider ID")
        same(await machines.held(), [theirs.provider_id], "VMs in the cloud")
        if whose != "another_machine":
            same(await machines.mine(), [], "VMs listed as ours")

    async def test_a_vm_without_a_namespace_is_still_its_machines(
        self, machines: Machines, harness: Harness
    ) -> None:
        """Older VMs have no such mark: cluster and UID find them, and the listing has it empty."""
        probes.unless_opted_out(harness, "no_machine_marks")
        who = machines.identity()
        older = replace(who, namespace="")
        held = await harness.foreign_vm(who.name, older)

        found, made = await machines.status(who), await machines.create(who)

        same(found.provider_id, held.provider_id, "status without a provider ID")
        same(made.provider_id, held.provider_id, "provider ID of the creation")
        same([one.identity for one in await machines.listed()], [older], "identities listed")
        await machines.delete(who)
        same(await machines.held(), [], "VMs in the cloud")

    @pytest.mark.parametrize("whose", ["another_cluster", "a_twin", "another_machine", "nobody"])
    async def test_the_provider_id_of_another_vm_is_refused(
        self, machines: Machines, harness: Harness, whose: str
    ) -> None:
        """Whoever may edit Machines may set any provider ID: the VM's marks decide whose it is."""
        probes.unless_opted_out(harness, "no_machine_marks")
        who, driver = machines.identity(), machines.driver
        theirs = await machine_probes.foreign(machines, f"{POOL}-theirs", whose, uid=who.uid)
        req = machines.request(who, theirs.provider_id)

        for ask in (driver.get_machine_status, driver.delete_machine):
            await probes.must_raise(
                ask.__name__, partial(ask, req), (errors.NotOwned,), f"about a VM of {whose}"
            )
        initialized = await outcome(partial(driver.initialize_machine, req))
        probes.check_error(
            initialized, (errors.NotOwned, errors.Unimplemented), f"initialising a VM of {whose}"
        )
        same(await machines.held(), [theirs.provider_id], "VMs in the cloud")

    async def test_the_vm_of_a_restored_machine_is_its_own(
        self, machines: Machines, harness: Harness
    ) -> None:
        """A Machine that is restored from a backup has another UID than its VM says."""
        probes.unless_opted_out(harness, "no_machine_marks")
        who = machines.identity()
        made = await machines.create(who)
        restored = replace(who, uid="uid-of-the-restored")

        found = await machines.status(restored, made.provider_id)
        await machines.delete(restored, made.provider_id)

        same(found.provider_id, made.provider_id, "status by provider ID")
        same(await machines.held(), [], "VMs in the cloud")

    async def test_with_a_provider_id_that_vm_goes_and_no_other(self, machines: Machines) -> None:
        """A class may import a VM that somebody else made: the provider ID says which."""
        who = machines.identity()
        made = await machines.create(who)
        given = await machine_probes.foreign(machines, f"{POOL}-given", "nobody")

        found = await machines.status(who, given.provider_id, is_imported=True)
        await machines.delete(who, given.provider_id, is_imported=True)

        same(found.provider_id, given.provider_id, "status by provider ID")
        same(await machines.held(), [made.provider_id], "VMs in the cloud")

    @pytest.mark.parametrize("provider_id", ["some-other-cloud://1", "{scheme}://", "://1", "x"])
    async def test_a_foreign_provider_id_is_refused(
        self, machines: Machines, provider_id: str
    ) -> None:
        """It is InvalidArgument: "absent" would have another VM made, "gone" would lose one."""
        who = machines.identity()
        made = await machines.create(who)
        odd = provider_id.format(scheme=made.provider_id.partition("://")[0])
        req = machines.request(who, odd)

        for ask in (machines.driver.get_machine_status, machines.driver.delete_machine):
            await probes.must_raise(
                ask.__name__, partial(ask, req), (errors.InvalidArgument,), f"about {odd!r}"
            )
        same(await machines.held(), [made.provider_id], "VMs in the cloud")

    async def test_a_listing_has_every_vm_of_its_pool_and_says_whose_it_is(
        self, machines: Machines, harness: Harness
    ) -> None:
        """Across pages, each once; none of another pool, and no foreign one as ours."""
        identities = [machines.identity() for _ in range(5)]
        made = {(await machines.create(who)).provider_id: who for who in identities}
        elsewhere = await machines.create(machines.identity(pool="other-pool"))
        await machine_probes.foreign(machines, f"{POOL}-of-another", "another_cluster")
        with suppress(pytest.skip.Exception):  # then all of it is one page
            await harness.shrink_pages(2)

        listed = await machines.listed()

        ids = [one.info.provider_id for one in listed]
        assert elsewhere.provider_id not in ids, "a VM of another pool is listed"
        same(sorted(set(ids)), sorted(ids), "provider IDs listed, each once")
        assert set(made) <= set(ids), f"listed {ids}, made {sorted(made)}"
        if probes.is_opted_out(harness, "no_machine_marks"):
            return
        ours = {
            one.info.provider_id: one.identity
            for one in listed
            if one.identity.cluster == machines.cluster
        }
        same(ours, made, "VMs listed as ours, with their identities")

    async def test_an_empty_pool_is_an_empty_listing(self, machines: Machines) -> None:
        """It is no error."""
        same(list(await machines.listed(pool="never-used")), [], "VMs of an empty pool")

    async def test_the_provider_id_is_the_one_of_the_node(
        self, cloud: Cloud, machines: Machines, harness: Harness
    ) -> None:
        """What the same cloud's instances say of the VM's node is what its machine has."""
        probes.offered(cloud.instances, "instances", "an InstancesV2")
        made = await machines.create(machines.identity())

        node = build_node(made.node_name)
        face = Face(cloud, old=False)
        metadata = await within_patience(harness, partial(face.metadata, node))

        told = f"node {metadata.provider_id!r}, machine {made.provider_id!r}"
        assert is_same_instance(metadata.provider_id, made.provider_id), f"two VMs: {told}"
        probes.check_own_id(cloud, made.provider_id)

    # --- beside the VMs -------------------------------------------------------------------------

    async def test_provider_names_can_stand_in_a_class(self, cloud: Cloud) -> None:
        """They are text without blanks at the ends, and differ in more than upper and lower case.

        One text in place of several names would accept each of its letters.
        """
        declared = cloud.machine_providers
        assert not isinstance(declared, str), f"provider_names is one text, {declared!r}"

        names: list[Any] = list(declared)
        odd = [one for one in names if not isinstance(one, str) or not one or one != one.strip()]
        same(odd, [], "provider_names that no class can have")
        same(len({one.casefold() for one in names}), len(names), f"names that differ in {names}")

    async def test_machine_arguments_are_left_alone(self, machines: Machines) -> None:
        """What is handed in is read-only."""
        machines.spec = deepcopy(dict(machines.harness.machine_spec()))
        before = deepcopy(machines.spec)
        who = machines.identity()

        made = await machines.create(who)
        for name, ask in machine_probes.questions(machines, who, made, machines.identity()).items():
            await outcome(ask)
            same(machines.spec, before, f"provider spec after {name}")

    async def test_metric_labels_have_a_size_and_cost_nothing(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """They are text, and there for a spec that makes no sense too."""
        labels: object = cloud.machines
        if not isinstance(labels, MachineMetrics):
            pytest.skip("not offered; write machine_metrics_labels")
        before = await harness.requests()

        for spec in (harness.machine_spec(), {}, {"size": ["no text"]}):
            found: Mapping[Any, Any] = labels.machine_metrics_labels(spec)
            assert "size" in found, f"no size among the labels {found}"
            odd = [one for pair in found.items() for one in pair if not isinstance(one, str)]
            same(odd, [], "labels that are no text")
        same(await harness.requests(), before, "requests to the cloud")

    async def test_validation_tells_good_from_bad(
        self, cloud: Cloud, machines: Machines, harness: Harness
    ) -> None:
        """A good spec has no problems; nobody is asked unless it is to be live."""
        driver: object = cloud.machines
        if not isinstance(driver, SpecValidation):
            pytest.skip("not offered; write validate_spec")
        credentials = machines.request(machines.identity()).credentials
        before = await harness.requests()

        good = await driver.validate_spec(harness.machine_spec(), credentials, live=False)
        bad = await driver.validate_spec(harness.bad_machine_spec(), credentials, live=False)
        same(await harness.requests(), before, "requests to the cloud")
        lively = await driver.validate_spec(harness.machine_spec(), credentials, live=True)

        same([*good, *lively], [], "problems of a good spec")
        assert bad, "a bad spec has no problems"
        machine_probes.silent(machines, " ".join(map(str, bad)))

    async def test_volumes_of_others_are_left_out(self, machines: Machines) -> None:
        """Only what this cloud attaches to its VMs is waited for when one goes."""
        asked = GetVolumeIDsRequest(pv_specs=FOREIGN_VOLUMES)
        try:
            found = await machines.driver.get_volume_ids(asked)
        except errors.Unimplemented:
            pytest.skip("this driver says Unimplemented: it does not know volumes")

        same(list(found), [], "volumes of others")
