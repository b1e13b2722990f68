"""Load balancers of STACKIT.

A load balancer is found by its name, which contains the Service's UID. Each change is one request
with the complete configuration, so that a call can continue after an interrupted call. While the
cloud works on a load balancer, calls raise `RetryAfter`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

from ccm import cloud
from ccm.base import log
from ccm.cloud.helpers import label_value

from . import balancer_specs, config, lbapi
from . import service_annotations as ann
from .marks import BALANCER_CLUSTER, BALANCER_CREDENTIALS, StackitProviderName


class MetricsCredentials:
    """Credentials with which the cloud pushes metrics of load balancers, if configured."""

    def __init__(self, api: lbapi.Client, given: config.Variables) -> None:
        self._api = api
        self.url = given.remotewrite_endpoint
        self._fields = {"username": given.remotewrite_user, "password": given.remotewrite_password}
        seed = "\n".join((self.url, *self._fields.values()))
        # Truncated, so that the hash does not help to guess the password.
        self.digest = sha256(seed.encode()).hexdigest()[:6] if self.url else ""

    async def ensure(self, held: lbapi.Balancer | None, name: str) -> lbapi.Metrics | None:
        """Create or update credentials and return the metrics settings; None if not configured.

        Sends no request if the load balancer's label shows that the credentials are current, or
        one request to update them. The creation takes two requests, and one to delete each set of
        credentials that an earlier call left behind.
        """
        if not self.url:
            return None
        ref = held.metrics.credentials_ref if held and held.metrics else None
        body = {**self._fields, "displayName": name}
        if held is not None and ref is not None:
            if held.label(BALANCER_CREDENTIALS) == self.digest:
                return lbapi.Metrics(credentials_ref=ref, push_url=self.url)
            try:
                await self._api.replace_credentials(ref, body)
            except cloud.NotFound:
                ref = None  # the credentials were deleted
        if ref is None:
            await self.remove(name)
            ref = await self._api.create_credentials(body)
        return lbapi.Metrics(credentials_ref=ref, push_url=self.url)

    async def remove(self, name: str) -> None:
        """Delete all credentials with the name of a load balancer that no longer uses them."""
        for credential in await self._api.credentials():
            if credential.display_name == name:
                await self._api.delete_credentials(credential.credentials_ref)


RETRY_S = 10.0
"""Retry delay, in seconds, while the cloud works on a load balancer (from the vendor's manager)."""

DELETE_RETRY_S = 5.0
"""Retry delay, in seconds, while the cloud deletes a load balancer."""

TARGET_ERRORS = (cloud.InvalidArgument, cloud.FailedPrecondition, cloud.Unknown)
"""Errors that may concern one target of a request; other targets are still added."""

STATUS_READY, STATUS_ERROR, STATUS_TERMINATING = (
    "STATUS_READY",
    "STATUS_ERROR",
    "STATUS_TERMINATING",
)

REMOVING = "leaving"
"""Value of the credentials label while the credentials are being removed."""

KEPT = "LoadBalancerKept"
"""Event reason: the load balancer of a deleted Service has the label of another cluster."""

NAME_PREFIX = "k8s-svc-"
"""Prefix of the names of Services' load balancers."""

_log = log.logger(StackitProviderName)


class StackitBalancers:
    """Implementation of `LoadBalancer`, `LoadBalancerDigests` and `LoadBalancerRemoval`."""

    def __init__(
        self,
        api: lbapi.Client,
        settings: config.LoadBalancer,
        credentials: MetricsCredentials,
        context: cloud.Context,
    ) -> None:
        self._api = api
        self._settings = settings
        self._credentials = credentials
        self._context = context

    def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:  # noqa: ARG002 - the UID is unique
        """Return `k8s-svc-<UID>-<name>`, truncated to 63 characters."""
        return balancer_specs.balancer_name(service)

    async def get_load_balancer(
        self,
        cluster_name: str,  # noqa: ARG002 - the UID is unique
        service: cloud.Service,
    ) -> cloud.Status | None:
        """Return the status of the load balancer; None if it does not exist. Sends one request.

        The status has no address until the cloud has completed the creation.
        """
        held = await self._api.balancer(balancer_specs.balancer_name(service))
        if held is None:
            return None
        try:
            return balancer_specs.status(held, service)
        except cloud.InvalidArgument:  # an invalid annotation must not block the deletion
            return balancer_specs.status(held, None)

    async def ensure_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> cloud.Status:
        """Create or update the load balancer.

        Sends one request to find it, and one to create or replace it.

        Raises:
            InvalidArgument: the Service asks for something the cloud does not offer.
            FailedPrecondition: the Service asks for a change that the API does not support, or the
                load balancer belongs to another cluster.
            ImplementedElsewhere: the Service's class annotation names another controller, and no
                load balancer exists.
            RetryAfter: the cloud works on the load balancer.
            Aborted: the load balancer failed, or the cloud refused some targets and did everything
                else; the message has the cloud's reason.
        """
        held = await self._find(cluster_name, balancer_specs.balancer_name(service))
        if held is None:
            _check_class(service)
        recipe = balancer_specs.desired_spec(service, nodes, self._settings)
        if held is None:
            _log_ignored_annotations(service)
            held = await self._create(cluster_name, recipe)
        else:
            held = await self._update(cluster_name, recipe, held)
        _check_ready(held)
        status = balancer_specs.status(held, service)
        # Changes nothing unless the cloud refused the load balancer because of new targets.
        await self._update_pools(held, balancer_specs.targets(nodes), status)
        return status

    async def update_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> None:
        """Update the members: one request to find the load balancer, one per pool that differs.

        Raises:
            NotFound: the load balancer does not exist.
            RetryAfter: the load balancer is being deleted.
            Aborted: the cloud refused some targets and accepted the others.
        """
        held = await self._find(cluster_name, balancer_specs.balancer_name(service))
        if held is None:
            raise cloud.NotFound(f"no load balancer for {service.key}")
        # All pools have the same members, whatever else the Service asks for.
        await self._update_pools(held, balancer_specs.targets(nodes))

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: cloud.Service) -> None:
        """Delete the load balancer, and the credentials for its metrics.

        Sends up to four requests, and one for each set of credentials. A load balancer with the
        label of another cluster is kept, with an event.

        Raises:
            RetryAfter: the cloud still deletes the load balancer.
        """
        name = balancer_specs.balancer_name(service)
        held = await self._api.balancer(name)
        if held is None or _is_ours(held, cluster_name):
            await self._remove(name, held)
            return
        # A copy of this cluster has Services with the same UIDs, and so the same names here.
        text = (
            f"load balancer {name} was kept, because its label names cluster "
            f"{held.label(BALANCER_CLUSTER)!r}; if that is a former name of this cluster, delete "
            "the load balancer and its metrics credentials in the cloud"
        )
        self._context.warn(service.reference, KEPT, text)

    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """Delete a load balancer of this cluster by name, and the credentials for its metrics.

        Raises:
            FailedPrecondition: the load balancer lacks the label of this cluster.
            RetryAfter: the cloud still deletes the load balancer.
        """
        held = await self._api.balancer(name)
        if held is not None and not _is_marked(held, cluster_name):
            raise cloud.FailedPrecondition(
                f"load balancer {name} lacks the label {BALANCER_CLUSTER}="
                f"{label_value(cluster_name)}, and may belong to another cluster; delete the load "
                "balancer and its metrics credentials in the cloud"
            )
        await self._remove(name, held)

    async def list_load_balancers(self, cluster_name: str) -> Sequence[cloud.LoadBalancerRecord]:
        """Return all load balancers of Services, except those of other clusters.

        Sends one request per 100 load balancers.
        """
        return [
            cloud.LoadBalancerRecord(
                name=held.name,
                digest=self._held_digest(held) if held.status == STATUS_READY else "",
                status=balancer_specs.status(held, None),
                marked=_is_marked(held, cluster_name),
            )
            for held in await self._api.balancers()
            if held.name.startswith(NAME_PREFIX) and _is_ours(held, cluster_name)
        ]

    def load_balancer_digest(
        self,
        cluster_name: str,  # noqa: ARG002 - the name is unique
        service: cloud.Service,
        nodes: Sequence[cloud.Node],
    ) -> str:
        """Return the digest that the load balancer has after `ensure_load_balancer`."""
        recipe = balancer_specs.desired_spec(service, nodes, self._settings)
        shape = [ann.IP_MODE.name] if ann.IP_MODE.read(service) else []
        return balancer_specs.digest(
            recipe, self._credentials.url, self._credentials.digest, *shape
        )

    def _held_digest(self, held: lbapi.Balancer) -> str:
        url = (held.metrics.push_url if held.metrics else None) or ""
        return balancer_specs.digest(
            balancer_specs.spec_of(held), url, held.label(BALANCER_CREDENTIALS) if url else ""
        )

    # --- finding --------------------------------------------------------------------------------

    async def _find(self, cluster_name: str, name: str) -> lbapi.Balancer | None:
        held = await self._api.balancer(name)
        if held is None:
            return None
        if not _is_ours(held, cluster_name):
            raise cloud.FailedPrecondition(
                f"load balancer {name} belongs to cluster {held.label(BALANCER_CLUSTER)!r}; if "
                "that is a former name of this cluster, restore --cluster-name, otherwise recreate "
                "the Service"
            )
        if held.status == STATUS_TERMINATING:
            raise cloud.RetryAfter(f"load balancer {name} is being deleted", seconds=DELETE_RETRY_S)
        return held

    # --- creation and changes -------------------------------------------------------------------

    async def _create(
        self, cluster_name: str, recipe: balancer_specs.BalancerSpec
    ) -> lbapi.Balancer:
        metrics = await self._credentials.ensure(None, recipe.name)
        labels = self._labels(cluster_name, None)
        try:
            return await _send_with_fallback(
                recipe,
                None,
                lambda asked: self._api.create(balancer_specs.build_order(asked, labels, metrics)),
            )
        except cloud.Aborted:
            # An earlier call created it and lost the response.
            existing = await self._find(cluster_name, recipe.name)
            if existing is None:
                raise
            return existing

    async def _update(
        self, cluster_name: str, recipe: balancer_specs.BalancerSpec, held: lbapi.Balancer
    ) -> lbapi.Balancer:
        if what := balancer_specs.find_immutable_change(held, recipe):
            raise cloud.FailedPrecondition(
                f"the API cannot change {what} of load balancer {held.name}; revert the change, or "
                "delete and recreate the Service"
            )
        metrics = await self._credentials.ensure(held, recipe.name)
        if metrics is None and (held.metrics or held.label(BALANCER_CREDENTIALS)):
            held = await self._disable_metrics(cluster_name, recipe, held)
        is_marked = held.label(BALANCER_CREDENTIALS) == self._credentials.digest
        labels = self._labels(cluster_name, held)

        async def send(asked: balancer_specs.BalancerSpec) -> lbapi.Balancer:
            if is_marked and balancer_specs.matches(held, asked, metrics):
                return held
            order = balancer_specs.build_order(asked, labels, metrics, held)
            return await self._api.replace(held.name, order)

        return await _send_with_fallback(recipe, held, send)

    async def _disable_metrics(
        self, cluster_name: str, recipe: balancer_specs.BalancerSpec, held: lbapi.Balancer
    ) -> lbapi.Balancer:
        """Remove metrics and credentials.

        The credentials label has the value `REMOVING` until both are gone.
        """
        if held.metrics:
            labels = {**self._labels(cluster_name, held), BALANCER_CREDENTIALS: REMOVING}
            name, before = held.name, held
            held = await _send_with_fallback(
                recipe,
                held,
                lambda asked: self._api.replace(
                    name, balancer_specs.build_order(asked, labels, None, before)
                ),
            )
        await self._credentials.remove(held.name)
        return held

    async def _update_pools(
        self,
        held: lbapi.Balancer,
        targets: tuple[lbapi.Target, ...],
        status: cloud.Status | None = None,
    ) -> None:
        """Set the targets of all pools where they differ.

        Raises:
            Aborted: the cloud refused some targets; the error carries the status.
        """
        refused: dict[str, str] = {}
        for pool in held.target_pools or ():
            if balancer_specs.members(pool) != balancer_specs.members(
                balancer_specs.with_targets(pool, targets)
            ):
                try:
                    refused |= await self._set_targets(held.name, pool, targets)
                except TARGET_ERRORS as error:
                    refused[f"pool {pool.name}"] = str(error)
        if refused:
            details = "; ".join(
                f"{subject}: {reason}" for subject, reason in sorted(refused.items())
            )
            raise cloud.Aborted(
                f"targets refused by the cloud: {details}; correct the addresses of the nodes"
            ).carrying(status)

    async def _set_targets(
        self, name: str, pool: lbapi.Pool, targets: tuple[lbapi.Target, ...]
    ) -> dict[str, str]:
        """Set the targets of a pool; return the refused targets: node and address -> reason.

        Sends one request, and more if a target is refused.
        """
        present = pool.targets or ()
        stay = tuple(target for target in targets if target in present)
        new = tuple(target for target in targets if target not in present)

        async def put(given: tuple[lbapi.Target, ...]) -> None:
            order = balancer_specs.build_pool(balancer_specs.with_targets(pool, given), pool)
            await self._api.replace_pool(name, order)

        async def split(
            given: tuple[lbapi.Target, ...], more: tuple[lbapi.Target, ...], reason: Exception
        ) -> tuple[lbapi.Target, ...]:
            """Bisect until a refused target is alone, because the API does not name the target."""
            half = len(more) // 2
            if not half:
                refused[f"node {more[0].display_name} ({more[0].ip})"] = str(reason)
                return given
            for part in (more[:half], more[half:]):
                try:
                    await put((*given, *part))
                    given = (*given, *part)
                except TARGET_ERRORS as error:
                    given = await split(given, part, error)
            return given

        refused: dict[str, str] = {}
        try:
            await put(targets)
        except TARGET_ERRORS as error:
            if not new:
                raise
            if len(new) > 1 or len(stay) < len(present):
                # Remove old targets first: if that is refused, no new target is the cause.
                await put(stay)
            await split(stay, new, error)
        return refused

    def _labels(self, cluster_name: str, held: lbapi.Balancer | None) -> dict[str, str]:
        """Return all labels of a load balancer; labels set by others are kept."""
        labels = dict((held and held.labels) or {})
        labels.pop(BALANCER_CREDENTIALS, None)
        mark = self._credentials.digest
        return {
            **labels,
            **self._settings.extra_labels,
            BALANCER_CLUSTER: label_value(cluster_name),
            **({BALANCER_CREDENTIALS: mark} if mark else {}),
        }

    async def _remove(self, name: str, held: lbapi.Balancer | None) -> None:
        if held is not None and held.status != STATUS_TERMINATING:
            await self._api.delete(name)
            held = await self._api.balancer(name)
        if held is not None:
            raise cloud.RetryAfter(f"load balancer {name} is being deleted", seconds=DELETE_RETRY_S)
        await self._credentials.remove(name)


