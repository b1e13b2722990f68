"""Operations for one Service, with their events: ensure, update members, remove, restore.

The caller makes sure that calls for one Service never overlap. `BalancerOperations` adds the
finalizer before the first call to the provider, and removes it after the provider has deleted the
load balancer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ccm.base import clock, log
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.errors import CloudError, ImplementedElsewhere, RetryAfter
from ccm.cloud.interface import LoadBalancer
from ccm.cloud.types import Status
from ccm.controllers.service import metrics, plan
from ccm.controllers.service.members import LoadBalancerMembers, format_names
from ccm.controllers.service.plan import BalancerState, MemberSnapshot, ServiceRecord
from ccm.kube.errors import KubeError
from ccm.model import Service, names
from ccm.model.patches import Patch, StaleObject
from ccm.runtime.backoff import classify
from ccm.runtime.writer import ObjectWriter, PatchStep, Recorder

UPDATES_BEFORE_ENSURE = 3
"""Consecutive failed updates of members after which the Service is ensured.

`Deviation:` the Go controller ensures after the first failure, without a delay."""

ENSURE, DELETE = "ensure", "delete"
"""Operations for which the provider may ask for a later call (`RetryAfter`) that resumes them."""

_OUTCOMES = ((RetryAfter, "retry_after"), (ImplementedElsewhere, "implemented_elsewhere"))
"""Error classes with their values of the metric label `outcome`; other errors have the value
`error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerOperations:
    """Load balancer operations of the service controller.

    Attributes:
        handle: cloud client.
        writer: writes Services.
        events: event recorder.
        members: current members of all load balancers.
    """

    handle: CloudClient
    writer: ObjectWriter[Service]
    events: Recorder
    members: LoadBalancerMembers
    _log: log.Logger = field(
        init=False, default_factory=lambda: log.logger(names.CONTROLLER_SERVICE)
    )

    async def ensure(self, service: Service, record: ServiceRecord) -> None:
        """Ensure the load balancer and set `record.status`; the caller writes that status.

        Raises:
            CloudError: the provider failed. If the error has a partial Status, it is stored in
                `record.status`.
            KubeError: the finalizer was not written.
            StaleObject: the Service is gone, was replaced, is no longer of type LoadBalancer, or is
                being deleted without the finalizer.
        """
        resumed = record.take_resumed(ENSURE)
        if not (resumed or record.silent):
            self._record_event(service, names.REASON_ENSURING_BALANCER, "Ensuring load balancer")
        record.applied = service
        record.state = BalancerState.PENDING
        with suppress(ImplementedElsewhere), self._operation(ENSURE, record):
            with self._reporting(service, "add the cleanup finalizer"):
                written = await self.writer.change(
                    service, PatchStep(plan.finalizer_patch, "status")
                )
            if written.obj is None:
                raise StaleObject
            service = record.applied = written.obj
            given, opening = self.members.of(service).snapshot, self.handle.provider_session
            if not (given.nodes or resumed):
                self._warn_of_no_members(service)
            if record.absent:
                # If the call fails halfway, the cloud may have a load balancer with these members.
                record.absent = False
                record.set_members(given)
            status = await self._ensure(service, record, given, opening)
            if not record.silent:
                self._record_event(service, names.REASON_ENSURED_BALANCER, "Ensured load balancer")
            self._log.info("load balancer ensured", service=service.key)
            record.confirm(service, given, status, provider_session=opening)

    async def _ensure(
        self, service: Service, record: ServiceRecord, given: MemberSnapshot, provider_session: int
    ) -> Status:
        try:
            with self._reporting(service, "ensure load balancer"):
                change = LoadBalancer.ensure_load_balancer
                cluster = self.handle.cluster_name
                return await self.handle.call(change, cluster, service, given.nodes)
        except ImplementedElsewhere:
            record.confirm(service, given, None, provider_session=provider_session)
            raise
        except RetryAfter:
            record.waiting = ENSURE
            raise
        except CloudError as error:
            if isinstance(error.partial, Status):
                record.status = error.partial
                record.set_members(given)
            raise

    async def update(self, service: Service, record: ServiceRecord) -> None:
        """Set the current members in the load balancer; if it is missing, set `record.absent`.

        Raises:
            CloudError: the provider failed. After `UPDATES_BEFORE_ENSURE` consecutive failures
                `record.state` is PENDING, so that the Service is ensured.
        """
        given = self.members.of(service).snapshot
        record.applied = service
        record.members, record.burst = "", given.burst
        metrics.HOST_UPDATES.inc()
        started = clock.monotonic()
        try:
            with self._operation("update", record):
                change = LoadBalancer.update_load_balancer
                await self.handle.call(change, self.handle.cluster_name, service, given.nodes)
        except ImplementedElsewhere:
            pass
        except RetryAfter:
            raise
        except CloudError as error:
            metrics.HOST_UPDATE_ERRORS.inc()
            if await self._record_update_failure(service, record, given, error):
                raise
            record.absent = True
        else:
            record.absent = False
            self._log.info("members updated", service=service.key, members=len(given.nodes))
            if given.nodes:
                text = "Updated load balancer with new hosts"
                self._record_event(service, names.REASON_UPDATED_BALANCER, text)
            else:
                self._warn_of_no_members(service)
        finally:
            metrics.HOST_UPDATE.observe(clock.monotonic() - started)
        record.set_members(given)

    async def clean_up(self, service: Service, record: ServiceRecord) -> None:
        """Delete the load balancer, then remove the finalizer and the status.

        Raises:
            CloudError: cloud resources may be left; the finalizer stays.
            KubeError: the finalizer and the status may be left.
        """
        record.failing = False
        with self._operation(DELETE, record):
            with self._reporting(service, "check if load balancer exists before cleanup"):
                exists = await self._must_be_deleted(service, record)
            if exists:
                with self._reporting(service, "delete load balancer"):
                    await self._delete(service, record)
            with self._reporting(service, "remove the cleanup finalizer"):
                await self.writer.change(service, PatchStep(plan.removal_patch, "status"))
        self._deleted(service, record)

    async def clean_up_vanished(self, record: ServiceRecord) -> None:
        """Delete the load balancer of a Service that is gone or was replaced.

        Raises:
            CloudError: cloud resources may be left.
        """
        service = record.applied
        record.failing = False
        try:
            with self._operation(DELETE, record):
                await self._delete(service, record)
        except CloudError as error:
            reason = names.REASON_DELETE_BALANCER_FAILED
            self._report(service, reason, "Error deleting load balancer", error)
            raise
        self._deleted(service, record)

    async def restore(self, service: Service, record: ServiceRecord) -> bool:
        """Write the finalizer if missing, and `record.status` if the Service's status differs.

        Returns:
            Whether anything was written.

        Raises:
            KubeError: a write failed.
            StaleObject: the Service is no longer of type LoadBalancer, or is being deleted without
                the finalizer.
        """

        def status_patch(current: Service) -> Patch | None:
            status = record.status
            return None if status is None else plan.status_patch(current, status)

        with self._reporting(service, "update load balancer status"):
            written = await self.writer.change(
                service,
                PatchStep(plan.finalizer_patch, "status"),
                PatchStep(status_patch, "status"),
            )
        return written.changed

    # --- steps ------------------------------------------------------------------------------

    async def _must_be_deleted(self, service: Service, record: ServiceRecord) -> bool:
        # Even without a load balancer, parts such as a floating IP may exist, unless the current
        # provider session has confirmed the complete load balancer.
        is_confirmed = (
            record.state is BalancerState.APPLIED
            and record.provider_session == self.handle.provider_session
        )
        if self.handle.cloud.always_ensure_deleted or not is_confirmed:
            return True
        try:
            return await self._exists(service)
        except ImplementedElsewhere:
            # The load balancer belongs to another controller. If the error were raised, the
            # finalizer would stay for ever.
            return False

    async def _delete(self, service: Service, record: ServiceRecord) -> None:
        if not record.take_resumed(DELETE):
            self._record_event(service, names.REASON_DELETING_BALANCER, "Deleting load balancer")
        # The Service may want a load balancer again before the deletion ends; PENDING makes the
        # next reconcile ensure it.
        record.state = BalancerState.PENDING
        try:
            change = LoadBalancer.ensure_load_balancer_deleted
            await self.handle.call(change, self.handle.cluster_name, service)
        except ImplementedElsewhere:
            self._log.info("load balancer deletion left to another controller", service=service.key)
        except RetryAfter:
            record.waiting = DELETE
            raise

    async def _exists(self, service: Service) -> bool:
        ask = LoadBalancer.get_load_balancer
        return await self.handle.call(ask, self.handle.cluster_name, service) is not None

    async def _record_update_failure(
        self, service: Service, record: ServiceRecord, given: MemberSnapshot, error: CloudError
    ) -> bool:
        """Return whether the load balancer exists; if it does, count and report the failed update.

        If the lookup fails too, the load balancer counts as existing.
        """
        try:
            if not await self._exists(service):
                return False
        except CloudError as unknown:
            self._log.info("load balancer lookup failed", service=service.key, error=str(unknown))
        record.update_failures += 1
        if record.update_failures >= UPDATES_BEFORE_ENSURE:
            record.state = BalancerState.PENDING
        text = (
            f"Error updating load balancer with new hosts {format_names(given.nodes)} "
            f"({len(given.nodes)} nodes in total)"
        )
        self._report(service, names.REASON_UPDATE_BALANCER_FAILED, text, error)
        return True

    # --- events and metrics -----------------------------------------------------------------

    def _deleted(self, service: Service, record: ServiceRecord) -> None:
        record.state = BalancerState.REMOVED
        self._record_event(service, names.REASON_DELETED_BALANCER, "Deleted load balancer")
        self._log.info("load balancer deleted", service=service.key)

    def _warn_of_no_members(self, service: Service) -> None:
        text = "There are no available nodes for LoadBalancer"
        self.events.event(service.reference, names.WARNING, names.REASON_NO_NODES, text)

    def _record_event(self, service: Service, reason: str, text: str) -> None:
        self.events.event(service.reference, names.NORMAL, reason, text)

    @contextmanager
    def _reporting(self, service: Service, attempt: str) -> Iterator[None]:
        try:
            yield
        except (CloudError, KubeError) as error:
            text = f"Error syncing load balancer: failed to {attempt}"
            self._report(service, names.REASON_SYNC_BALANCER_FAILED, text, error)
            raise

    def _report(
        self, service: Service, reason: str, text: str, error: CloudError | KubeError
    ) -> None:
        """Record a Warning event about an error, if `classify` asks for one."""
        if classify(error).event:
            self.events.event(service.reference, names.WARNING, reason, f"{text}: {error}")

    @contextmanager
    def _operation(self, operation: str, record: ServiceRecord) -> Iterator[None]:
        started = clock.monotonic()
        outcome = "canceled"
        try:
            yield
            outcome = "success"
        except StaleObject:
            raise
        except Exception as error:
            outcome = next((text for kind, text in _OUTCOMES if isinstance(error, kind)), "error")
            raise
        finally:
            record.touched_at = clock.monotonic()
            metrics.OPERATIONS.labels(operation, outcome).observe(record.touched_at - started)
