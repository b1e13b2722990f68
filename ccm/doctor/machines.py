"""Machines: whether they can be had, their classes, how each is, and whose the VMs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccm.app.machinecontrollers import MACHINE as MANIFEST
from ccm.base import redact
from ccm.base.tasks import bounded
from ccm.cloud import errors
from ccm.cloud.calls.handle import Handle
from ccm.cloud.machines import ListMachinesRequest, MachineDriver, MachineRequest
from ccm.doctor import provider, reach, rights
from ccm.doctor.case import Case, Finding, count, fail, ok, some, warn, which
from ccm.gardener import names
from ccm.gardener.codec import MACHINE_CLASSES, MACHINE_DEPLOYMENTS, MACHINE_SETS, MACHINES
from ccm.gardener.decoding import NAMES
from ccm.kube.errors import Forbidden, NotFound, WriteRefused
from ccm.kube.resources import CRDS, SECRETS, Kind
from ccm.machines import crdguard, orphans, served, tokens
from ccm.machines.caches import marker
from ccm.machines.classes import ResolvedClass, refusals, resolve
from ccm.machines.creation import needs_token
from ccm.machines.flags import CONTROL, NO_TARGET, TARGET
from ccm.machines.settings import Settings
from ccm.model import CustomResourceDefinition
from ccm.model.machines import Machine, MachineClass, OperationState, Phase
from ccm.model.names import ANNOTATION_ALLOW_DELETION, LABEL_MANAGED_BY

MOST_ASKED = 50
"""Machines about each of which the cloud is asked, where a listing lacks their VMs."""

CONCURRENCY = 8

_TROUBLED = (Phase.CRASH_LOOP, Phase.FAILED, Phase.UNKNOWN)
_RESTORE = (
    "if Machines were lost, restore them now: the machine safety controller deletes what it finds "
    "ownerless twice and older than an hour"
)
_LEAVE = (
    "nothing, they are left alone; those that another manager made for these Machines are taken "
    "over with --adopt-unmarked-machines"
)
_ASK = (
    "Machines of other namespaces may own them: they are left alone; the daemon deletes orphans "
    "among them once its account may list machines in all namespaces"
)
_LOST = "delete a Machine whose VM is gone: none is made again for it"
_DISOWNED = "correct spec.providerID of these"
_OFF = "no Machines are wanted: --controllers names no machine controller"


async def machines(case: Case) -> Finding:
    """See whether there can be Machines, and how each is."""
    if not provider.works(case, MANIFEST):
        return ok(_OFF)
    known = await served.resources(await reach.at(case, CONTROL), MACHINES.api_version)
    if missing := [one.plural for one in (MACHINES, MACHINE_CLASSES) if one.plural not in known]:
        return fail(
            f"the API server does not know {' and '.join(missing)} of {MACHINES.api_version}",
            "kubectl apply -f manifests/crds.yaml; the daemon goes on by itself then",
        )
    every = await _machines(case)
    bad = [
        one
        for one in every
        if (
            one.status.state == OperationState.FAILED.value
            if one.is_deleting
            else one.phase in _TROUBLED
        )
    ]
    if not bad:
        return ok(f"{count(len(every), 'Machine')}, none is in trouble")
    return warn(
        f"{which(len(bad), len(every), 'Machine', 'is', 'are')} in trouble: "
        f"{some([one.key for one in bad])}",
        "kube-ccm explain machine NAMESPACE/NAME says of each what keeps it",
        details=[
            f"{one.key}: {one.phase.value}: {redact.words(one.status.description)}" for one in bad
        ],
    )


async def crds(case: Case) -> Finding:
    """See whether the CRDs of Machines stay, and with them all Machines."""
    if not provider.works(case, MANIFEST):
        return ok(_OFF)
    client = await reach.at(case, CONTROL)
    found = list[CustomResourceDefinition]()
    for kind in (MACHINES, MACHINE_SETS, MACHINE_DEPLOYMENTS, MACHINE_CLASSES):
        try:
            found.append(await client.resource(CRDS).get(crdguard.name_of(kind)))
        except NotFound:
            continue
        except Forbidden:
            # The daemon's own account may read those only whose objects it deletes.
            if kind is not MACHINE_CLASSES:
                raise
    if deleted := [one for one in found if one.is_deleting]:
        return fail(
            f"being deleted, with all their objects: {some([one.name for one in deleted])}",
            'keep the daemon as it is: it deletes no VM for that; then "A deleted '
            'CustomResourceDefinition" in manifests/README.md',
            details=[f"{one.name}: since {one.metadata.deletion_timestamp}" for one in deleted],
        )
    if allowing := [one.name for one in found if one.allows_deletion]:
        return warn(
            f"{some(allowing)}: if it is deleted, all VMs are, by its annotation "
            f"{ANNOTATION_ALLOW_DELETION}",
            "take the annotation away, unless that is what you want",
        )
    by_helm = [one for one in found if one.labels.get(LABEL_MANAGED_BY) == "Helm"]
    kept = names.KEPT_BY_HELM.items()
    if unkept := [one.name for one in by_helm if not kept <= one.annotations.items()]:
        return warn(
            f"helm uninstall would delete all Machines, with {some(unkept)}",
            'see "From a chart that does not keep them" in manifests/README.md',
        )
    return ok(f"{count(len(found), 'CustomResourceDefinition')}, none is being deleted")


async def classes(case: Case) -> Finding:
    """See whether VMs can be made of the MachineClasses."""
    if not provider.works(case, MANIFEST):
        return ok(_OFF)
    found, faults = await _classes(case), dict[str, str]()
    settings = Settings(names=NAMES, has_target=case.options.target_kubeconfig != NO_TARGET)
    has_tokens = await _may_write_tokens(case)
    for obj, view in found:
        if told := view.faults or refusals(obj):
            faults[obj.name] = redact.words("; ".join(told))
        elif not has_tokens and needs_token(view, settings):
            faults[obj.name] = f"the daemon may not write bootstrap tokens; {tokens.GRANT}"
    if not faults:
        return ok(f"VMs can be made of {count(len(found), 'MachineClass', 'MachineClasses')}")
    return fail(
        f"no VM can be made of {some(list(faults))}",
        "correct the class or its Secret as it says; its Machines are tried again at once then",
        details=[f"{name}: {why}" for name, why in faults.items()],
    )


async def _may_write_tokens(case: Case) -> bool:
    """Whether the daemon may write bootstrap tokens; True where that cannot be asked."""
    wanted = [one for one in rights.needs(case.options) if one.optional and not one.cluster]
    try:
        return all(
            [await rights.allowed(case.client, one, rights.subject(case, one)) for one in wanted]
        )
    except (Forbidden, WriteRefused):
        return True


async def vms(case: Case) -> Finding:
    """Compare the VMs that the cloud lists with the Machines."""
    if not provider.works(case, MANIFEST):
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
        machines=[one for one in machines if namespace in ("", one.metadata.namespace)],
        everywhere=everywhere,
        handle=Handle(case.cloud),
        adopts_unmarked=case.options.adopt_unmarked_machines,
    )
    unlisted = dict[str, str]()
    for _, made_of in await _classes(case):
        if not made_of.faults:
            try:
                await comparison.add(made_of)
            except errors.CloudError as error:
                unlisted[made_of.name] = redact.words(str(error))
    troubles = comparison.troubles()
    if not troubles and not unlisted:
        seen = count(comparison.seen, "VM")
        return ok(f"{seen}, each belongs to a Machine or to another cluster")
    found = "; ".join(text for text, _ in troubles) or "not all VMs can be listed"
    advice = [text for _, text in troubles]
    if unlisted:
        advice.append("look at the credentials in the Secrets of these classes, and the cloud")
    details = [f"class {name} cannot be listed: {why}" for name, why in unlisted.items()]
    is_failure = comparison.lost or comparison.disowned or unlisted
    return (fail if is_failure else warn)(found, *advice, details=details)


@dataclass(slots=True, kw_only=True)
class _Comparison:
    """VMs beside Machines.

    Attributes:
        cluster: the marker of this cluster's VMs.
        namespace: of our Machines.
        machines: all of that namespace.
        everywhere: those of all namespaces; None: they may not be read.
        handle: the way to the driver.
        adopts_unmarked: the flag `--adopt-unmarked-machines`.
        seen: VMs that were listed.
        lost: keys of Machines whose VMs are gone.
        disowned: Machines whose provider ID names a VM that is not theirs, and why.
        ownerless: VMs with our marker and no Machine.
        unconfirmed: as `ownerless`, without a namespace, while no other namespace may be read.
        unmarked: VMs without a marker and no Machine.
    """

    cluster: str
    namespace: str
    machines: Sequence[Machine]
    everywhere: Sequence[Machine] | None
    handle: Handle
    adopts_unmarked: bool = False
    seen: int = 0
    lost: list[str] = field(default_factory=list)
    disowned: list[str] = field(default_factory=list)
    ownerless: list[str] = field(default_factory=list)
    unconfirmed: list[str] = field(default_factory=list)
    unmarked: list[str] = field(default_factory=list)

    async def add(self, made_of: ResolvedClass) -> None:
        """Compare the VMs of one class. Raises CloudError if they cannot be listed."""
        request = ListMachinesRequest(
            cluster=self.cluster,
            pool=made_of.name,
            provider_spec=made_of.provider_spec,
            credentials=made_of.credentials,
        )
        records = await self.handle.call(MachineDriver.list_machines, request)
        self.seen += len(records)
        owners = orphans.Owners(self.machines if self.everywhere is None else self.everywhere)
        for record in records:
            marks = record.identity
            is_foreign = marks.cluster not in ("", self.cluster)
            if owners.has(record) or is_foreign or marks.namespace not in ("", self.namespace):
                continue
            of = self.ownerless if marks.cluster else self.unmarked
            if marks.cluster and not marks.namespace and self.everywhere is None:
                of = self.unconfirmed
            of.append(f"{record.info.provider_id} ({marks.name})")
        # An absence in a listing is never believed: the cloud is asked about each VM.
        listed = {one.info.provider_id for one in records}
        unseen = [
            one
            for one in self.machines
            if one.class_name == made_of.name and one.provider_id and one.provider_id not in listed
        ]

        async def look(machine: Machine) -> None:
            request = MachineRequest(
                identity=Settings(names=NAMES, cluster=self.cluster).identity(machine),
                provider_spec=made_of.provider_spec,
                credentials=made_of.credentials,
                provider_id=machine.provider_id,
                is_imported=machine.provider_id in made_of.imports,
                adopts_unmarked=self.adopts_unmarked,
            )
            try:
                await self.handle.call(MachineDriver.get_machine_status, request)
            except errors.NotFound:
                self.lost.append(f"{machine.key} ({machine.provider_id})")
            except errors.NotOwned as error:
                self.disowned.append(f"{machine.key}: {error}")
            except errors.CloudError:
                return  # it says nothing about the VM

        await bounded(unseen[:MOST_ASKED], look, limit=CONCURRENCY, name="machines")

    def troubles(self) -> Sequence[tuple[str, str]]:
        """Return what is wrong, each with advice."""
        ours = "of this cluster without"
        table = (
            (sorted(self.lost), "Machine", "without VM", _LOST),
            (sorted(self.disowned), "Machine", "with the VM of another", _DISOWNED),
            (self.ownerless, "VM", f"{ours} Machine", _RESTORE),
            (
                self.unconfirmed,
                "VM",
                f"{ours} namespace, and without Machine in {self.namespace}",
                _ASK,
            ),
            (self.unmarked, "VM", "without any marker", _LEAVE),
        )
        return [
            (f"{count(len(of), noun)} {text}: {some(of)}", advice)
            for of, noun, text, advice in table
            if of
        ]


async def _marker(case: Case) -> str:
    """Return the marker of a cluster that was given none."""
    control, target = await reach.at(case, CONTROL), None
    if case.options.target_kubeconfig != NO_TARGET:
        target = await reach.at(case, TARGET)
    return await marker(control, target, case.options.namespace)


async def _machines(case: Case) -> Sequence[Machine]:
    found = await _objects(case, MACHINES, case.options.namespace)
    return sorted(found, key=lambda one: one.key)


async def _classes(case: Case) -> Sequence[tuple[MachineClass, ResolvedClass]]:
    where = case.options.namespace
    secrets: Mapping[str, Any] = {one.key: one for one in await _objects(case, SECRETS, where)}
    return [
        (
            one,
            resolve(
                one,
                lambda space, name: secrets.get(f"{space}/{name}"),
                providers=case.cloud.machine_providers,
            ),
        )
        for one in await _objects(case, MACHINE_CLASSES, where)
    ]


async def _objects(case: Case, kind: Kind[Any], namespace: str) -> Sequence[Any]:
    client = await reach.at(case, CONTROL)
    pages = client.resource(kind).pages(namespace=namespace)
    return [one async for page in pages for one in page.items]
