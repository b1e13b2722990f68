"""Load balancers of the Hetzner Cloud, over its client.

One is found by the label with its Service's UID. One without that label is adopted if it has the
name that the Service asks for, as one made by Terraform; one with another UID never. What was
adopted is labelled so, and released with its Service instead of deleted. Every step first looks at
what is there, so whatever a call that was cut short left behind is found by the next. While the
cloud works on a load balancer, `RetryAfter` says so, and the next call first asks how that went.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from ccm import cloud
from ccm.base import log
from ccm.base.parsing import parse_digits
from ccm.cloud.helpers import label_value

from . import client, config, names, networks, recipes
from . import service_annotations as ann
from .names import ADOPTED, CLUSTER, SERVICE_UID

AGAIN_S = 1.0
"""After so long it is asked whether the cloud has done it."""

MARKS = (SERVICE_UID, CLUSTER, ADOPTED)
"""Labels that a load balancer gets from us."""

REFUSED = (
    cloud.NotFound,
    cloud.InvalidArgument,
    cloud.FailedPrecondition,
    cloud.Aborted,
    cloud.Unknown,
)
"""Errors that may be about one target, such as a server that is gone: others are added even so."""


_log = log.logger("hcloud")


class HcloudBalancers:
    """`LoadBalancer`, `LoadBalancerDigests` and `LoadBalancerRemoval` in one."""

    def __init__(
        self,
        api: client.Client,
        settings: config.Config,
        network: networks.Network,
        warn: names.Warn,
    ) -> None:
        self._api = api
        self._settings = settings
        self._network = network
        self._warn = warn
        self._pending: dict[str, dict[int, int | None]] = {}
        """UID of a Service -> actions of ours that ran when we last heard of them -> the server
        that the action adds or removes as a target."""

    def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:  # noqa: ARG002 - the UID says enough
        """The one that is asked for, or else `a` and the UID of the Service."""
        return ann.NAME.read(service) or cloud.default_load_balancer_name(service)

    async def get_load_balancer(
        self,
        cluster_name: str,  # noqa: ARG002 - the UID says enough
        service: cloud.Service,
    ) -> cloud.Status | None:
        """Its status, without addresses while it is new; one request."""
        found = await self._find(service)
        if found is None:
            return None
        try:
            return recipes.status(found, service, self._settings)
        except cloud.InvalidArgument:  # a wrong annotation must not keep it from being deleted
            return recipes.status(found, None, self._settings)

    async def ensure_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> cloud.Status:
        """One request to find it, one to make it whole, or one for each step that it needs.

        Raises:
            InvalidArgument: the Service asks for something the cloud does not have.
            FailedPrecondition: one of another Service has the name, or one that may not be adopted.
            RetryAfter: the cloud works on it.
            Aborted: the cloud failed to do something, or refused some targets and all else is
                done; the message has the cloud's reason.
        """
        refused = await self._settled(service)
        recipe = await self._recipe(service)
        held = await self._find(service) or await self._by_name(service)
        if recipe.public is False:
            _check_reachable(recipe.network is not None, held)
        if held is None:
            held = await self._create(cluster_name, service, recipe, nodes)
        held = await self._marked(cluster_name, service, held)
        most = recipes.most_targets(recipe, held)
        servers = self._at_most(service, recipes.members(service, nodes, 0), most)
        keep_ips = self._settings.robot_enabled or recipes.has_dedicated(nodes)
        steps = recipes.steps(held, recipe, servers, keep_ips=keep_ips)
        held = await self._carry_out(service, held, steps, refused)
        self._check_address(service, held)
        self._check_type(service, held)
        status = recipes.status(held, service, self._settings)
        _check_refused(refused, nodes, status)
        return status

    async def update_load_balancer(
        self,
        cluster_name: str,  # noqa: ARG002 - the UID says enough
        service: cloud.Service,
        nodes: Sequence[cloud.Node],
    ) -> None:
        """One request to find it, another for each member that differs.

        Raises:
            NotFound: there is none.
            RetryAfter: the cloud works on it.
            Aborted: the cloud refused some targets; the others are as they should be.
        """
        refused = await self._settled(service)
        held = await self._find(service)
        if held is None:
            raise cloud.NotFound(f"no load balancer for {service.key}")
        found = recipes.members_of(held, service, nodes, self._settings)
        kept = self._at_most(service, list(found), held.load_balancer_type.max_targets)
        wanted = {number: found[number] for number in kept}
        keep_ips = self._settings.robot_enabled or recipes.has_dedicated(nodes)
        steps = list(recipes.targets(held, wanted, keep_ips=keep_ips))
        await self._carry_out(service, held, steps, refused)
        _check_refused(refused, nodes)

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: cloud.Service) -> None:  # noqa: ARG002
        """One request to find it, another to delete it; so for certificates made for it.

        One that was adopted is released: a request for each listener and target, and one for its
        labels.

        Raises:
            FailedPrecondition: it is protected from deletion.
        """
        for held in await self._all_of(service):
            if ADOPTED in held.labels:
                await self._release(service, held)
            else:
                await self._delete(held)
        await remove(self._api, service)
        self._pending.pop(service.uid, None)

    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """One request to find it, another to delete it; only with the mark of this cluster.

        Raises:
            FailedPrecondition: it is protected from deletion, or was adopted.
        """
        found = await self._api.named("load_balancers", client.Balancer, name)
        if found and found.labels.get(CLUSTER) == label_value(cluster_name):
            if ADOPTED in found.labels:
                raise cloud.FailedPrecondition(
                    f"load balancer {name} was not made for a Service and is never deleted; take "
                    f"the labels {ADOPTED}, {CLUSTER} and {SERVICE_UID} from it, or delete it in "
                    "the cloud"
                )
            await self._delete(found)

    async def list_load_balancers(self, cluster_name: str) -> Sequence[cloud.LoadBalancerRecord]:
        """All of Services, but for those marked as another cluster's; one request for each 50."""
        query = {"label_selector": SERVICE_UID}
        found, _ = await self._api.all("load_balancers", client.Balancer, query)
        network = await self._network.id()
        ours = label_value(cluster_name)
        return [
            cloud.LoadBalancerRecord(
                name=one.name,
                digest=recipes.held_digest(one, network) if recipes.has_address(one) else "",
                status=recipes.status(one, None, self._settings),
                adopted=ADOPTED in one.labels,
            )
            for one in found
            if one.labels.get(CLUSTER, ours) == ours
        ]

    def load_balancer_digest(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> str:
        """The digest of what `ensure_load_balancer` would make."""
        given = words(service)
        ids = {word: parse_digits(word) for word in given}
        numbers = [number for number in ids.values() if number is not None]
        recipe = recipes.wanted(
            service, self._settings, network=self._network.known_id, certificates=numbers
        )
        servers = recipes.members(service, nodes, recipes.most_targets(recipe, None))
        unknown = [word for word in given if ids[word] is None]
        name = self.get_load_balancer_name(cluster_name, service)
        return recipes.wanted_digest(name, recipe, servers, unknown, recipes.shape(service))

    # --- finding --------------------------------------------------------------------------------

    async def _all_of(self, service: cloud.Service) -> list[client.Balancer]:
        labels = {SERVICE_UID: service.uid}
        return await self._api.labelled("load_balancers", client.Balancer, labels)

    async def _find(self, service: cloud.Service) -> client.Balancer | None:
        found = await self._all_of(service)
        if len(found) > 1:
            names = ", ".join(sorted(one.name for one in found))
            raise cloud.FailedPrecondition(
                f"load balancers {names} have the same label {SERVICE_UID}={service.uid}; take it "
                "from all but one, or delete them"
            )
        return found[0] if found else None

    async def _by_name(self, service: cloud.Service) -> client.Balancer | None:
        """The one that has the name, where somebody gave one, or where none could be made."""
        if ann.NAME.read(service) or not self._place(service):
            return await self._adoptable(service)
        return None

    async def _adoptable(self, service: cloud.Service) -> client.Balancer | None:
        name = self.get_load_balancer_name("", service)
        found = await self._api.named("load_balancers", client.Balancer, name)
        if found and found.labels.get(SERVICE_UID, service.uid) != service.uid:
            raise cloud.FailedPrecondition(
                f"load balancer {name} belongs to the Service with the UID "
                f"{found.labels[SERVICE_UID]}; give this one another name"
            )
        if found and SERVICE_UID not in found.labels and not self._settings.balancers_adopt_by_name:
            raise cloud.FailedPrecondition(
                f"load balancer {name} is there already, and HCLOUD_LOAD_BALANCERS_ADOPT_BY_NAME "
                f"is false; give the Service another name by {ann.NAME.name}"
            )
        return found

    # --- making and changing --------------------------------------------------------------------

    async def _recipe(self, service: cloud.Service) -> recipes.Recipe:
        network = await self._network.id()
        recipe = recipes.wanted(service, self._settings, network=network)
        if any(one.protocol == "https" for one in recipe.ports):
            found = await resolved(self._api, service)
            recipe = recipes.wanted(service, self._settings, network=network, certificates=found)
        return recipe

    def _place(self, service: cloud.Service) -> Mapping[str, str]:
        """Where to make one; the location goes before, and an empty one takes it back."""
        location = recipes.first(ann.LOCATION.read(service), self._settings.balancers_location)
        zone = recipes.first(ann.NETWORK_ZONE.read(service), self._settings.balancers_network_zone)
        return {"location": location} if location else {"network_zone": zone} if zone else {}

    async def _create(
        self,
        cluster_name: str,
        service: cloud.Service,
        recipe: recipes.Recipe,
        nodes: Sequence[cloud.Node],
    ) -> client.Balancer:
        name = self.get_load_balancer_name(cluster_name, service)
        place = self._place(service)
        if not place:
            raise cloud.InvalidArgument(
                f"nothing says where to make a load balancer; set {ann.LOCATION.name}, or "
                "HCLOUD_LOAD_BALANCERS_LOCATION for all"
            )
        servers = recipes.members(service, nodes, recipes.most_targets(recipe, None))
        order = {
            "name": name,
            "labels": self._labels(cluster_name, service),
            **place,
            **_whole_order(recipe, servers),
        }
        try:
            made, action = await self._ordered(order)
        except cloud.AlreadyExists:
            # Made meanwhile by a call whose answer was lost, or by somebody else.
            found = await self._adoptable(service)
            if found is None:
                raise
            return found
        if not recipe.type:
            self._warn(
                service.reference,
                names.TYPE_UNCONFIGURED,
                f"the load balancer is made with type {recipes.DEFAULT_TYPE}, for nothing says "
                f"which; set {ann.TYPE.name}, or HCLOUD_LOAD_BALANCERS_TYPE for all",
            )
        self._note(service, action)
        self._check_noted(service)
        return made

    async def _ordered(self, order: Mapping[str, Any]) -> tuple[client.Balancer, client.Action]:
        """Order a load balancer; once more without targets where one may be refused."""
        table, key = "load_balancers", "load_balancer"
        try:
            return await self._api.create(table, key, client.Balancer, order)
        except REFUSED:
            if not order.get("targets"):
                raise
        # The API does not say which one it refuses. Targets follow one by one, as in any change.
        return await self._api.create(table, key, client.Balancer, {**order, "targets": []})

    def _labels(self, cluster_name: str, service: cloud.Service) -> Mapping[str, str]:
        return {SERVICE_UID: service.uid, CLUSTER: label_value(cluster_name)}

    async def _marked(
        self, cluster_name: str, service: cloud.Service, held: client.Balancer
    ) -> client.Balancer:
        """With name and label, as others will look for it."""
        name = self.get_load_balancer_name(cluster_name, service)
        if held.name == name and held.labels.get(SERVICE_UID) == service.uid:
            return held
        if ADOPTED in held.labels and held.name != name:
            raise cloud.FailedPrecondition(
                f"load balancer {held.name} was there before this Service and is not renamed; set "
                f"{ann.NAME.name} to its name, or make the Service anew"
            )
        labels = {**held.labels, **self._labels(cluster_name, service)}
        is_adopted = SERVICE_UID not in held.labels
        if is_adopted:
            # In the same request as the UID, or a deletion would find the one without the other.
            labels[ADOPTED] = "true"
        marked = await self._api.rename(held.id, name=name, labels=labels)
        if is_adopted:
            _log.info("load balancer adopted", service=service.key, load_balancer=name)
            self._warn(
                service.reference,
                names.BALANCER_ADOPTED,
                f"load balancer {name} was there already and serves this Service now; with the "
                "Service it is released, not deleted",
            )
        return marked

    def _at_most(self, service: cloud.Service, found: Sequence[int], most: int) -> Sequence[int]:
        if most and len(found) > most:
            self._warn_of_targets(service, f"it may have {most} targets, for {len(found)} nodes")
        return found[:most] if most else found

    def _warn_of_targets(self, service: cloud.Service, text: str) -> None:
        advice = f"some nodes get no traffic from it; a larger one by {ann.TYPE.name} has room"
        message = f"the load balancer is full: {text}; {advice}"
        self._warn(service.reference, names.MAX_TARGETS, message)

    async def _carry_out(
        self,
        service: cloud.Service,
        held: client.Balancer,
        steps: Sequence[recipes.Step],
        refused: dict[int, str],
    ) -> client.Balancer:
        """Take every step but those about refused targets; return the load balancer afterwards.

        Args:
            service: whose load balancer it is.
            held: as it was before.
            steps: in this order.
            refused: server -> why; targets that are refused are added to it.
        """
        for step in steps:
            if step.server in refused:
                continue
            try:
                await self._act(service, held, step)
            except REFUSED as error:
                if step.server is None:
                    raise
                refused[step.server] = str(error)
        self._check_noted(service)
        if any(step.action in recipes.READ_AGAIN for step in steps):
            path = f"/load_balancers/{held.id}"
            return await self._api.one(path, "load_balancer", client.Balancer)
        return held

    async def _act(self, service: cloud.Service, held: client.Balancer, step: recipes.Step) -> None:
        path = f"/load_balancers/{held.id}/actions/{step.action}"
        try:
            action = await self._api.act(path, step.order)
        except cloud.ResourceExhausted as error:
            if step.action != "add_target":
                raise
            self._warn_of_targets(service, str(error))
        except cloud.AlreadyExists:
            if step.action != "add_target":
                raise  # else done already, by a call whose answer was lost
        except cloud.NotFound:
            if step.action not in ("remove_target", "delete_service", "detach_from_network"):
                raise  # likewise
        else:
            self._note(service, action, step.server)

    async def _release(self, service: cloud.Service, held: client.Balancer) -> None:
        """Take off what the Service brought, its labels last: by them the next call finds it."""
        await self._settled(service)
        steps, ports = recipes.release(held, service)
        await self._carry_out(service, held, steps, {})
        kept = {name: text for name, text in held.labels.items() if name not in MARKS}
        await self._api.rename(held.id, name=held.name, labels=kept)
        left = f", and still listens on {', '.join(map(str, ports))}" if ports else ""
        _log.info("load balancer released", service=service.key, load_balancer=held.name)
        self._warn(
            service.reference,
            names.BALANCER_RELEASED,
            f"load balancer {held.name} was there before this Service: it is not deleted{left}; "
            "delete it in the cloud if nobody needs it",
        )

    async def _delete(self, held: client.Balancer) -> None:
        if held.protection.delete:
            raise cloud.FailedPrecondition(
                f"load balancer {held.name} is protected from deletion; take the protection away"
            )
        with contextlib.suppress(cloud.NotFound):
            action = await self._api.delete(f"/load_balancers/{held.id}")
            if action is not None and action.status == "running":
                raise cloud.RetryAfter(f"{held.name} is being deleted", seconds=AGAIN_S)
            if action is not None:
                _check(action)

    # --- actions --------------------------------------------------------------------------------

    def _note(
        self, service: cloud.Service, action: client.Action, server: int | None = None
    ) -> None:
        _check(action)
        if action.status == "running":
            self._pending.setdefault(service.uid, {})[action.id] = server

    def _check_noted(self, service: cloud.Service) -> None:
        if number := len(self._pending.get(service.uid, ())):
            text = f"the cloud works on the load balancer of {service.key} ({number} actions)"
            raise cloud.RetryAfter(text, seconds=AGAIN_S)

    async def _settled(self, service: cloud.Service) -> dict[int, str]:
        """Ask how our last actions went; one request, if there were any.

        Returns: server -> why it was refused as a target. The next steps leave it out: an action
        about it would again lock the load balancer against those about other targets.
        """
        noted = self._pending.get(service.uid)
        refused: dict[int, str] = {}
        if not noted:
            return refused
        found = await self._api.actions(list(noted))
        running = {one.id: noted[one.id] for one in found if one.status == "running"}
        self._pending[service.uid] = running
        if not running:
            del self._pending[service.uid]
        for one in found:
            try:
                _check(one)
            except cloud.Aborted as error:
                server = noted[one.id]
                if server is None:
                    raise
                refused[server] = str(error)
        self._check_noted(service)
        return refused

    def _check_type(self, service: cloud.Service, held: client.Balancer) -> None:
        kind = held.load_balancer_type
        if kind.deprecated:
            self._warn(
                service.reference,
                names.TYPE_DEPRECATED,
                f"the load balancer has type {kind.name}, which is deprecated; set "
                f"{ann.TYPE.name} to another one",
            )

    def _check_address(self, service: cloud.Service, held: client.Balancer) -> None:
        if not recipes.has_address(held):
            _check_reachable(held.public_net.enabled, held)
            text = f"the load balancer of {service.key} has no address yet"
            raise cloud.RetryAfter(text, seconds=AGAIN_S)


def _check_reachable(otherwise: bool, held: client.Balancer | None) -> None:
    """Raise where neither a network nor anything else would ever give it an address."""
    if not (otherwise or (held and held.private_net)):
        raise cloud.InvalidArgument(
            "the load balancer would have neither a public interface nor a network, and nobody "
            f"could reach it; set HCLOUD_NETWORK, or {ann.DISABLE_PUBLIC_NETWORK.name} to false"
        )


def _check(action: client.Action) -> None:
    """Raise what follows from an action that failed."""
    if action.status == "error":
        reason = action.error.message if action.error else "no reason"
        raise cloud.Aborted(f"{action.command} failed: {reason}")


def _check_refused(
    refused: Mapping[int, str], nodes: Sequence[cloud.Node], status: cloud.Status | None = None
) -> None:
    """Raise Aborted where targets were refused; it carries the Status."""
    if refused:
        names = recipes.servers(nodes)
        told = "; ".join(
            f"node {names.get(number, 'unknown')} (server {number}): {why}"
            for number, why in sorted(refused.items())
        )
        raise cloud.Aborted(
            f"targets refused by the cloud: {told}; correct provider ID or network of the nodes"
        ).carrying(status)


def _whole_order(recipe: recipes.Recipe, servers: Sequence[int]) -> Mapping[str, Any]:
    """A new load balancer in one request, as far as that goes."""
    order: dict[str, Any] = {
        "load_balancer_type": recipe.type or recipes.DEFAULT_TYPE,
        "services": [recipes.listener(one) for one in recipe.ports],
    }
    if recipe.algorithm:
        order["algorithm"] = {"type": recipe.algorithm}
    if recipe.public is not None:
        order["public_interface"] = recipe.public
    # A place of its own in the network is given by an action, and has to be there before targets
    # that are reached through the network.
    is_plain = not (recipe.private_ip or recipe.subnet)
    if recipe.network is not None and is_plain:
        order["network"] = recipe.network
    if is_plain or not recipe.private_targets:
        private = recipe.private_targets
        order["targets"] = [recipes.target(one, private=private) for one in servers]
    return order


STAGING = "HC-Use-Staging-CA"
"""Label by which the API has the issuer's staging environment make a certificate."""


def words(service: cloud.Service) -> Sequence[str]:
    """Names and IDs of the certificates that a Service shows."""
    if ann.PROTOCOL.read(service) != "https":
        return ()
    if ann.CERTIFICATE_TYPE.read(service) == "managed":
        return (_managed_name(service),)
    return ann.CERTIFICATES.read(service) or ()


def _managed_name(service: cloud.Service) -> str:
    return ann.MANAGED_NAME.read(service) or f"ccm-managed-certificate-{service.uid}"


async def resolved(api: client.Client, service: cloud.Service) -> Sequence[int]:
    """Their IDs; one request for each name. What is to be made is made.

    Raises:
        InvalidArgument: there is no such certificate, or it is not said what one is for.
    """
    if ann.CERTIFICATE_TYPE.read(service) == "managed":
        return (await _managed(api, service),)
    found = []
    for word in words(service):
        number = parse_digits(word)
        if number is None:
            thing = await api.resolved("certificates", "certificate", client.Labelled, word)
            number = thing.id
        found.append(number)
    return found


async def _managed(api: client.Client, service: cloud.Service) -> int:
    name, domains = _managed_name(service), ann.MANAGED_DOMAINS.read(service)
    if not domains:
        raise cloud.InvalidArgument(
            f"{ann.MANAGED_DOMAINS.name} is missing; a managed certificate needs it"
        )
    found = await api.named("certificates", client.Labelled, name)
    if found is None:
        labels = {SERVICE_UID: service.uid}
        if ann.MANAGED_STAGING.read(service):
            labels[STAGING] = "true"
        order = {"name": name, "type": "managed", "domain_names": domains, "labels": labels}
        with contextlib.suppress(cloud.AlreadyExists):  # by a call whose answer was lost
            made, _ = await api.create("certificates", "certificate", client.Labelled, order)
            return made.id
        found = await api.resolved("certificates", "certificate", client.Labelled, name)
    return found.id


async def remove(api: client.Client, service: cloud.Service) -> None:
    """Take away what was made for a Service: one request, another for each.

    Whatever the Service asks for by now: it may have asked for one before, and nothing else is
    looked at than the label, which certificates of others do not have.
    """
    labels = {SERVICE_UID: service.uid}
    for one in await api.labelled("certificates", client.Labelled, labels):
        with contextlib.suppress(cloud.NotFound):
            await api.delete(f"/certificates/{one.id}")
