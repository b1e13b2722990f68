"""Checks of Machines, their CRDs, classes and provider specs, and the ownership of VMs.

Most checks take the API group of the Machines. A check passes if the controller for Machines of
that API group does not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ccm.app.machineapis import GARDENER, KUBERMATIC, MachineApi
from ccm.base import redact
from ccm.base.tasks import run_bounded
from ccm.cloud import errors
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.machines import (
    ListMachinesRequest,
    MachineDriver,
    MachineRequest,
)
from ccm.doctor import permissions, provider, reach
from ccm.doctor.case import Case, CheckFinding, count, fail, get_field, ok, read, some, warn, which
from ccm.gardener.names import KEPT_BY_HELM
from ccm.kube.errors import Forbidden, NotFound, WriteRefused
from ccm.kube.resources import CONFIG_MAPS, CRDS, SECRETS, ResourceKind
from ccm.machines import crdguard, discovery, orphans, tokens
from ccm.machines.caches import marker
from ccm.machines.classes import ResolvedClass, driver_faults, resolve
from ccm.machines.creation import needs_token
from ccm.machines.flags import NO_TARGET, TARGET
from ccm.machines.settings import MachineSettings
from ccm.model import CustomResourceDefinition
from ccm.model.machines import Machine, MachineClass, OperationState, Phase
from ccm.model.names import ANNOTATION_ALLOW_DELETION, LABEL_MANAGED_BY
from ccm.model.owners import controller_key

MAX_SINGLE_LOOKUPS = 50
"""Maximum number of Machines, per MachineClass, whose VMs are looked up by single calls."""

CONCURRENCY = 8

_TROUBLED = (Phase.CRASH_LOOP, Phase.FAILED, Phase.UNKNOWN)
_RESTORE = (
    "if Machines were lost, restore them now: the machine safety controller deletes VMs that have "
    "no owner in two checks and are older than an hour"
)
_REMOVE = (
    "if Machines were lost, restore them; otherwise delete these VMs with the tools of the cloud, "
    "as the daemon does not delete them"
)
_LEAVE = (
    "nothing to do: the daemon ignores these VMs; --adopt-unmarked-machines adopts those that "
    "another manager created for existing Machines with a MachineClass"
)
_ASK = (
    "the daemon ignores these VMs, because Machines of other namespaces may own them; to delete "
    "orphans, permit its account to list machines in all namespaces"
)
_LOST = "delete these Machines: the daemon does not create their VMs again"
_DISOWNED = "correct spec.providerID of these Machines"
_OFF = "the machine controller is disabled; see the finding controllers"


async def machines(case: Case, api: MachineApi = GARDENER) -> CheckFinding:
    """Check that the CRDs are installed, and report unhealthy Machines."""
    if not provider.is_startable(case, api.manifest):
        return ok(_OFF)
    codec = api.codec
    group = codec.machines.api_version
    known = await discovery.fetch_plurals(await reach.client_of_role(case, api.role), group)
    needed = (codec.machines, codec.machine_classes or codec.machine_sets)
    if missing := [kind.plural for kind in needed if kind.plural not in known]:
        return fail(
            f"CRDs not installed: {' and '.join(missing)} of {group}",
            f"kubectl apply -f {codec.manifest}; the daemon retries automatically",
        )
    all_machines = await _machines(case, api)
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
        f"run kube-ccm explain {api.title(codec.machines).lower()} NAMESPACE/NAME for the cause",
        details=[
            f"{item.key}: {item.phase.value}: {redact.mask_text(codec.failure(item)[1])}"
            for item in bad
        ],
    )


async def crds(case: Case, api: MachineApi = GARDENER) -> CheckFinding:
    """Check the CRDs: their versions, and their protection from deletion.

    The deletion of a CRD deletes all objects of its kind.
    """
    if not provider.is_startable(case, api.manifest):
        return ok(_OFF)
    client = await reach.client_of_role(case, api.role)
    definitions, unfit = list[CustomResourceDefinition](), list[str]()
    for wanted in api.definitions:
        name = crdguard.crd_name(wanted.kind)
        try:
            body = await read(client, f"/apis/{CRDS.api_version}/{CRDS.plural}/{name}")
        except NotFound:
            continue
        except Forbidden:
            # The daemon's account can read only the CRDs of the kinds that the daemon deletes.
            if wanted.kind is not api.codec.machine_classes:
                raise
            continue
        definitions.append(msgspec.convert(body, CustomResourceDefinition))
        if wanted.kind is not api.codec.machine_classes and not any(
            version.get("name") == wanted.kind.version
            and (get_field(version, "subresources.status") is not None) is wanted.has_status
            for version in get_field(body, "spec.versions") or ()
        ):
            unfit.append(name)
    if deleted := [crd for crd in definitions if crd.is_deleting]:
        return fail(
            f"being deleted, with all their objects: {some([crd.name for crd in deleted])}",
            'do not change the daemon: it blocks the deletion of the VMs; then see "A deleted '
            'CustomResourceDefinition" in manifests/README.md',
            details=[f"{crd.name}: since {crd.metadata.deletion_timestamp}" for crd in deleted],
        )
    if unfit:
        return fail(
            f"version or status subresource differs from {api.codec.manifest}: {some(unfit)}",
            f"kubectl apply -f {api.codec.manifest}; until then, statuses are not stored",
        )
    if allowing := [crd.name for crd in definitions if crd.allows_deletion]:
        return warn(
            f"{some(allowing)}: because of the annotation {ANNOTATION_ALLOW_DELETION}, deleting "
            "the CRD deletes all VMs",
            "remove the annotation, unless this is intended",
        )
    by_helm = [crd for crd in definitions if crd.labels.get(LABEL_MANAGED_BY) == "Helm"]
    kept = KEPT_BY_HELM.items()
    if unkept := [crd.name for crd in by_helm if not kept <= crd.annotations.items()]:
        return warn(
            f"helm uninstall would delete CRDs and all their objects: {some(unkept)}",
            'see "Charts without the annotation" in manifests/README.md',
        )
    former = api.former_group
    if former and await discovery.fetch_plurals(client, former):
        return warn(
            f"Machines of the former API group {former} are ignored",
            "let Kubermatic's machine-controller convert them: it does so at its start, and then "
            f"deletes the CRD {api.codec.machines.plural}.{former.partition('/')[0]}",
        )
    return ok(f"{count(len(definitions), 'CustomResourceDefinition')}, none is being deleted")


async def classes(case: Case) -> CheckFinding:
    """Check that VMs can be created from the MachineClasses."""
    if not provider.is_startable(case, GARDENER.manifest):
        return ok(_OFF)
    resolved, faults = await _classes(case, GARDENER), dict[str, str]()
    settings = MachineSettings(
        names=GARDENER.codec.names, has_target=case.options.target_kubeconfig != NO_TARGET
    )
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


async def specs(case: Case) -> CheckFinding:
    """Check that each Machine of Kubermatic has a provider of this daemon, and its user data."""
    api, codec = KUBERMATIC, KUBERMATIC.codec_of(case.options)
    if not provider.is_startable(case, api.manifest):
        return ok(_OFF)
    providers = sorted(api.view(case.cloud).machine_providers)
    served = set(map(str.casefold, providers))
    sets = {obj.key: obj for obj in await _objects(case, api, codec.machine_sets)}
    secrets = {
        obj.name: obj for obj in await _objects(case, api, SECRETS, codec.user_data_namespace)
    }
    foreign, waiting = list[str](), dict[str, str]()
    for machine in await _machines(case, api):
        name = machine.own_class.provider if machine.own_class is not None else ""
        if machine.is_deleting or codec.is_ignored(machine):
            continue
        if name and name.casefold() not in served:
            foreign.append(f"{machine.key} ({name})")
        elif not (machine.provider_id or machine.node_name):
            owner = sets.get(controller_key(machine, codec.machine_sets.kind))
            try:
                if codec.user_data(machine, owner, secrets.get) is None:
                    waiting[machine.key] = "the Secret with its user data is missing"
            except (errors.InvalidArgument, errors.Unavailable) as error:
                waiting[machine.key] = str(error)
    troubles, advice = list[str](), list[str]()
    if foreign:
        many = count(len(foreign), "Machine")
        troubles.append(f"{many} of a provider that this daemon does not serve: {some(foreign)}")
        advice.append(
            "nothing to do if another program serves them; otherwise set cloudProvider in the "
            f"template of their MachineDeployment to {' or '.join(providers)}"
        )
    if waiting:
        troubles.append(f"{count(len(waiting), 'Machine')} without user data: {some([*waiting])}")
        advice.append(
            "check the operating-system-manager: it writes the Secrets in the namespace "
            f"{codec.user_data_namespace}"
        )
    if not troubles:
        return ok("each Machine has a provider that this daemon serves, and its user data")
    details = [f"{key}: {why}" for key, why in waiting.items()]
    return warn("; ".join(troubles), *advice, details=details)


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


async def vms(case: Case, api: MachineApi = GARDENER) -> CheckFinding:
    """Compare the VMs that the cloud lists with the Machines."""
    if not provider.is_startable(case, api.manifest):
        return ok(_OFF)
    namespace = api.namespace(case.options)
    try:
        everywhere: Sequence[Machine] | None = await _objects(case, api, api.codec.machines, "")
    except Forbidden:
        everywhere = None
    machines = await _machines(case, api) if everywhere is None else everywhere
    comparison = _Comparison(
        api=api,
        cluster=case.options.cluster_id or await vm_marker(case, api),
        namespace=namespace,
        machines=[machine for machine in machines if namespace in ("", machine.metadata.namespace)],
        all_machines=everywhere,
        handle=CloudClient(api.view(case.cloud)),
        adopts_unmarked=case.options.adopt_unmarked_machines,
    )
    unlisted, has_classes = dict[str, str](), api.codec.machine_classes is not None
    for obj, machine_class in await _classes(case, api):
        if not machine_class.faults:
            try:
                await comparison.add(machine_class)
            except errors.CloudError as error:
                owner = f"spec.providerSpec of Machine {obj.source.key}"
                if has_classes:
                    owner = f"class {obj.name}"
                unlisted[owner] = redact.mask_text(str(error))
    troubles = comparison.troubles()
    if not troubles and not unlisted:
        seen = count(comparison.listed_count, "VM")
        return ok(f"{seen}, each belongs to a Machine or to another cluster")
    message = "; ".join(text for text, _ in troubles) or "not all VMs can be listed"
    advice = [text for _, text in troubles]
    if unlisted:
        where = "the Secrets of these classes"
        if not has_classes:
            where = "spec.providerSpec.value of these Machines"
        advice.append(f"check the credentials in {where}, and the cloud")
    details = [f"VMs of {owner} cannot be listed: {why}" for owner, why in unlisted.items()]
    is_failure = comparison.missing_vms or comparison.not_owned or unlisted
    return (fail if is_failure else warn)(message, *advice, details=details)


@dataclass(slots=True, kw_only=True)
class _Comparison:
    """Comparison of the VMs in the cloud with the Machines.

    Attributes:
        api: API group of the Machines.
        cluster: value of the cluster tag on this cluster's VMs.
        namespace: namespace of the daemon's Machines.
        machines: all Machines in `namespace`.
        all_machines: Machines in all namespaces; None = no permission to list them.
        handle: client for cloud calls.
        adopts_unmarked: value of `--adopt-unmarked-machines`.
        listed_count: number of listed VMs.
        missing_vms: Machines whose VMs do not exist, with their provider IDs.
        not_owned: Machines whose provider ID names a VM of another owner, with the reason.
        ownerless: VMs with the cluster tag of this cluster that no Machine owns.
        unconfirmed: VMs like those in `ownerless`, but without a namespace tag: Machines of other
            namespaces, which cannot be listed, may own them.
        unmarked: VMs that have no cluster tag and that no Machine owns.
    """

    api: MachineApi
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
        try:
            records = await self.handle.call(MachineDriver.list_machines, request)
        except errors.Unimplemented:
            records = ()
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

        settings = MachineSettings(names=self.api.codec.names, cluster=self.cluster)

        async def check_vm(machine: Machine) -> None:
            request = MachineRequest(
                identity=settings.identity(machine),
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
        ours = "of this cluster without a"
        table = (
            (sorted(self.missing_vms), "Machine", "without a VM", _LOST),
            (sorted(self.not_owned), "Machine", "with the VM of another owner", _DISOWNED),
            (
                self.ownerless,
                "VM",
                f"{ours} Machine",
                _RESTORE if self.api.deletes_orphans else _REMOVE,
            ),
            (
                self.unconfirmed,
                "VM",
                f"{ours} namespace tag, and without a Machine in {self.namespace}",
                _ASK,
            ),
            (self.unmarked, "VM", "without a cluster tag", _LEAVE),
        )
        return [
            (f"{count(len(of), noun)} {text}: {some(of)}", advice)
            for of, noun, text, advice in table
            if of
        ]


async def vm_marker(case: Case, api: MachineApi) -> str:
    """Return the value of the cluster tag for a daemon without `--cluster-id`."""
    control, target = await reach.client_of_role(case, api.role), None
    if not api.role:
        target = control
    elif case.options.target_kubeconfig != NO_TARGET:
        target = await reach.client_of_role(case, TARGET)
    return await marker(control, target, api.namespace(case.options))


async def _machines(case: Case, api: MachineApi) -> Sequence[Machine]:
    objects = await _objects(case, api, api.codec.machines)
    return sorted(objects, key=lambda machine: machine.key)


async def _classes(case: Case, api: MachineApi) -> Sequence[tuple[MachineClass, ResolvedClass]]:
    """Return all classes, each with its resolved form.

    In an API group without class objects, Machines contain their class; all Machines of a
    MachineSet contain the same class.
    """
    secrets: Mapping[str, Any] = {obj.key: obj for obj in await _objects(case, api, SECRETS)}
    maps: Mapping[str, Any] = {}
    if (kind := api.codec.machine_classes) is not None:
        classes = await _objects(case, api, kind)
    else:
        maps = {obj.key: obj for obj in await _objects(case, api, CONFIG_MAPS)}
        own = (machine.own_class for machine in await _machines(case, api))
        classes = list({obj.key: obj for obj in own if obj is not None}.values())
    return [
        (
            obj,
            resolve(
                obj,
                lambda space, name: secrets.get(f"{space}/{name}"),
                config_map=lambda space, name: maps.get(f"{space}/{name}"),
                providers=api.view(case.cloud).machine_providers,
            ),
        )
        for obj in classes
    ]


async def _objects(
    case: Case, api: MachineApi, kind: ResourceKind[Any], namespace: str | None = None
) -> Sequence[Any]:
    """Return the objects in a namespace; None = the namespace of the Machines."""
    client = await reach.client_of_role(case, api.role)
    where = api.namespace(case.options) if namespace is None else namespace
    pages = client.resource(kind).pages(namespace=where)
    return [obj async for page in pages for obj in page.items]
