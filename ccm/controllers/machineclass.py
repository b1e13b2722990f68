"""The machine class controller: finalizers of classes and Secrets in use, and a validity condition.

Classes and Secrets share one queue, whose keys begin with the kind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ccm.base import clock, log, redact
from ccm.cloud.errors import InvalidArgument
from ccm.cloud.machines import SpecValidation
from ccm.kube.resources import SECRETS
from ccm.machines import metrics, reasons
from ccm.machines.classes import ResolvedClass
from ccm.machines.driver import SharedComponents
from ccm.model import Secret
from ccm.model.machines import Condition, Machine, MachineClass
from ccm.model.meta import KubeObject
from ccm.model.names import STATUS_FALSE, STATUS_TRUE, WARNING
from ccm.model.patches import Patch, add_finalizer_patch, remove_finalizer_patch
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, Controller, ReconcileResult, Watch
from ccm.runtime.writer import ObjectWriter, PatchStep, Recorder

NAME = "machineclass-controller"
QUEUE_NAME = "machineclass"
BACK_OFF_CAP_S = 60.0
"""Maximum back-off of one object; client-go's 1000 s would delay a repaired object for too long."""

_CLASS, _SECRET = "MachineClass", "Secret"

Checked = tuple[Mapping[str, Any], str]
"""Provider spec, and digest of the credentials with which the driver validated the spec."""


class MachineClassController:
    """The machine class controller.

    Args:
        shared: components of all machine controllers; the caches are ready.
        events: recorder of events.
        rng: source of jitter.
    """

    def __init__(
        self, *, shared: SharedComponents, events: Recorder, rng: random.Random | None = None
    ) -> None:
        self._caches, self._driver = shared.caches, shared.driver
        self._names = shared.caches.settings.names
        self._codec, kind = shared.caches.codec, shared.caches.codec.machine_classes
        assert kind is not None
        self._kind = kind
        caches = shared.caches
        self._events = events
        self._log = log.logger(NAME)
        self._classes = caches.writer(kind, rng)
        secrets = caches.client.resource(SECRETS)
        self._secrets = ObjectWriter(secrets, cache=caches.secrets.store, rng=rng)
        self._checked: dict[str, Checked] = {}
        self._faults: dict[str, list[str] | None] = {}
        self._announced: dict[str, tuple[str, str]] = {}
        """Key of a class -> status and message of the last condition that was written or logged."""
        self._stores_status = True
        """False after the API server dropped a condition: Gardener's CRD of MachineClass has no
        field `status`, so further writes of conditions would have no effect."""
        self._status_writes = asyncio.Lock()
        """Held during the write of a condition: its response decides whether further writes have an
        effect."""
        self.controller = Controller(
            NAME,
            queue=QUEUE_NAME,
            reconcile=self.sync,
            workers=4,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            watches=[
                Watch(informer=caches.machines, changed=self._machine_changed),
                Watch(informer=caches.secrets, changed=self._secret_changed),
                Watch(informer=caches.classes, changed=self._class_changed),
            ],
            on_retry=self._retry,
            rng=rng,
        )

    async def sync(self, key: str) -> ReconcileResult:
        """Reconcile one class or one Secret.

        Raises:
            KubeError: a write failed.
            CloudError: the driver could not validate the spec.
        """
        kind, _, name = key.partition(" ")
        if kind == _SECRET:
            await self._sync_secret(name)
        else:
            await self._sync_class(name)
        return DONE

    async def _sync_class(self, key: str) -> None:
        cached = self._caches.classes.store.get(key)
        if cached is None:
            return
        obj = self._classes.newest(cached)

        def held(machine_class: MachineClass) -> Patch | None:
            machines = self._caches.machines
            # A Machine that cannot be decoded may use the class.
            if machines.malformed_keys and self._names.finalizer in machine_class.finalizers:
                return None
            is_used = any(
                machine.class_name == machine_class.name for machine in machines.store.list()
            )
            return _finalizer_patch(
                machine_class, self._names.finalizer, is_used=is_used, strategic=False
            )

        written = await self._classes.change(obj, PatchStep(held))
        if written.obj is not None and not written.obj.is_deleting:
            await self._validate(written.obj)

    async def _validate(self, obj: MachineClass) -> None:
        view = self._caches.resolve(obj)
        faults = await self._faults_of(obj.key, view)
        wanted = _condition(faults, clock.now())
        metrics.CLASSES_INVALID.set(sum(1 for faulty in self._faults.values() if faulty))

        if await self._write_condition(obj, wanted) and faults:
            self._log.warning("machine class invalid", key=obj.key, error=wanted.message)
            self._events.event(self._kind.reference(obj), WARNING, wanted.reason, wanted.message)

    async def _write_condition(self, obj: MachineClass, wanted: Condition) -> bool:
        """Write the condition of a class; return whether it changed.

        Raises:
            KubeError: the write failed.
        """
        async with self._status_writes:
            if _has_condition(obj, wanted.type):
                self._stores_status = True
            before = self._announced.get(obj.key)
            self._announced[obj.key] = wanted.status, wanted.message
            if not self._stores_status:
                return before != self._announced[obj.key]
            written = await self._classes.change(
                obj, PatchStep(lambda obj: self._condition_patch(obj, wanted))
            )
            if written.obj is not None and not _has_condition(written.obj, wanted.type):
                self._stores_status = False
                self._log.warning(
                    "MachineClass conditions not stored, reported by events and logs only",
                    key=obj.key,
                    condition=wanted.type,
                    advice="apply manifests/crds.yaml, then restart",
                )
            return written.changed

    async def _faults_of(self, key: str, view: ResolvedClass) -> list[str] | None:
        """Return the faults of a class; None = the driver does not validate specs.

        The driver validates a spec again only after spec or credentials changed.
        """
        if view.faults:
            self._checked.pop(key, None)
            self._faults[key] = list(view.faults)
        elif self._checked.get(key) != (asked := (view.provider_spec, view.credentials.digest)):
            self._faults[key] = await self._validate_spec(view)
            self._checked[key] = asked
        return self._faults[key]

    async def _validate_spec(self, view: ResolvedClass) -> list[str] | None:
        if not self._driver.caller.offers(SpecValidation):
            return None
        try:
            driver_faults = await self._driver.call(
                SpecValidation.validate_spec, view.provider_spec, view.credentials, True
            )
        except InvalidArgument as error:
            return [str(error)]
        return [str(fault) for fault in driver_faults]

    async def _sync_secret(self, key: str) -> None:
        cached = self._caches.secrets.store.get(key)
        if cached is None:
            return

        def held(secret: Secret) -> Patch | None:
            classes = self._caches.classes
            if classes.malformed_keys and self._names.secret_finalizer in secret.finalizers:
                return None
            is_used = bool(self._caches.classes_with_secret(secret.name))
            return _finalizer_patch(
                secret, self._names.secret_finalizer, is_used=is_used, strategic=True
            )

        await self._secrets.change(self._secrets.newest(cached), PatchStep(held))

    def _condition_patch(self, obj: MachineClass, wanted: Condition) -> Patch | None:
        known = {condition.type: condition for condition in obj.conditions}
        before = known.get(wanted.type)
        if before is not None and replace(before, since=None) == replace(wanted, since=None):
            return None
        known[wanted.type] = wanted.after(before)
        return self._codec.class_conditions_patch(obj, known.values())

    def _retry(self) -> None:
        """Validate all classes again, because the provider was replaced."""
        self._checked.clear()
        for machine_class in self._caches.classes.store.list():
            self._add(_CLASS, machine_class.key)

    # --- the caches ---------------------------------------------------------------------------

    def _machine_changed(self, old: Machine | None, new: Machine | None, _: bool) -> bool:
        used = [
            (machine.namespace, machine.class_name) for machine in (old, new) if machine is not None
        ]
        if len(used) == 1 or used[0] != used[1]:
            for namespace, name in used:
                self._add(_CLASS, f"{namespace}/{name}")
        return False

    def _class_changed(self, old: MachineClass | None, new: MachineClass | None, _: bool) -> bool:
        for version in filter(None, (old, new)):
            for _namespace, name in version.secrets:
                self._add(_SECRET, f"{version.namespace}/{name}")
        if new is not None:
            self._add(_CLASS, new.key)
        elif old is not None:
            self._forget(old)
        return False

    def _secret_changed(self, old: Secret | None, new: Secret | None, _: bool) -> bool:
        changed = new or old
        if changed is not None:
            self._add(_SECRET, changed.key)
            for machine_class in self._caches.classes_with_secret(changed.name):
                self._add(_CLASS, machine_class.key)
        if new is None and old is not None:
            self._secrets.forget(old.key)
        return False

    def _forget(self, gone: MachineClass) -> None:
        self._classes.forget(gone.key)
        self._checked.pop(gone.key, None)
        self._faults.pop(gone.key, None)
        self._announced.pop(gone.key, None)
        metrics.CLASSES_INVALID.set(sum(1 for faulty in self._faults.values() if faulty))

    def _add(self, kind: str, key: str) -> None:
        self.controller.queue.add(f"{kind} {key}")


