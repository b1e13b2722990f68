"""Machine drivers with one defect each, by the rule that they break."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ccm.cloud import (
    AlreadyExists,
    CloudError,
    Credentials,
    DeleteMachineResponse,
    GetVolumeIDsRequest,
    InvalidArgument,
    ListMachinesRequest,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    NotFound,
    Problem,
    RetryAfter,
    Unavailable,
    Uninitialized,
)
from tests.contract.defects import noticed_by
from tests.contract.memory import (
    ROLE,
    MemoryInstance,
    MemoryMachines,
    OddKeyHarness,
    info,
    token_of,
)


@noticed_by(
    "test_create_twice_is_one_vm",
    "test_a_lost_answer_is_mended[create-2]",
    "test_a_cancelled_creation_is_completed",
)
class CreatesAnew(MemoryMachines):
    """Each creation makes a VM, under a name that is free."""

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        name = req.identity.name
        taken = sum(one.name.startswith(name) for one in self.spi.instances.values())
        made = await self.spi.order(
            token_of(req.credentials),
            f"{name}-{taken}" if taken else name,
            dataclasses.asdict(req.identity),
        )
        return info(made)


@noticed_by("test_a_vm_gets_the_uid_of_a_restored_machine")
class ForgetsItsDisk(MemoryMachines):
    """The disk keeps the former UID."""

    async def migrate_uid(self, req: MachineRequest, former: str) -> None:
        await super().migrate_uid(req, former)
        self.spi.disks[former] = self.spi.disks[req.identity.uid]


@noticed_by("test_a_vm_gets_the_uid_of_a_restored_machine")
class KeepsTheUID(MemoryMachines):
    """The VM keeps the former UID."""

    async def migrate_uid(self, req: MachineRequest, former: str) -> None:
        """Do nothing."""


@noticed_by("test_a_vm_is_found_when_it_was_made", "test_a_vm_deleted_by_somebody_is_not_found")
class AbsenceIsAnAnswer(MemoryMachines):
    """The status of a missing VM is empty instead of NotFound."""

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        try:
            return await super().get_machine_status(req)
        except NotFound:
            return MachineInfo()


@noticed_by("test_a_deleted_vm_is_gone[provider_id]", "test_deleting_what_was_never_made_is_done")
class DeletingNothingFails(MemoryMachines):
    """The deletion of a missing VM is an error."""

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        if await self._find(req) is None:
            raise Unavailable("no such VM")
        return await super().delete_machine(req)


@noticed_by("test_a_listing_has_every_vm_of_its_pool_and_says_whose_it_is")
class FirstPageOnly(MemoryMachines):
    """A listing ends with its first page."""

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        return (await super().list_machines(req))[: self.spi.page_size]


@noticed_by("test_a_listing_has_every_vm_of_its_pool_and_says_whose_it_is")
class ListsEveryPool(MemoryMachines):
    """Whatever pool is asked about, all VMs are listed."""

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        pools = {one.labels.get("pool", "") for one in self.spi.instances.values()}
        found = [
            await super(ListsEveryPool, self).list_machines(dataclasses.replace(req, pool=pool))
            for pool in sorted(pools)
        ]
        return [record for records in found for record in records]


@noticed_by(
    "test_a_listing_has_every_vm_of_its_pool_and_says_whose_it_is",
    "test_a_vm_that_only_has_the_name_is_left_alone[another_cluster]",
)
class ClaimsAll(MemoryMachines):
    """Every listed VM has the cluster name of the request."""

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        return [
            dataclasses.replace(
                one, identity=dataclasses.replace(one.identity, cluster=req.cluster)
            )
            for one in await super().list_machines(req)
        ]


@noticed_by("test_a_listing_has_every_vm_of_its_pool_and_says_whose_it_is")
class LosesTheNamespace(MemoryMachines):
    """The namespace of a machine is not among the marks of its VM."""

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        return [
            dataclasses.replace(one, identity=dataclasses.replace(one.identity, namespace=""))
            for one in await super().list_machines(req)
        ]


@noticed_by("test_a_vm_without_a_namespace_is_still_its_machines")
class MatchesTheWholeIdentity(MemoryMachines):
    """A VM that lacks one mark is no VM of the machine."""

    async def _find(self, req: MachineRequest) -> MemoryInstance | None:
        found = await super()._find(req)
        if found is None or req.provider_id:
            return found
        whole = dataclasses.asdict(req.identity)
        return found if whole.items() <= found.labels.items() else None


@noticed_by(
    "test_a_vm_that_only_has_the_name_is_left_alone[nobody]",
    "test_a_vm_that_only_has_the_name_is_left_alone[another_machine]",
)
class AdoptsByName(MemoryMachines):
    """What has the name is the machine's."""

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        for one in self.spi.instances.values():
            if one.name == req.identity.name:
                return info(one)
        return await super().create_machine(req)


