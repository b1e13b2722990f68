"""Load balancers of STACKIT, over its client.

One is found by its name, which has the Service's UID. Each change is one request with everything in
it, so whatever a call that was cut short left behind is what the next one finds. While the cloud
works on one, `RetryAfter` says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

from ccm import cloud
from ccm.base import log
from ccm.cloud.helpers import label_value

from . import config, lbapi, recipes
from . import service_annotations as ann
from .marks import BALANCER_CLUSTER, BALANCER_CREDENTIALS, StackitProviderName


class Credentials:
    """Those of every load balancer, if the settings have any."""

    def __init__(self, api: lbapi.Client, given: config.Variables) -> None:
        self._api = api
        self.url = given.remotewrite_endpoint
        self._said = {"username": given.remotewrite_user, "password": given.remotewrite_password}
        seed = "\n".join((self.url, *self._said.values()))
        # Too short to try passwords against.
        self.mark = sha256(seed.encode()).hexdigest()[:6] if self.url else ""

    async def ensured(self, held: lbapi.Balancer | None, name: str) -> lbapi.Metrics | None:
        """What a load balancer has to refer to; no request where that is known.

        A new one needs two, and one more for each that an earlier call left behind.
        """
        if not self.url:
            return None
        ref = held.metrics.credentials_ref if held and held.metrics else None
        said = {**self._said, "displayName": name}
        if held is not None and ref is not None:
            if held.label(BALANCER_CREDENTIALS) == self.mark:
                return lbapi.Metrics(credentials_ref=ref, push_url=self.url)
            try:
                await self._api.replace_credentials(ref, said)
            except cloud.NotFound:
                ref = None  # somebody deleted them
        if ref is None:
            await self.remove(name)
            ref = await self._api.create_credentials(said)
        return lbapi.Metrics(credentials_ref=ref, push_url=self.url)

    async def remove(self, name: str) -> None:
        """Take away all that bear a load balancer's name, which must not refer to them any more."""
        for one in await self._api.credentials():
            if one.display_name == name:
                await self._api.delete_credentials(one.credentials_ref)


AGAIN_S = 10.0
"""After so long it is asked whether the cloud has done it (the vendor's manager)."""

GOING_S = 5.0
"""Likewise of a deletion."""

REFUSED = (cloud.InvalidArgument, cloud.FailedPrecondition, cloud.Unknown)
"""Errors of an order that may be about one target: others are added even so."""

READY, ERROR, GOING = "STATUS_READY", "STATUS_ERROR", "STATUS_TERMINATING"

LEAVING = "leaving"
"""Label of a load balancer whose credentials are yet to be deleted."""

OURS = "k8s-svc-"
"""What names of Services' load balancers begin with."""

_log = log.logger(StackitProviderName)


