"""The contract of machine drivers in bad weather; part of `ccm.testing.contract_machines`."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from ccm.base import redact
from ccm.cloud import errors
from ccm.testing import leaks, machine_probes, probes
from ccm.testing.harness import PROMISED, Harness
from ccm.testing.machine_probes import Machines
from ccm.testing.network_probes import CANCEL_AFTER, cancelled, within_patience
from ccm.testing.probes import outcome, same

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
            with leaks.watched(harness) as started:
                await cancelled(partial(machines.create, who), steps=steps)
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
            await cancelled(partial(machines.create, who), steps=steps)

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

        left = await leaks.left_open(ask_and_close)

        assert not left, f"left open by a driver that was closed: {left}"