@noticed_by("test_a_vm_that_only_has_the_name_is_left_alone[a_twin]")
class IgnoresTheCluster(MemoryMachines):
    """Two clusters of which one is a copy of the other share VMs."""

    async def _find(self, req: MachineRequest) -> MemoryInstance | None:
        for one in self.spi.instances.values():
            if not req.provider_id and one.labels.get("uid") == req.identity.uid:
                return one
        return await super()._find(req)


@noticed_by(
    "test_the_provider_id_of_another_vm_is_refused[nobody]",
    "test_the_provider_id_of_another_vm_is_refused[another_machine]",
)
class TrustsProviderIDs(MemoryMachines):
    """Whatever has the provider ID is the machine's."""

    async def _find(self, req: MachineRequest) -> MemoryInstance | None:
        return await super()._find(dataclasses.replace(req, is_imported=True))


@noticed_by("test_a_vm_that_only_has_the_name_is_left_alone[nobody]")
class DeletesByName(MemoryMachines):
    """Without a provider ID whatever has the name is deleted."""

    async def _find(self, req: MachineRequest) -> MemoryInstance | None:
        for one in self.spi.instances.values():
            if not req.provider_id and one.name == req.identity.name:
                return one
        return await super()._find(req)


@noticed_by("test_a_vm_that_only_has_the_name_is_left_alone[another_machine]")
class MakesADouble(MemoryMachines):
    """If the name is taken, another name is used."""

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        try:
            return await super().create_machine(req)
        except AlreadyExists:
            token, tags = token_of(req.credentials), dataclasses.asdict(req.identity)
            return info(await self.spi.order(token, f"{req.identity.name}-2", tags))


@noticed_by("test_with_a_provider_id_that_vm_goes_and_no_other")
class MarksWinOverProviderID(MemoryMachines):
    """A VM is looked up by its labels, and the provider ID is ignored."""

    async def _find(self, req: MachineRequest) -> MemoryInstance | None:
        found = await super()._find(dataclasses.replace(req, provider_id=""))
        return found or await super()._find(req)


@noticed_by(
    "test_a_foreign_provider_id_is_refused[some-other-cloud://1]",
    "test_a_foreign_provider_id_is_refused[x]",
)
class ForeignIDIsAbsent(MemoryMachines):
    """A provider ID of another cloud reads as "gone"."""

    async def _find(self, req: MachineRequest) -> MemoryInstance | None:
        try:
            return await super()._find(req)
        except InvalidArgument:
            return None


@noticed_by(
    "test_machine_fault_arrives_as_promised[outage]",
    "test_machine_fault_arrives_as_promised[denied]",
)
class ErrorsReadAsAbsence(MemoryMachines):
    """An outage reads as "no VM", and a deletion as done."""

    async def _find(self, req: MachineRequest) -> MemoryInstance | None:
        try:
            return await super()._find(req)
        except CloudError:
            return None


@noticed_by("test_machine_fault_arrives_as_promised[outage]")
class ClientErrorsLeak(MemoryMachines):
    """Errors of the client library are not translated."""

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        await self.spi.page(token_of(req.credentials), 0)
        return await super().list_machines(req)


@noticed_by("test_machine_fault_arrives_as_promised[quota]")
class QuotaIsAnOutage(MemoryMachines):
    """An exhausted quota is reported as an outage."""

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        try:
            return await super().create_machine(req)
        except CloudError as error:
            raise Unavailable("something is wrong") from error


@noticed_by(
    "test_a_deleted_vm_is_gone[provider_id]",
    "test_a_deleted_vm_is_gone[identity]",
    "test_a_lost_answer_is_mended[delete-1]",
)
class LeavesDisks(MemoryMachines):
    """The disk of a VM stays when the VM is deleted."""

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        found = await self._there(req)
        await self.spi.drop(token_of(req.credentials), found.id)
        return DeleteMachineResponse()


@noticed_by("test_a_creation_cut_short_can_be_deleted", "test_a_lost_answer_is_mended[delete-1]")
class ForgetsHalfMade(MemoryMachines):
    """If there is no VM, its disk is not looked up."""

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        if await self._find(req) is None:
            return DeleteMachineResponse()
        return await super().delete_machine(req)


@noticed_by("test_nothing_waits_in_a_call")
class WaitsForBoot(MemoryMachines):
    """A creation ends when the VM runs."""

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        made = await super().create_machine(req)
        while (await self._there(req)).state == "starting":
            await asyncio.sleep(0.1)
        return made


@noticed_by("test_nothing_waits_in_a_call")
class DoneTooEarly(MemoryMachines):
    """A deletion in progress is reported as completed."""

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        try:
            return await super().delete_machine(req)
        except RetryAfter:
            return DeleteMachineResponse()


@noticed_by("test_initialising_is_repeated_without_harm")
class NeverInitialized(MemoryMachines):
    """It is initialised again and again."""

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        raise Uninitialized("again").carrying(info(await self._there(req)))


@noticed_by("test_initialising_is_repeated_without_harm")
class InitializesOnce(MemoryMachines):
    """A second initialisation is refused."""

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        if ROLE in (await self._there(req)).labels:
            raise AlreadyExists("it has a role")
        return await super().initialize_machine(req)


