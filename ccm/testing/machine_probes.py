"""Calls to a machine driver; they store each machine's last known state as the daemon does."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import pytest

from ccm.base import redact
from ccm.cloud import errors
from ccm.cloud.calls import responses
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import (
    Credentials,
    Identity,
    ListMachinesRequest,
    MachineDriver,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    partial_info,
)
from ccm.testing import probes
from ccm.testing.harness import Harness, HeldVM
from ccm.testing.probes import retry_after_hints

T = TypeVar("T")

CLUSTER = "5f6d1f3e-contract"
"""Cluster in the marks (labels or tags) of our VMs."""

NAMESPACE = "contract-namespace"
"""Namespace of our machines."""

POOL = "contract-pool"
"""Default pool of machines."""

USER_DATA = b"#!/bin/sh\njoin --token 07401b.f395accd246ae52d\n"
"""User data of VMs; the token in it is a secret."""


@dataclass(kw_only=True)
class Machines:
    """Caller of a machine driver, for the machines of one cluster.

    Attributes:
        states: machine UID -> last known state.
        started: UIDs of the machines whose creation was recorded as started.
        known: UID -> identity of each machine whose VM was to be created.
    """

    driver: MachineDriver
    harness: Harness
    cluster: str = CLUSTER
    spec: Mapping[str, Any] | None = None
    credentials: Mapping[str, bytes] | None = None
    states: dict[str, str] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    known: dict[str, Identity] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def identity(self, name: str = "", *, pool: str = POOL) -> Identity:
        """Return the identity of a new machine; `name` may be the name of another machine."""
        number = next(self._numbers)
        name = name or f"{pool}-{number}"
        marks = {"cluster": self.cluster, "namespace": NAMESPACE, "pool": pool}
        return Identity(**marks, name=name, uid=f"uid-{number}-{name}")

    def request(self, identity: Identity, provider_id: str = "", **other: Any) -> MachineRequest:
        return MachineRequest(
            identity=identity,
            provider_id=provider_id,
            last_known_state=self.states.get(identity.uid, ""),
            creation_started=identity.uid in self.started,
            **{"provider_spec": self._spec(), "credentials": self._credentials(), **other},
        )

    async def create(self, identity: Identity) -> MachineInfo:
        """Create the VM of a machine; call again as long as the driver raises `RetryAfter`."""
        return await retry_after_hints(partial(self.create_once, identity))

    async def create_once(self, identity: Identity, **other: Any) -> MachineInfo:
        """Call the driver once, after recording the creation as started, as the controller does.

        Raises:
            AlreadyExists: the driver finds VMs by name, and the name is taken.
            CloudError: raised by the driver.
        """
        if self.finds_by_name and identity.uid not in self.started:
            await self._check_name_is_free(identity)
        self.started.add(identity.uid)
        self.known[identity.uid] = identity
        ask = partial(self.request, identity, user_data=USER_DATA, **other)
        return await self._call_and_keep_state(identity, lambda: self.driver.create_machine(ask()))

    @property
    def finds_by_name(self) -> bool:
        """Whether the driver finds VMs only by name."""
        return bool(getattr(self.driver, "finds_by_name", False))

    async def _check_name_is_free(self, identity: Identity) -> None:
        request = replace(self.request(identity), creation_started=True)
        try:
            await self.driver.get_machine_status(request)
        except (errors.NotFound, errors.Unimplemented):
            return
        except errors.Uninitialized:
            pass
        raise errors.AlreadyExists(f"name {identity.name} is taken by another VM")

    async def initialize(self, identity: Identity, provider_id: str) -> None:
        """Initialise a VM, unless the driver does not implement this."""
        ask = partial(self.request, identity, provider_id)
        with suppress(errors.Unimplemented):
            await retry_after_hints(
                lambda: self._call_and_keep_state(
                    identity, lambda: self.driver.initialize_machine(ask())
                )
            )

    async def delete(self, identity: Identity, provider_id: str = "", **other: Any) -> None:
        """Delete the VM of a machine; call again as long as the driver raises `RetryAfter`.

        NotFound counts as success.
        """
        ask = partial(self.request, identity, provider_id, **other)

        async def once() -> None:
            with suppress(errors.NotFound):
                await self._call_and_keep_state(identity, lambda: self.driver.delete_machine(ask()))

        await retry_after_hints(once)

    async def status(self, identity: Identity, provider_id: str = "", **other: Any) -> MachineInfo:
        """Return the status of a VM, initialised or not; skip the test if the call is missing."""
        try:
            answer = await self.driver.get_machine_status(
                self.request(identity, provider_id, **other)
            )
        except errors.Unimplemented:
            pytest.skip("not implemented: get_machine_status")
        except errors.Uninitialized as error:
            return partial_info(error)
        await responses.verify(MachineDriver.get_machine_status, answer)
        return answer

    @property
    def lists_machines(self) -> bool:
        """Whether the driver lists VMs."""
        return bool(getattr(self.driver, "lists_machines", True))

    async def list_vms(self, *, pool: str = POOL, **other: Any) -> Sequence[MachineRecord]:
        """Return the VMs of a pool.

        If the driver lists no VMs, return only those of the machines in `known`.
        """
        if not self.lists_machines:
            records = []
            for identity in self.known.values():
                with suppress(errors.NotFound):
                    info = await self.status(identity, **other)
                    records.append(MachineRecord(identity=identity, info=info))
            return [record for record in records if record.identity.pool == pool]
        answer = await self.driver.list_machines(self.list_request(pool=pool, **other))
        await responses.verify(MachineDriver.list_machines, answer)
        return answer

    def list_request(self, *, pool: str = POOL, **other: Any) -> ListMachinesRequest:
        fields = {"provider_spec": self._spec(), "credentials": self._credentials(), **other}
        return ListMachinesRequest(cluster=self.cluster, pool=pool, **fields)

    async def own_provider_ids(self, *, pool: str = POOL) -> list[str]:
        """Return the provider IDs of the listed VMs that are marked as ours."""
        records = await self.list_vms(pool=pool)
        return [
            record.info.provider_id for record in records if record.identity.cluster == self.cluster
        ]

    async def vm_provider_ids(self) -> list[str]:
        """Return the provider IDs of all VMs in the cloud."""
        return [vm.provider_id for vm in await self.harness.vms()]

    def secrets(self) -> Sequence[str]:
        """Return the texts that must not appear in errors, logs or output."""
        credentials = {**self.harness.machine_credentials()}
        values = [
            value.decode() for key, value in credentials.items() if redact.is_secret_name(key)
        ]
        return [*values, "07401b.f395accd246ae52d"]

    def _spec(self) -> Mapping[str, Any]:
        return deepcopy(self.harness.machine_spec()) if self.spec is None else self.spec

    def _credentials(self) -> Credentials:
        return Credentials(self.credentials or self.harness.machine_credentials())

    async def _call_and_keep_state(self, identity: Identity, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the driver's answer; store the last known state in the answer or in the error."""
        try:
            answer = await ask()
        except errors.CloudError as error:
            self._keep(identity, partial_info(error).last_known_state)
            raise
        self._keep(identity, getattr(answer, "last_known_state", None))
        if isinstance(answer, MachineInfo):
            await responses.verify(MachineDriver.create_machine, answer)
        return answer

    def _keep(self, identity: Identity, state: str | None) -> None:
        if state is not None:
            self.states[identity.uid] = state


