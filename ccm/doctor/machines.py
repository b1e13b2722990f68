"""Checks of Machines, their CRDs and MachineClasses, and the ownership of VMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccm.app.machinecontrollers import MACHINE as MANIFEST
from ccm.base import redact
from ccm.base.tasks import run_bounded
from ccm.cloud import errors
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.machines import ListMachinesRequest, MachineDriver, MachineRequest
from ccm.doctor import permissions, provider, reach
from ccm.doctor.case import Case, CheckFinding, count, fail, ok, some, warn, which
from ccm.gardener import names
from ccm.gardener.codec import MACHINE_CLASSES, MACHINE_DEPLOYMENTS, MACHINE_SETS, MACHINES
from ccm.gardener.decoding import NAMES
from ccm.kube.errors import Forbidden, NotFound, WriteRefused
from ccm.kube.resources import CRDS, SECRETS, ResourceKind
from ccm.machines import crdguard, discovery, orphans, tokens
from ccm.machines.caches import marker
from ccm.machines.classes import ResolvedClass, driver_faults, resolve
from ccm.machines.creation import needs_token
from ccm.machines.flags import CONTROL, NO_TARGET, TARGET
from ccm.machines.settings import MachineSettings
from ccm.model import CustomResourceDefinition
from ccm.model.machines import Machine, MachineClass, OperationState, Phase
from ccm.model.names import ANNOTATION_ALLOW_DELETION, LABEL_MANAGED_BY

MAX_SINGLE_LOOKUPS = 50
"""Maximum number of Machines, per MachineClass, whose VMs are looked up by single calls."""

CONCURRENCY = 8

_TROUBLED = (Phase.CRASH_LOOP, Phase.FAILED, Phase.UNKNOWN)
_RESTORE = (
    "if Machines were lost, restore them now: the machine safety controller deletes VMs that have "
    "no owner in two checks and are older than an hour"
)
_LEAVE = (
    "nothing to do: the daemon ignores these VMs; --adopt-unmarked-machines adopts those that "
    "another manager created for existing Machines"
)
_ASK = (
    "the daemon ignores these VMs, because Machines of other namespaces may own them; to delete "
    "orphans, permit its account to list machines in all namespaces"
)
_LOST = "delete these Machines: the daemon does not create their VMs again"
_DISOWNED = "correct spec.providerID of these Machines"
_OFF = "the machine controller is disabled; see the finding controllers"


async def machines(case: Case) -> CheckFinding:
    """Check that the CRDs are installed, and report unhealthy Machines."""
    if not provider.is_startable(case, MANIFEST):
        return ok(_OFF)
    known = await discovery.fetch_plurals(
        await reach.client_of_role(case, CONTROL), MACHINES.api_version
    )
    if missing := [item.plural for item in (MACHINES, MACHINE_CLASSES) if item.plural not in known]:
        return fail(
            f"CRDs not installed: {' and '.join(missing)} of {MACHINES.api_version}",
            "kubectl apply -f manifests/crds.yaml; the daemon retries automatically",
        )
    all_machines = await _machines(case)
    bad = [
        item
        for item in all_machines
        if (
            item.status.state == OperationState.FAILED.value
            if item.is_deleting
            else item.phase in _TROUBLED
        )
    ]
    if not bad:
        return ok(f"{count(len(all_machines), 'Machine')}, none is unhealthy")
    return warn(
        f"{which(len(bad), len(all_machines), 'Machine', 'is', 'are')} unhealthy: "
        f"{some([item.key for item in bad])}",
        "run kube-ccm explain machine NAMESPACE/NAME for the cause",
        details=[
            f"{item.key}: {item.phase.value}: {redact.mask_text(item.status.description)}"
            for item in bad
        ],
    )


async def crds(case: Case) -> CheckFinding:
    """Check that the CRDs are protected from deletion, which would delete all Machines."""
    if not provider.is_startable(case, MANIFEST):
        return ok(_OFF)
    client = await reach.client_of_role(case, CONTROL)
    definitions = list[CustomResourceDefinition]()
    for kind in (MACHINES, MACHINE_SETS, MACHINE_DEPLOYMENTS, MACHINE_CLASSES):
        try:
            definitions.append(await client.resource(CRDS).get(crdguard.crd_name(kind)))
        except NotFound:
            continue
        except Forbidden:
            # The daemon's account can read only the CRDs of the kinds that the daemon deletes.
            if kind is not MACHINE_CLASSES:
                raise
    if deleted := [crd for crd in definitions if crd.is_deleting]:
        return fail(
            f"being deleted, with all their objects: {some([crd.name for crd in deleted])}",
            'do not change the daemon: it blocks the deletion of the VMs; then see "A deleted '
            'CustomResourceDefinition" in manifests/README.md',
            details=[f"{crd.name}: since {crd.metadata.deletion_timestamp}" for crd in deleted],
        )
    if allowing := [crd.name for crd in definitions if crd.allows_deletion]:
        return warn(
            f"{some(allowing)}: because of the annotation {ANNOTATION_ALLOW_DELETION}, deleting "
            "the CRD deletes all VMs",
            "remove the annotation, unless this is intended",
        )
    by_helm = [crd for crd in definitions if crd.labels.get(LABEL_MANAGED_BY) == "Helm"]
    kept = names.KEPT_BY_HELM.items()
    if unkept := [crd.name for crd in by_helm if not kept <= crd.annotations.items()]:
        return warn(
            f"helm uninstall would delete CRDs and all their objects: {some(unkept)}",
            'see "Charts without the annotation" in manifests/README.md',
        )
    return ok(f"{count(len(definitions), 'CustomResourceDefinition')}, none is being deleted")


async def classes(case: Case) -> CheckFinding:
    """Check that VMs can be created from the MachineClasses."""
    if not provider.is_startable(case, MANIFEST):
        return ok(_OFF)
    resolved, faults = await _classes(case), dict[str, str]()
    settings = MachineSettings(names=NAMES, has_target=case.options.target_kubeconfig != NO_TARGET)
    has_tokens = await _may_write_tokens(case)
    for obj, view in resolved:
        if reasons := view.faults or driver_faults(obj):
            faults[obj.name] = redact.mask_text("; ".join(reasons))
        elif not has_tokens and needs_token(view, settings):
            faults[obj.name] = f"the daemon may not write bootstrap tokens; {tokens.GRANT}"
    if not faults:
        return ok(f"{count(len(resolved), 'MachineClass', 'MachineClasses')}, none is invalid")
    return fail(
        f"no VM can be created from {some(list(faults))}",
        "correct the class or its Secret; the daemon then retries its Machines at once",
        details=[f"{name}: {why}" for name, why in faults.items()],
    )


async def _may_write_tokens(case: Case) -> bool:
    """Return whether the daemon may write bootstrap tokens; True if access reviews are refused."""
    wanted = [
        need
        for need in permissions.needed_permissions(case.options)
        if need.optional and not need.cluster
    ]
    try:
        return all(
            [
                await permissions.is_allowed(
                    case.client, need, permissions.reviewed_user(case, need)
                )
                for need in wanted
            ]
        )
    except (Forbidden, WriteRefused):
        return True


async def vms(case: Case) -> CheckFinding:
    """Compare the VMs that the cloud lists with the Machines."""
    if not provider.is_startable(case, MANIFEST):
        return ok(_OFF)
    namespace = case.options.namespace
    try:
        everywhere: Sequence[Machine] | None = await _objects(case, MACHINES, "")
    except Forbidden:
        everywhere = None
    machines = await _machines(case) if everywhere is None else everywhere
    comparison = _Comparison(
        cluster=case.options.cluster_id or await _marker(case),
        namespace=namespace,
        machines=[machine for machine in machines if namespace in ("", machine.metadata.namespace)],
        all_machines=everywhere,
        handle=CloudClient(case.cloud),
        adopts_unmarked=case.options.adopt_unmarked_machines,
    )
    unlisted = dict[str, str]()
    for _, machine_class in await _classes(case):
        if not machine_class.faults:
            try:
                await comparison.add(machine_class)
            except errors.CloudError as error:
                unlisted[machine_class.name] = redact.mask_text(str(error))
    troubles = comparison.troubles()
    if not troubles and not unlisted:
        seen = count(comparison.listed_count, "VM")
        return ok(f"{seen}, each belongs to a Machine or to another cluster")
    message = "; ".join(text for text, _ in troubles) or "not all VMs can be listed"
    advice = [text for _, text in troubles]
    if unlisted:
        advice.append("check the credentials in the Secrets of these classes, and the cloud")
    details = [f"VMs of class {name} cannot be listed: {why}" for name, why in unlisted.items()]
    is_failure = comparison.missing_vms or comparison.not_owned or unlisted
    return (fail if is_failure else warn)(message, *advice, details=details)


@dataclass(slots=True, kw_only=True)
class _Comparison:
    """Comparison of the VMs in the cloud with the Machines.

    Attributes:
        cluster: value of the cluster tag on this cluster's VMs.
        namespace: namespace of the daemon's Machines.
        machines: all Machines in `namespace`.
        all_machines: Machines in all namespaces; None = no permission to list them.
        handle: client for cloud calls.
        adopts_unmarked: value of `--adopt-unmarked-machines`.
        listed_count: number of listed VMs.
        missing_vms: Machines whose VMs do not exist, with their provider IDs.
        not_owned: Machines whose provider ID names a VM of another owner, with the reason.
        ownerless: VMs of this cluster, by their cluster tag, that no Machine owns.
        unconfirmed: VMs like those in `ownerless`, but without a namespace tag, while there is no
            permission to list Machines of other namespaces.
        unmarked: VMs without a cluster tag that no Machine owns.
    """

    cluster: str
    namespace: str
    machines: Sequence[Machine]
    all_machines: Sequence[Machine] | None
    handle: CloudClient
    adopts_unmarked: bool = False
    listed_count: int = 0
    missing_vms: list[str] = field(default_factory=list)
    not_owned: list[str] = field(default_factory=list)
    ownerless: list[str] = field(default_factory=list)
    unconfirmed: list[str] = field(default_factory=list)
    unmarked: list[str] = field(default_factory=list)

    async def add(self, machine_class: ResolvedClass) -> None:
        """Add the VMs of one MachineClass. Raises CloudError if the VMs cannot be listed."""
        request = ListMachinesRequest(
            cluster=self.cluster,
            pool=machine_class.name,
            provider_spec=machine_class.provider_spec,
            credentials=machine_class.credentials,
        )
        records = await self.handle.call(MachineDriver.list_machines, request)
        self.listed_count += len(records)
        owners = orphans.Owners(self.machines if self.all_machines is None else self.all_machines)
        for record in records:
            marks = record.identity
            is_foreign = marks.cluster not in ("", self.cluster)
            if owners.owns(record) or is_foreign or marks.namespace not in ("", self.namespace):
                continue
            target = self.ownerless if marks.cluster else self.unmarked
            if marks.cluster and not marks.namespace and self.all_machines is None:
                target = self.unconfirmed
            target.append(f"{record.info.provider_id} ({marks.name})")
        # A listing may be incomplete, so each missing VM is looked up with a single call.
        listed = {item.info.provider_id for item in records}
        unseen = [
            item
            for item in self.machines
            if item.class_name == machine_class.name
            and item.provider_id
            and item.provider_id not in listed
        ]

        async def check_vm(machine: Machine) -> None:
            request = MachineRequest(
                identity=MachineSettings(names=NAMES, cluster=self.cluster).identity(machine),
                provider_spec=machine_class.provider_spec,
                credentials=machine_class.credentials,
                provider_id=machine.provider_id,
                is_imported=machine.provider_id in machine_class.imports,
                adopts_unmarked=self.adopts_unmarked,
            )
            try:
                await self.handle.call(MachineDriver.get_machine_status, request)
            except errors.NotFound:
                self.missing_vms.append(f"{machine.key} ({machine.provider_id})")
            except errors.NotOwned as error:
                self.not_owned.append(f"{machine.key}: {error}")
            except errors.CloudError:
                return  # the VM may exist

        await run_bounded(unseen[:MAX_SINGLE_LOOKUPS], check_vm, limit=CONCURRENCY, name="machines")

    def troubles(self) -> Sequence[tuple[str, str]]:
        """Return pairs of problem and advice."""
        ours = "of this cluster without"
        table = (
            (sorted(self.missing_vms), "Machine", "without VM", _LOST),
            (sorted(self.not_owned), "Machine", "with the VM of another owner", _DISOWNED),
            (self.ownerless, "VM", f"{ours} Machine", _RESTORE),
            (
                self.unconfirmed,
                "VM",
                f"{ours} namespace, and without Machine in {self.namespace}",
                _ASK,
            ),
            (self.unmarked, "VM", "without a cluster tag", _LEAVE),
        )
        return [
            (f"{count(len(of), noun)} {text}: {some(of)}", advice)
            for of, noun, text, advice in table
            if of
        ]


async def _marker(case: Case) -> str:
    """Return the value of the cluster tag for a daemon without `--cluster-id`."""
    control, target = await reach.client_of_role(case, CONTROL), None
    if case.options.target_kubeconfig != NO_TARGET:
        target = await reach.client_of_role(case, TARGET)
    return await marker(control, target, case.options.namespace)


async def _machines(case: Case) -> Sequence[Machine]:
    objects = await _objects(case, MACHINES, case.options.namespace)
    return sorted(objects, key=lambda machine: machine.key)


async def _classes(case: Case) -> Sequence[tuple[MachineClass, ResolvedClass]]:
    where = case.options.namespace
    secrets: Mapping[str, Any] = {obj.key: obj for obj in await _objects(case, SECRETS, where)}
    return [
        (
            obj,
            resolve(
                obj,
                lambda space, name: secrets.get(f"{space}/{name}"),
                providers=case.cloud.machine_providers,
            ),
        )
        for obj in await _objects(case, MACHINE_CLASSES, where)
    ]


async def _objects(case: Case, kind: ResourceKind[Any], namespace: str) -> Sequence[Any]:
    client = await reach.client_of_role(case, CONTROL)
    pages = client.resource(kind).pages(namespace=namespace)
    return [obj async for page in pages for obj in page.items]
