"""Holds classes that machines are of, and Secrets that classes refer to; asks the driver about
specs.

One queue for both kinds of object: their keys begin with the kind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from ccm.base import clock, log
from ccm.cloud.errors import InvalidArgument
from ccm.cloud.machines import SpecValidation
from ccm.controllers.machineclass import metrics, plan
from ccm.gardener import names
from ccm.gardener.kinds import MACHINE_CLASSES
from ccm.gardener.types import MachineClass, ObjectCondition
from ccm.gardener.world import World
from ccm.machines.classes import ClassView
from ccm.model import Secret
from ccm.model.machines import Machine
from ccm.model.names import WARNING
from ccm.model.patches import Patch
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, Controller, Result, Watch
from ccm.runtime.writer import Recorder, Step, Writer, Writes

NAME = "machineclass"
BACK_OFF_CAP_S = 60.0
_CLASS, _SECRET = "MachineClass", "Secret"

Checked = tuple[Mapping[str, Any], str]
"""A spec, and the digest of the credentials with which it was checked."""


class MachineClassController:
    """The machine class controller.

    Args:
        world: what the machine controllers share; it is ready.
        classes: requests about MachineClasses.
        secrets: requests about Secrets.
        events: where events go.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        world: World,
        classes: Writes[MachineClass],
        secrets: Writes[Secret],
        events: Recorder,
        rng: random.Random | None = None,
    ) -> None:
        self._world = world
        self._events = events
        self._log = log.logger(NAME)
        self._classes = Writer(classes, cache=world.classes.store, strategic=False, rng=rng)
        self._secrets = Writer(secrets, cache=world.secrets.store, rng=rng)
        self._checked: dict[str, Checked] = {}
        self._faults: dict[str, list[str] | None] = {}
        self._announced: dict[str, tuple[str, str]] = {}
        """By class: status and message of the last condition that was written or logged."""
        self._stores_status = True
        """False once the API server dropped a condition: Gardener's definition of MachineClass has
        no field `status`, so that each further write would be in vain."""
        self._status_writes = asyncio.Lock()
        self.controller = Controller(
            NAME,
            queue=NAME,
            reconcile=self.sync,
            workers=4,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            watches=[
                Watch(informer=world.machines, changed=self._machine_changed),
                Watch(informer=world.secrets, changed=self._secret_changed),
                Watch(informer=world.classes, changed=self._class_changed),
            ],
            on_retry=self._retry,
            rng=rng,
        )

    async def sync(self, key: str) -> Result:
        """Bring one class, or one Secret, in step with those that use it.

        Raises:
            KubeError: a write failed.
            CloudError: the driver did not say what it thinks of the spec.
        """
        kind, _, name = key.partition(" ")
        if kind == _SECRET:
            await self._sync_secret(name)
        else:
            await self._sync_class(name)
        return DONE

    async def _sync_class(self, key: str) -> None:
        cached = self._world.classes.store.get(key)
        if cached is None:
            return
        obj = self._classes.newest(cached)

        def held(one: MachineClass) -> Patch | None:
            machines = self._world.machines
            # A Machine that cannot be read may be of it.
            if machines.undecodable and names.FINALIZER in one.finalizers:
                return None
            is_used = any(plan.refers_to(each, one.name) for each in machines.store.list())
            return plan.finalizer_patch(one, is_used=is_used)

        written = await self._classes.change(obj, Step(held))
        if written.obj is not None and not written.obj.is_deleting:
            await self._judge(written.obj)

    async def _judge(self, obj: MachineClass) -> None:
        view = self._world.class_view(obj)
        faults = await self._faults_of(obj.key, view)
        wanted = plan.condition(faults, clock.now())
        metrics.INVALID.set(sum(1 for each in self._faults.values() if each))

        if await self._write_condition(obj, wanted) and faults:
            self._log.warning("machine class cannot be used", key=obj.key, error=wanted.message)
            self._events.event(
                MACHINE_CLASSES.reference(obj), WARNING, wanted.reason, wanted.message
            )

    async def _write_condition(self, obj: MachineClass, wanted: ObjectCondition) -> bool:
        """Write the condition of a class; return whether it is new.

        Raises:
            KubeError: the write failed.
        """
        # One at a time: the answer to the first write decides about the others.
        async with self._status_writes:
            if plan.has_condition(obj, wanted.type):
                self._stores_status = True
            before = self._announced.get(obj.key)
            self._announced[obj.key] = wanted.status, wanted.message
            if not self._stores_status:
                return before != self._announced[obj.key]
            written = await self._classes.change(
                obj, Step(lambda one: plan.condition_patch(one, wanted))
            )
            if written.obj is not None and not plan.has_condition(written.obj, wanted.type):
                self._stores_status = False
                self._log.warning(
                    "MachineClass conditions are not stored, events and logs only",
                    key=obj.key,
                    condition=wanted.type,
                    advice="apply manifests/crds.yaml, then restart",
                )
            return written.changed

    async def _faults_of(self, key: str, view: ClassView) -> list[str] | None:
        """What is wrong with a class; the driver is asked once about each spec."""
        if view.faults:
            self._checked.pop(key, None)
            self._faults[key] = list(view.faults)
        elif self._checked.get(key) != (asked := (view.provider_spec, view.credentials.digest)):
            self._faults[key] = await self._asked(view)
            self._checked[key] = asked
        return self._faults[key]

    async def _asked(self, view: ClassView) -> list[str] | None:
        if not self._world.caller.offers(SpecValidation):
            return None
        try:
            found = await self._world.call(
                SpecValidation.validate_spec, view.provider_spec, view.credentials, True
            )
        except InvalidArgument as error:
            return [str(error)]
        return [str(one) for one in found]

    async def _sync_secret(self, key: str) -> None:
        cached = self._world.secrets.store.get(key)
        if cached is None:
            return

        def held(one: Secret) -> Patch | None:
            classes = self._world.classes
            if classes.undecodable and names.FINALIZER_SECRET in one.finalizers:
                return None
            is_used = plan.uses_secret(classes.store.list(), one)
            return plan.secret_patch(one, is_used=is_used)

        await self._secrets.change(self._secrets.newest(cached), Step(held))

    def _retry(self) -> None:
        """Another provider may think otherwise."""
        self._checked.clear()
        for one in self._world.classes.store.list():
            self._add(_CLASS, one.key)

    # --- the caches ---------------------------------------------------------------------------

    def _machine_changed(self, old: Machine | None, new: Machine | None, _: bool) -> bool:
        used = [(one.namespace, one.class_name) for one in (old, new) if one is not None]
        if len(used) == 1 or used[0] != used[1]:
            for namespace, name in used:
                self._add(_CLASS, f"{namespace}/{name}")
        return False

    def _class_changed(self, old: MachineClass | None, new: MachineClass | None, _: bool) -> bool:
        for one in filter(None, (old, new)):
            for reference in one.secrets:
                self._add(_SECRET, f"{one.namespace}/{reference.name}")
        if new is not None:
            self._add(_CLASS, new.key)
        elif old is not None:
            self._forget(old)
        return False

    def _secret_changed(self, old: Secret | None, new: Secret | None, _: bool) -> bool:
        found = new or old
        if found is not None:
            self._add(_SECRET, found.key)
            for one in self._world.classes_with_secret(found.name):
                self._add(_CLASS, one.key)
        if new is None and old is not None:
            self._secrets.forget(old.key)
        return False

    def _forget(self, gone: MachineClass) -> None:
        self._classes.forget(gone.key)
        self._checked.pop(gone.key, None)
        self._faults.pop(gone.key, None)
        self._announced.pop(gone.key, None)
        metrics.INVALID.set(sum(1 for each in self._faults.values() if each))

    def _add(self, kind: str, key: str) -> None:
        self.controller.queue.add(f"{kind} {key}")