def _finalizer_patch(
    obj: KubeObject, finalizer: str, *, is_used: bool, strategic: bool
) -> Patch | None:
    """Return the patch that adds or removes the finalizer; None = up to date.

    Only objects in use have the finalizer.
    """
    if not is_used:
        return remove_finalizer_patch(obj, finalizer, strategic=strategic)
    # The API server rejects new finalizers on an object that is being deleted.
    return None if obj.is_deleting else add_finalizer_patch(obj, finalizer, strategic=strategic)


def _condition(faults: Sequence[str] | None, now: datetime) -> Condition:
    """Return the condition `SpecValid`; `faults` None = the driver does not validate specs."""
    if faults is None:
        status, reason, text = STATUS_TRUE, reasons.REASON_UNCHECKED, "The driver checks no specs."
    elif faults:
        status, reason, text = STATUS_FALSE, reasons.REASON_SPEC_INVALID, "; ".join(faults)
    else:
        status, reason, text = STATUS_TRUE, reasons.REASON_SPEC_VALID, "The class is valid."
    return Condition(
        type=reasons.CONDITION_SPEC_VALID,
        status=status,
        reason=reason,
        # Redacted already, because the next pass compares the message with the stored message.
        message=redact.mask_for_api(text),
        since=now,
    )


def _has_condition(obj: MachineClass, kind: str) -> bool:
    return any(condition.type == kind for condition in obj.conditions)