def machines_of(cloud: Cloud, harness: Harness) -> Machines:
    """Return the caller of the machine driver; skip the test if the cloud has no driver."""
    driver = probes.require_capability(cloud.machines, "machines", "a MachineDriver")
    return Machines(driver=driver, harness=harness)


async def create_foreign_vm(machines: Machines, name: str, owner: str, *, uid: str = "") -> HeldVM:
    """Create a VM of another owner.

    Args:
        owner: `another_cluster`, `another_machine` of our cluster, `a_twin` (another cluster, a
            copy of ours with the same machine UIDs), or `nobody` (no labels or tags).
        uid: UID of our machine, for `a_twin`.
    """
    ours = owner == "another_machine"
    cluster = machines.cluster if ours else "some-other-cluster"
    own = uid if owner == "a_twin" else "uid-of-another"
    marks = Identity(cluster=cluster, namespace=NAMESPACE, pool=POOL, name=name, uid=own)
    return await machines.harness.foreign_vm(name, None if owner == "nobody" else marks)


def cloud_calls(
    machines: Machines, identity: Identity, info: MachineInfo, new: Identity
) -> Mapping[str, probes.Call]:
    """Return all calls that must reach the cloud: creation of `new`, the others for `identity`."""
    driver, there = machines.driver, machines.request(identity, info.provider_id)
    machines.started.add(new.uid)
    create = machines.request(new, user_data=USER_DATA)
    listing = {"list_machines": partial(driver.list_machines, machines.list_request())}
    return {
        "create_machine": partial(driver.create_machine, create),
        "get_machine_status": partial(driver.get_machine_status, there),
        **(listing if machines.lists_machines else {}),
        "delete_machine": partial(driver.delete_machine, there),
    }


def error_texts(results: list[object]) -> str:
    """Return the texts of all errors, with their causes and contexts."""
    texts: list[str] = []
    for result in results:
        error: BaseException | None = result.error if isinstance(result, probes.Raised) else None
        while error is not None:
            texts.append(f"{error} {error!r}")
            error = error.__cause__ or error.__context__
    return " ".join(texts)


def check_no_secrets(machines: Machines, text: str) -> None:
    """Fail if the text contains a secret."""
    for secret in machines.secrets():
        assert secret not in text, "an error, a log line or the output contains a secret"