async def _send_with_fallback(
    recipe: balancer_specs.BalancerSpec,
    held: lbapi.Balancer | None,
    send: Callable[[balancer_specs.BalancerSpec], Awaitable[lbapi.Balancer]],
) -> lbapi.Balancer:
    """Create or replace a load balancer; if the cloud refuses, retry once without new targets."""
    try:
        return await send(recipe)
    except TARGET_ERRORS:
        kept = balancer_specs.without_new_targets(recipe, held)
        if kept == recipe:
            raise
        return await send(kept)


def _is_marked(held: lbapi.Balancer, cluster_name: str) -> bool:
    return held.label(BALANCER_CLUSTER) == label_value(cluster_name)


def _is_ours(held: lbapi.Balancer, cluster_name: str) -> bool:
    """Return whether a load balancer has the label of this cluster, or no cluster label."""
    return not held.label(BALANCER_CLUSTER) or _is_marked(held, cluster_name)


def _check_class(service: cloud.Service) -> None:
    name = ann.CLASS_NAME.read(service)
    if name not in (None, StackitProviderName):
        raise cloud.ImplementedElsewhere(f"{ann.CLASS_NAME.name} is {name}")


def _check_ready(held: lbapi.Balancer) -> None:
    if held.status == STATUS_ERROR:
        errors = "; ".join(f"[{entry.type}] {entry.description}" for entry in held.errors or ())
        raise cloud.Aborted(
            f"load balancer {held.name} is in state ERROR: {errors or 'no reason given'}"
        )
    if held.status != STATUS_READY:
        text = f"load balancer {held.name} is {held.status}, not ready yet"
        raise cloud.RetryAfter(text, seconds=RETRY_S)


def _log_ignored_annotations(service: cloud.Service) -> None:
    ignored = [
        annotation.name for annotation in ann.UNSUPPORTED if annotation.name in service.annotations
    ]
    if ignored:
        _log.warning(
            "annotations without effect ignored",
            service=service.key,
            annotations=", ".join(ignored),
        )
    flavor = ann.FLAVOR.read(service)
    if flavor and ann.PLAN.name not in service.annotations:
        _log.warning("flavor replaced by a service plan", service=service.key, plan=flavor)