@noticed_by("test_the_provider_id_is_the_one_of_the_node")
class AnotherForm(MemoryMachines):
    """Its provider IDs are not those of nodes."""

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        made = await super().create_machine(req)
        return dataclasses.replace(made, provider_id=f"{made.provider_id}/{req.identity.name}")


@noticed_by("test_a_bad_spec_stops_a_creation_alone")
class BadSpecStopsDeletion(MemoryMachines):
    """Deletion of a VM requires a valid spec."""

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        if await self.validate_spec(req.provider_spec, req.credentials, live=False):
            raise InvalidArgument("no such size")
        return await super().delete_machine(req)


@noticed_by("test_each_request_has_its_own_credentials", "test_rotated_machine_credentials")
class FirstClientForEver(MemoryMachines):
    """One client is opened with the first credentials, and kept."""

    first: Credentials | None = None

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        self.first = self.first or req.credentials
        return await super().list_machines(dataclasses.replace(req, credentials=self.first))

    async def _find(self, req: MachineRequest) -> MemoryInstance | None:
        self.first = self.first or req.credentials
        return await super()._find(dataclasses.replace(req, credentials=self.first))


@noticed_by("test_each_request_has_its_own_credentials", harness=OddKeyHarness)
class FirstOddKeyForEver(FirstClientForEver):
    """The same, if no key of the credentials looks like one of a secret."""


@noticed_by("test_machine_fault_arrives_as_promised[denied]")
class TellsTheToken(MemoryMachines):
    """A refusal quotes the refused value."""

    async def _find(self, req: MachineRequest) -> MemoryInstance | None:
        try:
            return await super()._find(req)
        except CloudError as error:
            raise type(error)(f"{error}: {token_of(req.credentials)}") from error


@noticed_by("test_machine_fault_arrives_as_promised[outage]")
class LogsUserData(MemoryMachines):
    """The user data of a VM is logged."""

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        logging.getLogger("acme").debug("booting with %s", req.user_data)
        return await super().create_machine(req)


@noticed_by("test_machine_arguments_are_left_alone")
class FillsTheSpec(MemoryMachines):
    """Defaults are written into the spec that was handed in."""

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        spec: Any = req.provider_spec
        spec["labels"]["zone"] = "zone-1"
        return await super().create_machine(req)


class _Labelled(MemoryMachines):
    labels: ClassVar[Mapping[str, Any]] = {}

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        return self.labels


@noticed_by("test_metric_labels_have_a_size_and_cost_nothing")
class LabelsWithoutSize(_Labelled):
    """The size is not among the labels."""

    labels: ClassVar[Mapping[str, Any]] = {"zone": "z"}


@noticed_by("test_metric_labels_have_a_size_and_cost_nothing")
class LabelsOfNumbers(_Labelled):
    """A label is a number."""

    labels: ClassVar[Mapping[str, Any]] = {"size": 4}


@noticed_by("test_metric_labels_have_a_size_and_cost_nothing")
class LabelsAsk(MemoryMachines):
    """The cloud is asked for the size."""

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        self.spi.requests += 1
        return super().machine_metrics_labels(spec)


@noticed_by("test_validation_tells_good_from_bad")
class ValidatesAlwaysLive(MemoryMachines):
    """The cloud is asked although the validation is not live."""

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: Credentials, live: bool
    ) -> Sequence[Problem]:
        return await super().validate_spec(spec, credentials, live=True)


@noticed_by("test_validation_tells_good_from_bad")
class ValidatesNothing(MemoryMachines):
    """Every spec is good."""

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: Credentials, live: bool
    ) -> Sequence[Problem]:
        return []


@noticed_by("test_provider_names_can_stand_in_a_class")
class NamesAreOneText(MemoryMachines):
    """The names of its provider are one text, each letter of which is a name then."""

    provider_names = "memory"


@noticed_by("test_provider_names_can_stand_in_a_class")
class NamesAreAlike(MemoryMachines):
    """Two of its names are one."""

    provider_names = ("memory", "Memory")


@noticed_by("test_volumes_of_others_are_left_out")
class NamesEveryVolume(MemoryMachines):
    """Whatever volume there is, it is the cloud's."""

    async def get_volume_ids(self, req: GetVolumeIDsRequest) -> Sequence[str]:
        return [str(spec) for spec in req.pv_specs]


@noticed_by("test_many_machines_at_once_have_a_vm_each")
class SharesARequest(MemoryMachines):
    """State of a call is stored where a concurrent call overwrites it."""

    current: MachineRequest | None = None

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        self.current = req
        await asyncio.sleep(0)
        return await super().create_machine(self.current)


@noticed_by("test_a_cancelled_creation_is_completed")
class LeavesWhenCancelled(MemoryMachines):
    """A cancelled creation leaves a resource that no call finds."""

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        try:
            return await super().create_machine(req)
        except asyncio.CancelledError:
            self.spi.disks[f"left-{len(self.spi.disks)}"] = {}
            raise
