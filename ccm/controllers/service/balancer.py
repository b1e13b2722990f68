"""The work for one Service: ensure, change members, remove, repair; with its events.

The caller sees to it that calls about one Service never overlap. The finalizer is written
before the provider is called for the first time, and taken away after the provider said
that nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ccm.base import clock, log
from ccm.cloud.calls.handle import Handle
from ccm.cloud.errors import CloudError, ImplementedElsewhere, RetryAfter
from ccm.cloud.interface import LoadBalancer
from ccm.cloud.types import Status
from ccm.controllers.service import metrics, plan
from ccm.controllers.service.nodes import Members, shown
from ccm.controllers.service.record import Record, State
from ccm.kube.errors import KubeError
from ccm.model import Node, Service, names
from ccm.model.patches import Patch, StaleObject
from ccm.runtime.backoff import classify
from ccm.runtime.writer import Recorder, Step, Writer

UPDATES_BEFORE_ENSURE = 3
"""Failed changes of the members in a row after which the Service is ensured as a whole.

`Deviation:` the Go reference ensures at once and without a delay."""

ENSURE, UPDATE, DELETE = "ensure", "update", "delete"
"""Operations, as metrics name them."""

_OUTCOMES = ((RetryAfter, "retry_after"), (ImplementedElsewhere, "implemented_elsewhere"))
"""Class of error -> value of the metric label `outcome`; any other error is `error`."""

_SYNC = "Error syncing load balancer: failed to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancers:
    """Does the work.

    Attributes:
        handle: the way to the cloud.
        writer: changes Services.
        events: where events go.
        members: who may be a member, as known at the moment of a call.
    """

    handle: Handle
    writer: Writer[Service]
    events: Recorder
    members: Members
    _log: log.Logger = field(
        init=False, default_factory=lambda: log.logger(names.COMPONENT_SERVICE)
    )

    async def ensure(self, service: Service, record: Record) -> None:
        """Bring the load balancer in step; `record.status` then says what to show.

        Raises:
            CloudError: the provider failed, perhaps with a Status that is in `record.status` then.
            KubeError: the finalizer was not written.
            StaleObject: the Service is another by now.
        """
        resumed = record.resumes(ENSURE)
        if not (resumed or record.silent):
            self._tell(service, names.REASON_ENSURING_BALANCER, "Ensuring load balancer")
        record.applied = service
        record.invalidate()
        with suppress(ImplementedElsewhere), self._operation(ENSURE, record):
            service = record.applied = await self._with_finalizer(service)
            await self._ensure(service, record, resumed=resumed)

    async def _with_finalizer(self, service: Service) -> Service:
        with self._reporting(
            service, names.REASON_SYNC_BALANCER_FAILED, f"{_SYNC} add the cleanup finalizer"
        ):
            held = await self.writer.change(service, Step(plan.finalizer_patch, "status"))
        if held.obj is None:
            raise StaleObject
        return held.obj

    async def _ensure(self, service: Service, record: Record, *, resumed: bool) -> None:
        pool = self.members.of(service)
        members, fingerprint, burst = pool.all, pool.fingerprint, pool.bursts
        if not (members or resumed):
            self._warn_of_no_members(service)
        if record.absent:
            # What this call may leave half made has these members.
            record.absent = False
            record.took(fingerprint, burst)
        opening = self.handle.opening
        try:
            with self._reporting(
                service, names.REASON_SYNC_BALANCER_FAILED, f"{_SYNC} ensure load balancer"
            ):
                change = LoadBalancer.ensure_load_balancer
                status = await self.handle.call(change, self.handle.cluster_name, service, members)
        except ImplementedElsewhere:
            record.confirm(service, fingerprint, burst, None, opening=opening)
            raise
        except RetryAfter:
            record.waiting = ENSURE
            raise
        except CloudError as error:
            if isinstance(error.partial, Status):
                record.status = error.partial
                record.took(fingerprint, burst)
            raise
        if not record.silent:
            self._tell(service, names.REASON_ENSURED_BALANCER, "Ensured load balancer")
        self._log.info("load balancer ensured", service=service.key)
        record.confirm(service, fingerprint, burst, status, opening=opening)

    async def update(self, service: Service, record: Record) -> None:
        """Give the load balancer the members of this moment.

        Raises:
            CloudError: the provider failed; tried again, in the end by `ensure`.
        """
        pool = self.members.of(service)
        members, fingerprint, burst = pool.all, pool.fingerprint, pool.bursts
        record.applied = service
        record.members, record.burst = "", burst
        metrics.HOST_UPDATES.inc()
        started = clock.monotonic()
        try:
            with self._operation(UPDATE, record):
                change = LoadBalancer.update_load_balancer
                await self.handle.call(change, self.handle.cluster_name, service, members)
        except ImplementedElsewhere:
            pass
        except RetryAfter:
            raise
        except CloudError as error:
            metrics.HOST_UPDATE_ERRORS.inc()
            if await self._exists_for_all_we_know(service):
                self._update_failed(service, record, members, error)
                raise
            record.absent = True
        else:
            record.absent = False
            self._log.info("members changed", service=service.key, members=len(members))
            if members:
                text = "Updated load balancer with new hosts"
                self._tell(service, names.REASON_UPDATED_BALANCER, text)
            else:
                self._warn_of_no_members(service)
        finally:
            metrics.HOST_UPDATE.observe(clock.monotonic() - started)
        record.took(fingerprint, burst)

    async def remove(self, service: Service, record: Record) -> None:
        """Remove the load balancer, then our finalizer and the status.

        Raises:
            CloudError, KubeError: something may be left; the finalizer is still there.
        """
        reason = names.REASON_SYNC_BALANCER_FAILED
        record.failing = False
        with self._operation(DELETE, record):
            with self._reporting(
                service, reason, f"{_SYNC} check if load balancer exists before cleanup"
            ):
                exists = await self._must_be_deleted(service, record)
            if exists:
                self._announce_deletion(service, record)
                with self._reporting(service, reason, f"{_SYNC} delete load balancer"):
                    await self._delete(service, record)
            with self._reporting(service, reason, f"{_SYNC} remove the cleanup finalizer"):
                await self.writer.change(service, Step(plan.removal_patch, "status"))
        record.state = State.REMOVED
        self._deleted(service)

    async def remove_vanished(self, record: Record) -> None:
        """Remove the load balancer of a Service that is no longer there.

        Raises:
            CloudError: something may be left.
        """
        service = record.applied
        record.failing = False
        self._announce_deletion(service, record)
        with (
            self._reporting(
                service, names.REASON_DELETE_BALANCER_FAILED, "Error deleting load balancer"
            ),
            self._operation(DELETE, record),
        ):
            await self._delete(service, record)
        record.state = State.REMOVED
        self._deleted(service)

    async def restore(self, service: Service, record: Record) -> bool:
        """Write finalizer and status as they should be; whether anything was written.

        Raises:
            KubeError: a write failed. StaleObject: the Service is another by now.
        """

        def status_patch(current: Service) -> Patch | None:
            status = record.status
            return None if status is None else plan.status_patch(current, status)

        with self._reporting(
            service, names.REASON_SYNC_BALANCER_FAILED, f"{_SYNC} update load balancer status"
        ):
            written = await self.writer.change(
                service, Step(plan.finalizer_patch, "status"), Step(status_patch, "status")
            )
        return written.changed

    # --- steps ------------------------------------------------------------------------------

    async def _must_be_deleted(self, service: Service, record: Record) -> bool:
        # Unless all of it is known to have been there, the balancer may be gone and what it was
        # made with, such as a floating IP, may be left.
        is_confirmed = record.state is State.APPLIED and record.opening == self.handle.opening
        if self.handle.cloud.always_ensure_deleted or not is_confirmed:
            return True
        try:
            return await self._exists(service)
        except ImplementedElsewhere:
            # Nothing of ours; as an error it would keep our finalizer there for ever.
            return False

    async def _delete(self, service: Service, record: Record) -> None:
        # If the Service wants one again before all is done, it is made anew.
        record.invalidate()
        try:
            change = LoadBalancer.ensure_load_balancer_deleted
            await self.handle.call(change, self.handle.cluster_name, service)
        except ImplementedElsewhere:
            self._log.info("load balancer is deleted elsewhere", service=service.key)
        except RetryAfter:
            record.waiting = DELETE
            raise

    async def _exists(self, service: Service) -> bool:
        ask = LoadBalancer.get_load_balancer
        return await self.handle.call(ask, self.handle.cluster_name, service) is not None

    async def _exists_for_all_we_know(self, service: Service) -> bool:
        """Whether a failed update is a failure: without a load balancer there is none."""
        try:
            return await self._exists(service)
        except CloudError as error:
            self._log.info(
                "load balancer could not be looked up", service=service.key, error=str(error)
            )
            return True

    def _update_failed(
        self, service: Service, record: Record, members: Sequence[Node], error: CloudError
    ) -> None:
        record.update_failures += 1
        if record.update_failures >= UPDATES_BEFORE_ENSURE:
            record.invalidate()
        if classify(error).event:
            message = (
                f"Error updating load balancer with new hosts {shown(members)} "
                f"({len(members)} nodes in total): {error}"
            )
            reason = names.REASON_UPDATE_BALANCER_FAILED
            self.events.event(service.reference, names.WARNING, reason, message)

    # --- events and metrics -----------------------------------------------------------------

    def _announce_deletion(self, service: Service, record: Record) -> None:
        if not record.resumes(DELETE):
            self._tell(service, names.REASON_DELETING_BALANCER, "Deleting load balancer")

    def _deleted(self, service: Service) -> None:
        self._tell(service, names.REASON_DELETED_BALANCER, "Deleted load balancer")
        self._log.info("load balancer deleted", service=service.key)

    def _warn_of_no_members(self, service: Service) -> None:
        text = "There are no available nodes for LoadBalancer"
        self.events.event(service.reference, names.WARNING, names.REASON_NO_NODES, text)

    def _tell(self, service: Service, reason: str, text: str) -> None:
        self.events.event(service.reference, names.NORMAL, reason, text)

    @contextmanager
    def _reporting(self, service: Service, reason: str, text: str) -> Iterator[None]:
        """Tell people of an error if its class is one they should hear of."""
        try:
            yield
        except (CloudError, KubeError) as error:
            if classify(error).event:
                message = f"{text}: {error}"
                self.events.event(service.reference, names.WARNING, reason, message)
            raise

    @contextmanager
    def _operation(self, operation: str, record: Record) -> Iterator[None]:
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