class StackitBalancers:
    """`LoadBalancer`, `LoadBalancerDigests` and `LoadBalancerRemoval` in one."""

    def __init__(
        self, api: lbapi.Client, settings: config.LoadBalancer, credentials: Credentials
    ) -> None:
        self._api = api
        self._settings = settings
        self._credentials = credentials

    def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:  # noqa: ARG002 - the UID says enough
        """`k8s-svc-<UID>-<name>`, cut to 63 characters."""
        return recipes.name_of(service)

    async def get_load_balancer(
        self,
        cluster_name: str,  # noqa: ARG002 - the UID says enough
        service: cloud.Service,
    ) -> cloud.Status | None:
        """Its status, without an address while it is new; one request."""
        found = await self._api.balancer(recipes.name_of(service))
        if found is None:
            return None
        try:
            return recipes.status(found, service)
        except cloud.InvalidArgument:  # a wrong annotation must not keep it from being deleted
            return recipes.status(found, None)

    async def ensure_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> cloud.Status:
        """One request to find it, and one to make it or to bring it in step.

        Raises:
            InvalidArgument: the Service asks for something the cloud does not have.
            FailedPrecondition: it asks for a change that the cloud does not make.
            ImplementedElsewhere: its class is another controller's, and there is none.
            RetryAfter: the cloud works on it.
            Aborted: the cloud failed, or refused some targets and all else is done; the message
                has the cloud's reason.
        """
        held = await self._found(cluster_name, recipes.name_of(service))
        if held is None:
            _check_class(service)
        recipe = recipes.wanted(service, nodes, self._settings)
        if held is None:
            _tell_of_what_has_no_effect(service)
            held = await self._create(cluster_name, recipe)
        else:
            held = await self._in_step(cluster_name, recipe, held)
        _check_ready(held)
        status = recipes.status(held, service)
        # Nothing is left to do here unless the order was refused because of its targets.
        await self._give(held, recipes.targets(nodes), status)
        return status

    async def update_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> None:
        """One request to find it, another for each pool whose members differ.

        Raises:
            NotFound: there is none.
            RetryAfter: the cloud works on it.
            Aborted: the cloud refused some targets; the others are as they should be.
        """
        held = await self._found(cluster_name, recipes.name_of(service))
        if held is None:
            raise cloud.NotFound(f"no load balancer for {service.key}")
        # Every pool has the same members, whatever the Service asks for beside them.
        await self._give(held, recipes.targets(nodes))

    async def ensure_load_balancer_deleted(
        self,
        cluster_name: str,
        service: cloud.Service,
    ) -> None:
        """Three requests; so for credentials of its metrics. Not over before it is gone.

        Raises:
            RetryAfter: the cloud still works on it.
        """
        await self._remove(cluster_name, recipes.name_of(service), is_named=True)

    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """As `ensure_load_balancer_deleted`, but only with the label of this cluster."""
        await self._remove(cluster_name, name, is_named=False)

    async def list_load_balancers(self, cluster_name: str) -> Sequence[cloud.LoadBalancerRecord]:
        """All of Services, but for those of another cluster; one request for each 100."""
        return [
            cloud.LoadBalancerRecord(
                name=one.name,
                digest=self._held_digest(one) if one.status == READY else "",
                status=recipes.status(one, None),
            )
            for one in await self._api.balancers()
            if one.name.startswith(OURS) and _is_ours(one, cluster_name)
        ]

    def load_balancer_digest(
        self,
        cluster_name: str,  # noqa: ARG002 - the name says enough
        service: cloud.Service,
        nodes: Sequence[cloud.Node],
    ) -> str:
        """The digest of what `ensure_load_balancer` would make."""
        recipe = recipes.wanted(service, nodes, self._settings)
        shape = [ann.IP_MODE.name] if ann.IP_MODE.read(service) else []
        return recipes.digest(recipe, self._credentials.url, self._credentials.mark, *shape)

    def _held_digest(self, held: lbapi.Balancer) -> str:
        url = (held.metrics.push_url if held.metrics else None) or ""
        return recipes.digest(
            recipes.of(held), url, held.label(BALANCER_CREDENTIALS) if url else ""
        )

    # --- finding --------------------------------------------------------------------------------

    async def _found(self, cluster_name: str, name: str) -> lbapi.Balancer | None:
        held = await self._api.balancer(name)
        if held is None:
            return None
        if not _is_ours(held, cluster_name):
            raise cloud.FailedPrecondition(
                f"load balancer {name} belongs to cluster {held.label(BALANCER_CLUSTER)!r}; give "
                "each cluster of a project another --cluster-name, and the Service another UID"
            )
        if held.status == GOING:
            raise cloud.RetryAfter(f"load balancer {name} is being deleted", seconds=GOING_S)
        return held

    # --- making and changing --------------------------------------------------------------------

    async def _create(self, cluster_name: str, recipe: recipes.Recipe) -> lbapi.Balancer:
        metrics = await self._credentials.ensured(None, recipe.name)
        labels = self._labels(cluster_name, None)
        try:
            return await _sent(
                recipe,
                None,
                lambda asked: self._api.create(recipes.order(asked, labels, metrics)),
            )
        except cloud.Aborted:
            # Made meanwhile by a call whose answer was lost.
            found = await self._found(cluster_name, recipe.name)
            if found is None:
                raise
            return found

    async def _in_step(
        self, cluster_name: str, recipe: recipes.Recipe, held: lbapi.Balancer
    ) -> lbapi.Balancer:
        if what := recipes.immutable(held, recipe):
            raise cloud.FailedPrecondition(
                f"the API cannot change {what} of load balancer {held.name}; take the change back, "
                "or make the Service anew"
            )
        metrics = await self._credentials.ensured(held, recipe.name)
        if metrics is None and (held.metrics or held.label(BALANCER_CREDENTIALS)):
            held = await self._switched_off(cluster_name, recipe, held)
        is_marked = held.label(BALANCER_CREDENTIALS) == self._credentials.mark
        labels = self._labels(cluster_name, held)

        async def send(asked: recipes.Recipe) -> lbapi.Balancer:
            if is_marked and recipes.fits(held, asked, metrics):
                return held
            order = recipes.order(asked, labels, metrics, held)
            return await self._api.replace(held.name, order)

        return await _sent(recipe, held, send)

    async def _switched_off(
        self, cluster_name: str, recipe: recipes.Recipe, held: lbapi.Balancer
    ) -> lbapi.Balancer:
        """Without metrics and their credentials; the label says so until it is done."""
        if held.metrics:
            labels = {**self._labels(cluster_name, held), BALANCER_CREDENTIALS: LEAVING}
            name, there = held.name, held
            held = await _sent(
                recipe,
                held,
                lambda asked: self._api.replace(name, recipes.order(asked, labels, None, there)),
            )
        await self._credentials.remove(held.name)
        return held

    async def _give(
        self,
        held: lbapi.Balancer,
        targets: tuple[lbapi.Target, ...],
        status: cloud.Status | None = None,
    ) -> None:
        """Give each pool these targets, where it has others.

        Raises:
            Aborted: the cloud refused some; it carries the Status.
        """
        refused: dict[str, str] = {}
        for pool in held.target_pools or ():
            if recipes.members(pool) != recipes.members(recipes.with_targets(pool, targets)):
                try:
                    refused |= await self._set_targets(held.name, pool, targets)
                except REFUSED as error:
                    refused[f"pool {pool.name}"] = str(error)
        if refused:
            told = "; ".join(f"{what}: {why}" for what, why in sorted(refused.items()))
            raise cloud.Aborted(
                f"targets refused by the cloud: {told}; correct the addresses of the nodes"
            ).carrying(status)

    async def _set_targets(
        self, name: str, pool: lbapi.Pool, targets: tuple[lbapi.Target, ...]
    ) -> dict[str, str]:
        """Set the targets of a pool; return which are refused, and why.

        One request, and more where one is refused.
        """
        there = pool.targets or ()
        stay = tuple(one for one in targets if one in there)
        new = tuple(one for one in targets if one not in there)

        async def put(given: tuple[lbapi.Target, ...]) -> None:
            order = recipes.pool_order(recipes.with_targets(pool, given), pool)
            await self._api.replace_pool(name, order)

        async def split(
            given: tuple[lbapi.Target, ...], more: tuple[lbapi.Target, ...], why: Exception
        ) -> tuple[lbapi.Target, ...]:
            """Halve until a refused one is alone: the API does not say which it refuses."""
            half = len(more) // 2
            if not half:
                refused[f"node {more[0].display_name} ({more[0].ip})"] = str(why)
                return given
            for part in (more[:half], more[half:]):
                try:
                    await put((*given, *part))
                    given = (*given, *part)
                except REFUSED as error:
                    given = await split(given, part, error)
            return given

        refused: dict[str, str] = {}
        try:
            await put(targets)
        except REFUSED as error:
            if not new:
                raise
            if len(new) > 1 or len(stay) < len(there):
                # Nodes that are gone leave first. If that is refused, no new target is to blame.
                await put(stay)
            await split(stay, new, error)
        return refused

    def _labels(self, cluster_name: str, held: lbapi.Balancer | None) -> dict[str, str]:
        """All labels of a load balancer; those that somebody else gave it stay."""
        theirs = dict((held and held.labels) or {})
        theirs.pop(BALANCER_CREDENTIALS, None)
        mark = self._credentials.mark
        return {
            **theirs,
            **self._settings.extra_labels,
            BALANCER_CLUSTER: label_value(cluster_name),
            **({BALANCER_CREDENTIALS: mark} if mark else {}),
        }

    async def _remove(self, cluster_name: str, name: str, *, is_named: bool) -> None:
        held = await self._api.balancer(name)
        if held is not None:
            owner = held.label(BALANCER_CLUSTER)
            if owner != label_value(cluster_name) and (owner or not is_named):
                return  # of a copy of this cluster, or of nobody who is known
            if held.status != GOING:
                await self._api.delete(name)
                held = await self._api.balancer(name)
        if held is not None:
            raise cloud.RetryAfter(f"load balancer {name} is being deleted", seconds=GOING_S)
        await self._credentials.remove(name)


async def _sent(
    recipe: recipes.Recipe,
    held: lbapi.Balancer | None,
    send: Callable[[recipes.Recipe], Awaitable[lbapi.Balancer]],
) -> lbapi.Balancer:
    """Send an order; one that is refused once more without new targets."""
    try:
        return await send(recipe)
    except REFUSED:
        kept = recipes.without_new_targets(recipe, held)
        if kept == recipe:
            raise
        return await send(kept)


def _is_ours(held: lbapi.Balancer, cluster_name: str) -> bool:
    """Whether it is of this cluster, or of one that does not say so."""
    return held.label(BALANCER_CLUSTER) in ("", label_value(cluster_name))


def _check_class(service: cloud.Service) -> None:
    name = ann.CLASS_NAME.read(service)
    if name not in (None, StackitProviderName):
        raise cloud.ImplementedElsewhere(f"{ann.CLASS_NAME.name} is {name}")


def _check_ready(held: lbapi.Balancer) -> None:
    if held.status == ERROR:
        said = "; ".join(f"[{one.type}] {one.description}" for one in held.errors or ())
        raise cloud.Aborted(f"load balancer {held.name} is in state ERROR: {said or 'no reason'}")
    if held.status != READY:
        text = f"load balancer {held.name} is {held.status}, not ready yet"
        raise cloud.RetryAfter(text, seconds=AGAIN_S)


def _tell_of_what_has_no_effect(service: cloud.Service) -> None:
    found = [one.name for one in ann.UNSUPPORTED if one.name in service.annotations]
    if found:
        _log.warning(
            "Annotations of older load balancers have no effect",
            service=service.key,
            annotations=", ".join(found),
        )
    flavor = ann.FLAVOR.read(service)
    if flavor and ann.PLAN.name not in service.annotations:
        _log.warning("A service plan stands for a flavor", service=service.key, plan=flavor)
