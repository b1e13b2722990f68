"""Load balancers of the Hetzner Cloud.

A load balancer is found by the label with its Service's UID. A load balancer without that label,
such as one created by Terraform, is adopted if it has the name that the Service asks for. A label
with another UID prevents adoption. Adopted load balancers are labelled as such; when their Service
is deleted, they are released and not deleted. Every call first reads the load balancer, so that the
call continues where an interrupted call stopped. While the cloud works on a load balancer, calls
raise `RetryAfter`; the next call first reads the results of the pending actions.

A label with the name of another cluster may be that of a renamed cluster, or of the original of a
copied cluster, whose Services have the same UIDs. Therefore a load balancer with such a label is
not deleted before `ensure_load_balancer` has corrected it. Load balancers of Hetzner's own manager
have no cluster label.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ccm import cloud
from ccm.base import log
from ccm.base.parsing import parse_digits
from ccm.cloud.helpers import label_value

from . import balancer_specs, client, config, names, networks, robot, robot_targets
from . import service_annotations as ann
from .balancer_specs import TargetKey
from .names import ADOPTED, CLUSTER, SERVICE_UID

RETRY_S = 1.0
"""Retry delay, in seconds, while the cloud works on a load balancer."""

OWN_LABELS = (SERVICE_UID, CLUSTER, ADOPTED)
"""Labels that this provider sets on a load balancer."""

TARGET_ERRORS = (
    cloud.NotFound,
    cloud.InvalidArgument,
    cloud.FailedPrecondition,
    cloud.Aborted,
    cloud.Unknown,
)
"""Errors that may concern one target, such as a deleted server; other targets are still added."""


_log = log.logger("hcloud")


class HcloudBalancers:
    """Implementation of `LoadBalancer` and of all optional interfaces of load balancers."""

    def __init__(
        self,
        api: client.Client,
        settings: config.Config,
        network: networks.ClusterNetwork,
        warn: names.Warn,
        robot: robot.RobotClient | None = None,
    ) -> None:
        self._api = api
        self._settings = settings
        self._network = network
        self._warn = warn
        self._ip_targets = robot_targets.RobotTargets(settings, robot, self._report)
        self._pending: dict[str, dict[int, TargetKey | None]] = {}
        """UID of a Service -> ID of each action that ran at the last read -> the target that the
        action adds or removes; None = the action concerns no target.
        """
        self._reported: dict[str, dict[str, str]] = {}
        """UID of a Service or Node -> reason -> message of the last event; see `_report`."""
        self._listed: dict[str, client.Balancer] = {}
        """UID of a Service -> load balancer in the last listing."""
        self._foreign_nodes: Collection[str] = ()
        """UIDs of the nodes whose events `_report_foreign_nodes` has recorded."""

    def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:  # noqa: ARG002 - the UID is unique
        """Return the last listed name, or else the name in the annotation, or the default name.

        An existing load balancer may have another name: one given in the console, the former one
        while a new one is refused, or that of an annotation that was removed.
        """
        listed = self._listed.get(service.uid)
        return listed.name if listed else _first_name(service)

    async def get_load_balancer(
        self,
        cluster_name: str,  # noqa: ARG002 - the UID is unique
        service: cloud.Service,
    ) -> cloud.Status | None:
        """Return the status of the load balancer; None if it does not exist. Sends one request.

        The status has no addresses until the cloud has completed the creation.
        """
        held = await self._find(service)
        if held is None:
            return None
        try:
            return balancer_specs.status(held, service, self._settings)
        except cloud.InvalidArgument:  # an invalid annotation must not block the deletion
            return balancer_specs.status(held, None, self._settings)

    async def ensure_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> cloud.Status:
        """Create or update the load balancer.

        Sends one request to find it, and one to create it or one for each change.

        Raises:
            InvalidArgument: the Service asks for something the cloud does not offer.
            FailedPrecondition: the name belongs to the load balancer of another Service, or to a
                load balancer that may not be adopted.
            RetryAfter: the cloud works on the load balancer.
            Aborted: an action failed, or the cloud refused some targets and did everything else;
                the message has the cloud's reason.
        """
        refused = await self._read_pending_actions(service)
        recipe = await self._desired_spec(service)
        self._report_unused(service, recipe)
        self._report_foreign_nodes(nodes)
        held = await self._find(service) or await self._find_by_name(service)
        if recipe.public is False:
            _check_reachable(recipe.network is not None, held)
        if (recipe.private_ip or recipe.subnet) and balancer_specs.needs_attachment(held, recipe):
            # Before the first write: a load balancer would be created, or lose its network.
            balancer_specs.check_attachment(recipe, await self._network.read())
        targets, others = await self._ip_targets.add(
            balancer_specs.members(service, nodes),
            *(service, nodes, held),
            private=recipe.private_targets,
        )
        if held is None:
            held = await self._create(cluster_name, service, recipe, targets)
        held = await self._ensure_labels(cluster_name, service, held)
        most = balancer_specs.max_targets(recipe, held)
        targets = self._limit_targets(service, targets, most)
        steps = balancer_specs.plan_steps(held, recipe, targets, others)
        held = await self._run_steps(service, held, steps, refused)
        self._check_address(service, held)
        self._check_type(service, held)
        status = balancer_specs.status(held, service, self._settings)
        _check_refused(refused, nodes, status)
        return status

    async def update_load_balancer(
        self,
        cluster_name: str,  # noqa: ARG002 - the UID is unique
        service: cloud.Service,
        nodes: Sequence[cloud.Node],
    ) -> None:
        """Update the members: one request to find the load balancer, one per member that differs.

        Raises:
            NotFound: the load balancer does not exist.
            RetryAfter: the cloud works on the load balancer.
            Aborted: an action failed, or the cloud refused some targets and accepted the others.
        """
        refused = await self._read_pending_actions(service)
        self._report_foreign_nodes(nodes)
        held = await self._find(service)
        if held is None:
            raise cloud.NotFound(f"no load balancer for {service.key}")
        servers = balancer_specs.members_of(held, service, nodes, self._settings)
        targets, others = await self._ip_targets.add(servers, service, nodes, held, private=None)
        kept = self._limit_targets(service, targets, held.load_balancer_type.max_targets)
        wanted = {key: isinstance(key, int) and servers[key] for key in kept}
        steps = list(balancer_specs.plan_target_steps(held, wanted, others))
        await self._run_steps(service, held, steps, refused)
        _check_refused(refused, nodes)

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: cloud.Service) -> None:
        """Delete the load balancer and its certificates: two requests to list, one per deletion.

        An adopted load balancer is released instead: one request per listener and target, and one
        for its labels. A protected load balancer, one with the label of another cluster, and
        certificates that another load balancer uses are kept, with an event.

        Raises:
            RetryAfter: the cloud works on the load balancer, or still deletes it.
        """
        for held in await self._list_of_service(service):
            if other := _other_cluster(held, cluster_name):
                self._report(
                    service.reference,
                    names.BALANCER_KEPT,
                    f"load balancer {held.name} was kept, because its label names cluster "
                    f"{other!r}; if that is a former name of this cluster, delete the load "
                    "balancer in the cloud",
                )
                continue
            if ADOPTED in held.labels:
                await self._release(service, held)
                continue
            try:
                await self._delete(held)
            except client.Protected:
                self._report(
                    service.reference,
                    names.BALANCER_PROTECTED,
                    f"load balancer {held.name} is protected from deletion and was kept with its "
                    "listeners and targets; if it is unused, remove the protection and delete it",
                )
        if kept := await delete_certificates(self._api, service):
            self._report(
                service.reference,
                names.CERTIFICATE_IN_USE,
                f"managed certificates {', '.join(kept)} were kept, since other load balancers use "
                "them; delete them in the cloud when they are unused",
            )
        self._pending.pop(service.uid, None)
        self._reported.pop(service.uid, None)
        self._listed.pop(service.uid, None)

    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """Delete a load balancer of this cluster by name: one request to find it, one to delete it.

        Raises:
            FailedPrecondition: the load balancer lacks the label of this cluster, is protected from
                deletion, or was adopted.
        """
        held = await self._api.find_by_name("load_balancers", client.Balancer, name)
        if held is None:
            return
        if not _is_marked(held, cluster_name):
            raise cloud.FailedPrecondition(
                f"load balancer {name} lacks the label {CLUSTER}={label_value(cluster_name)}, and "
                "may belong to another cluster; delete it in the cloud"
            )
        if ADOPTED in held.labels:
            raise cloud.FailedPrecondition(
                f"load balancer {name} was adopted and is never deleted; remove the labels "
                f"{ADOPTED}, {CLUSTER} and {SERVICE_UID}, or delete it in the cloud"
            )
        await self._delete(held)

    async def transfer_load_balancer(
        self, cluster_name: str, former: cloud.Service, service: cloud.Service
    ) -> None:
        """Give the load balancer to another Service: two requests to find it, one to change it.

        The request changes labels and name, but not the name of an adopted load balancer.

        Raises:
            NotFound: neither Service has a load balancer.
            FailedPrecondition: `service` has another load balancer.
        """
        own, held = await self._find(service), await self._find(former)
        if own is None and held is None:
            raise cloud.NotFound(f"no load balancer for {former.key}")
        if own is not None and held is not None:
            raise cloud.FailedPrecondition(f"{service.key} has the load balancer {own.name}")
        if held is not None:
            adopted, labels = ADOPTED in held.labels, self._labels(cluster_name, service)
            name = held.name if adopted else _first_name(service)
            await self._set_name_and_labels(held, name, {**held.labels, **labels})

    async def list_load_balancers(self, cluster_name: str) -> Sequence[cloud.LoadBalancerRecord]:
        """Return all load balancers of Services, except those of other clusters.

        Sends one request per 50 load balancers.
        """
        query = {"label_selector": SERVICE_UID}
        listed, _ = await self._api.list_all("load_balancers", client.Balancer, query)
        network = await self._network.id()
        self._listed = {held.labels[SERVICE_UID]: held for held in listed}
        return [
            cloud.LoadBalancerRecord(
                name=held.name,
                digest=balancer_specs.actual_digest(held, network)
                if balancer_specs.has_address(held)
                else "",
                status=balancer_specs.status(held, None, self._settings),
                adopted=ADOPTED in held.labels,
                marked=_is_marked(held, cluster_name),
            )
            for held in listed
            if not _other_cluster(held, cluster_name)
        ]

    def load_balancer_digest(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> str:
        """Return the digest that the load balancer has after `ensure_load_balancer`."""
        given = certificate_refs(service)
        ids = {word: parse_digits(word) for word in given}
        numbers = [number for number in ids.values() if number is not None]
        recipe = balancer_specs.desired_spec(
            service, self._settings, network=self._network.known_id, certificates=numbers
        )
        held = self._listed.get(service.uid)
        ips, _ = self._ip_targets.ips(service, nodes, held, private=recipe.private_targets)
        all_targets: list[TargetKey] = [*balancer_specs.members(service, nodes), *ips]
        most = balancer_specs.max_targets(recipe, held)
        targets = balancer_specs.existing_first(all_targets, held, ips)[: most or None]
        unknown = [word for word in given if ids[word] is None]
        name = ann.NAME.read(service) or self.get_load_balancer_name(cluster_name, service)
        unseen = [item for item in (unknown, balancer_specs.status_annotations(service)) if item]
        is_settled = (
            held is not None
            and held.name == name
            and not unseen
            and not balancer_specs.plan_steps(held, recipe, targets, ips)
        )
        if held is not None and is_settled:
            return balancer_specs.actual_digest(held, recipe.network)
        return balancer_specs.desired_digest(name, recipe, targets, *unseen)

    # --- finding --------------------------------------------------------------------------------

    async def _list_of_service(self, service: cloud.Service) -> list[client.Balancer]:
        labels = {SERVICE_UID: service.uid}
        return await self._api.list_by_labels("load_balancers", client.Balancer, labels)

    async def _find(self, service: cloud.Service) -> client.Balancer | None:
        balancers = await self._list_of_service(service)
        if len(balancers) > 1:
            names = ", ".join(sorted(held.name for held in balancers))
            raise cloud.FailedPrecondition(
                f"load balancers {names} have the same label {SERVICE_UID}={service.uid}; "
                "remove the label from all but one, or delete the others"
            )
        return balancers[0] if balancers else None

    async def _find_by_name(self, service: cloud.Service) -> client.Balancer | None:
        """Return the load balancer with the name that the Service asks for.

        None if it does not exist. Also None, without a request, if the Service has no name
        annotation but a location or network zone: a new load balancer can then be created.
        """
        if ann.NAME.read(service) or not self._placement(service):
            return await self._find_adoptable(service)
        return None

    async def _find_adoptable(self, service: cloud.Service) -> client.Balancer | None:
        name = _first_name(service)
        held = await self._api.find_by_name("load_balancers", client.Balancer, name)
        if held and held.labels.get(SERVICE_UID, service.uid) != service.uid:
            raise cloud.FailedPrecondition(
                f"load balancer {name} belongs to the Service with the UID "
                f"{held.labels[SERVICE_UID]}; choose another name with {ann.NAME.name}"
            )
        if held and SERVICE_UID not in held.labels and not self._settings.balancers_adopt_by_name:
            raise cloud.FailedPrecondition(
                f"load balancer {name} exists already, and HCLOUD_LOAD_BALANCERS_ADOPT_BY_NAME is "
                f"false; choose another name with {ann.NAME.name}"
            )
        return held

    # --- creation and changes -------------------------------------------------------------------

    async def _desired_spec(self, service: cloud.Service) -> balancer_specs.BalancerSpec:
        network = await self._network.id()
        recipe = balancer_specs.desired_spec(service, self._settings, network=network)
        if any(port.protocol == "https" for port in recipe.ports):
            certificates = await resolve_certificates(self._api, service)
            recipe = balancer_specs.desired_spec(
                service, self._settings, network=network, certificates=certificates
            )
        return recipe

    def _placement(self, service: cloud.Service) -> Mapping[str, str]:
        """Return the location or the network zone of a new load balancer; empty = neither is set.

        An empty location annotation selects the network zone.
        """
        location = balancer_specs.first_set(
            ann.LOCATION.read(service), self._settings.balancers_location
        )
        zone = balancer_specs.first_set(
            ann.NETWORK_ZONE.read(service), self._settings.balancers_network_zone
        )
        return {"location": location} if location else {"network_zone": zone} if zone else {}

    async def _create(
        self,
        cluster_name: str,
        service: cloud.Service,
        recipe: balancer_specs.BalancerSpec,
        targets: Sequence[TargetKey],
    ) -> client.Balancer:
        place = self._placement(service)
        if not place:
            raise cloud.InvalidArgument(
                f"no location is configured for the load balancer; set {ann.LOCATION.name}, or "
                "HCLOUD_LOAD_BALANCERS_LOCATION for all Services"
            )
        most = balancer_specs.max_targets(recipe, None)
        order = {
            "name": _first_name(service),
            "labels": self._labels(cluster_name, service),
            **place,
            **_build_order(recipe, targets[: most or None]),
        }
        try:
            created, action = await self._create_with_fallback(order)
        except cloud.AlreadyExists:
            # Created by an earlier call whose response was lost, or by another client.
            existing = await self._find_adoptable(service)
            if existing is None:
                raise
            return existing
        if not recipe.type:
            self._warn(
                service.reference,
                names.TYPE_UNCONFIGURED,
                f"no load balancer type is configured, {balancer_specs.DEFAULT_TYPE} is used; set "
                f"{ann.TYPE.name}, or HCLOUD_LOAD_BALANCERS_TYPE for all Services",
            )
        self._track_action(service, action)
        self._check_pending(service)
        return created

    async def _create_with_fallback(
        self, order: Mapping[str, Any]
    ) -> tuple[client.Balancer, client.Action]:
        """Create a load balancer; if the cloud refuses, retry once without targets."""
        table, key = "load_balancers", "load_balancer"
        try:
            return await self._api.create(table, key, client.Balancer, order)
        except TARGET_ERRORS:
            if not order.get("targets"):
                raise
        # The API does not name the refused target. Later steps add the targets one by one.
        return await self._api.create(table, key, client.Balancer, {**order, "targets": []})

    def _labels(self, cluster_name: str, service: cloud.Service) -> Mapping[str, str]:
        return {SERVICE_UID: service.uid, CLUSTER: label_value(cluster_name)}

    async def _set_name_and_labels(
        self, held: client.Balancer, name: str, labels: Mapping[str, str]
    ) -> client.Balancer:
        return await self._api.set_name_and_labels(
            "load_balancers", "load_balancer", held, name=name, labels=labels
        )

    async def _ensure_labels(
        self, cluster_name: str, service: cloud.Service, held: client.Balancer
    ) -> client.Balancer:
        """Set the labels, by which later calls find it, and the name of the annotation."""
        name = ann.NAME.read(service) or held.name
        other = _other_cluster(held, cluster_name)
        if held.name == name and held.labels.get(SERVICE_UID) == service.uid and not other:
            return held
        if ADOPTED in held.labels and held.name != name:
            raise cloud.FailedPrecondition(
                f"load balancer {held.name} was adopted and is never renamed; set {ann.NAME.name} "
                "to its name, or delete and recreate the Service"
            )
        labels = {**held.labels, **self._labels(cluster_name, service)}
        is_adopted = SERVICE_UID not in held.labels
        if is_adopted:
            # Set with the UID in one request: a Service deleted between two requests would delete
            # the load balancer instead of releasing it.
            labels[ADOPTED] = "true"
        marked = await self._set_name_and_labels(held, name, labels)
        if is_adopted:
            _log.info("load balancer adopted", service=service.key, load_balancer=name)
            self._warn(
                service.reference,
                names.BALANCER_ADOPTED,
                f"existing load balancer {name} was adopted; when the Service is deleted, it will "
                "be released, not deleted",
            )
        if other:
            self._warn(
                service.reference,
                names.BALANCER_RENAMED,
                f"load balancer {name}: the cluster in its label was changed from {other!r} to "
                f"{labels[CLUSTER]!r}; if a cluster {other!r} still exists, both clusters "
                "use this load balancer: stop the daemon of the copied one",
            )
        return marked

    def _limit_targets(
        self, service: cloud.Service, servers: Sequence[TargetKey], most: int
    ) -> Sequence[TargetKey]:
        if most and len(servers) > most:
            self._warn_of_targets(service, f"{most} targets for {len(servers)} nodes")
        else:
            self._report(service.reference, names.MAX_TARGETS, "")
        return servers[:most] if most else servers

    def _warn_of_targets(self, service: cloud.Service, text: str) -> None:
        advice = f"some nodes get no traffic; set {ann.TYPE.name} to a larger type"
        message = f"target limit of the load balancer reached: {text}; {advice}"
        self._report(service.reference, names.MAX_TARGETS, message)

    async def _run_steps(
        self,
        service: cloud.Service,
        held: client.Balancer,
        steps: Sequence[balancer_specs.BalancerAction],
        refused: dict[TargetKey, str],
    ) -> client.Balancer:
        """Run the steps, except for refused targets, and return the resulting load balancer.

        After a target was refused, unless because its server is gone, no step may interrupt
        traffic: the other targets would probably be refused too, one after the other.

        Args:
            service: Service of the load balancer.
            held: the load balancer before the steps.
            steps: actions, in order.
            refused: target -> reason; newly refused targets are added to this mapping.
        """
        is_blocked = bool(refused)
        for step in steps:
            if step.server in refused or (step.interrupts and is_blocked):
                continue
            try:
                await self._run_step(service, held, step)
            except TARGET_ERRORS as error:
                if step.server is None:
                    raise
                refused[step.server] = str(error)
                is_blocked = is_blocked or not isinstance(error, cloud.NotFound)
        self._check_pending(service)
        if any(step.action in balancer_specs.REREAD_ACTIONS for step in steps):
            path = f"/load_balancers/{held.id}"
            return await self._api.get(path, "load_balancer", client.Balancer)
        return held

    async def _run_step(
        self, service: cloud.Service, held: client.Balancer, step: balancer_specs.BalancerAction
    ) -> None:
        path = f"/load_balancers/{held.id}/actions/{step.action}"
        try:
            action = await self._api.start_action(path, step.order)
        except cloud.ResourceExhausted as error:
            if step.action != "add_target" or step.interrupts:
                raise
            self._warn_of_targets(service, str(error))
        except cloud.AlreadyExists:
            # For add_target: an earlier call added the target and lost the response.
            if step.action != "add_target":
                raise
        except cloud.NotFound:
            # For a removal: an earlier call removed the part and lost the response.
            if step.action not in ("remove_target", "delete_service", "detach_from_network"):
                raise
        else:
            self._track_action(service, action, step.server)

    async def _release(self, service: cloud.Service, held: client.Balancer) -> None:
        """Release an adopted load balancer: remove the Service's listeners, targets and labels.

        The labels are removed last, since a repeated call finds the load balancer by its labels.
        """
        await self._read_pending_actions(service)
        steps, ports = balancer_specs.plan_release(held, service)
        await self._run_steps(service, held, steps, {})
        kept = {name: text for name, text in held.labels.items() if name not in OWN_LABELS}
        await self._set_name_and_labels(held, held.name, kept)
        left = f", and still listens on {', '.join(map(str, ports))}" if ports else ""
        _log.info("load balancer released", service=service.key, load_balancer=held.name)
        self._warn(
            service.reference,
            names.BALANCER_RELEASED,
            f"adopted load balancer {held.name} was released, not deleted{left}; delete it in the "
            "cloud if it is unused",
        )

    async def _delete(self, held: client.Balancer) -> None:
        if held.protection.delete:
            raise client.Protected(
                f"load balancer {held.name} is protected from deletion; remove the protection"
            )
        with contextlib.suppress(cloud.NotFound):
            action = await self._api.delete(f"/load_balancers/{held.id}")
            if action is not None and action.status == "running":
                raise cloud.RetryAfter(
                    f"load balancer {held.name} is being deleted", seconds=RETRY_S
                )
            if action is not None:
                _check(action)

    # --- events ---------------------------------------------------------------------------------

    def _report(self, about: cloud.ObjectReference, reason: str, message: str) -> None:
        """Record a Warning event, unless the last message of this reason was the same.

        An empty message records nothing: the cause is gone, and is reported when it returns.
        """
        reported = self._reported.setdefault(about.uid, {})
        if message and reported.get(reason) != message:
            self._warn(about, reason, message)
        reported[reason] = message

    def _report_foreign_nodes(self, nodes: Sequence[cloud.Node]) -> None:
        """Record an event about each node that cannot be a target because of its provider ID."""
        foreign = balancer_specs.foreign_nodes(nodes)
        for uid, node in foreign.items():
            if uid not in self._foreign_nodes:
                text = f"provider ID {node.provider_id!r} belongs to no server of this cloud"
                message = f"{text}; load balancers of this cloud send the node no traffic"
                self._warn(node.reference, names.UNKNOWN_PREFIX, message)
        self._foreign_nodes = foreign.keys()

    def _report_unused(self, service: cloud.Service, recipe: balancer_specs.BalancerSpec) -> None:
        ports = balancer_specs.omitted_ports(service)
        text = f"{ports} left out: load balancers of this cloud serve TCP ports only"
        self._report(service.reference, names.UNSUPPORTED_PROTOCOL, ports and text)
        unused = ", ".join(balancer_specs.unused_annotations(service, recipe))
        text = f"{unused} ignored: not used by the protocol of the ports or of the health check"
        self._report(service.reference, names.ANNOTATION_IGNORED, unused and text)

    # --- actions --------------------------------------------------------------------------------

    def _track_action(
        self, service: cloud.Service, action: client.Action, server: TargetKey | None = None
    ) -> None:
        _check(action)
        if action.status == "running":
            self._pending.setdefault(service.uid, {})[action.id] = server

    def _check_pending(self, service: cloud.Service) -> None:
        if number := len(self._pending.get(service.uid, ())):
            text = f"the load balancer of {service.key} is being changed ({number} actions running)"
            raise cloud.RetryAfter(text, seconds=RETRY_S)

    async def _read_pending_actions(self, service: cloud.Service) -> dict[TargetKey, str]:
        """Read the results of pending actions: one request, if there are any.

        Returns:
            Target -> reason why it was refused. The next steps skip these targets: another attempt
            would lock the load balancer, and delay the other targets.
        """
        noted = self._pending.get(service.uid)
        refused: dict[TargetKey, str] = {}
        if not noted:
            return refused
        actions = await self._api.get_actions(list(noted))
        running = {action.id: noted[action.id] for action in actions if action.status == "running"}
        self._pending[service.uid] = running
        if not running:
            del self._pending[service.uid]
        for action in actions:
            try:
                _check(action)
            except cloud.Aborted as error:
                server = noted[action.id]
                if server is None:
                    raise
                refused[server] = str(error)
        self._check_pending(service)
        return refused

    def _check_type(self, service: cloud.Service, held: client.Balancer) -> None:
        kind = held.load_balancer_type
        text = kind.deprecation and (
            f"load balancer type {kind.name} is deprecated, and unavailable after "
            f"{kind.deprecation.unavailable_after or 'an unknown time'}; change {ann.TYPE.name}"
        )
        self._report(service.reference, names.TYPE_DEPRECATED, text or "")

    def _check_address(self, service: cloud.Service, held: client.Balancer) -> None:
        if not balancer_specs.has_address(held):
            _check_reachable(held.public_net.enabled, held)
            text = f"the load balancer of {service.key} has no address yet"
            raise cloud.RetryAfter(text, seconds=RETRY_S)


def _first_name(service: cloud.Service) -> str:
    """Return the name of a new load balancer."""
    return ann.NAME.read(service) or cloud.default_load_balancer_name(service)


def _is_marked(held: client.Balancer, cluster_name: str) -> bool:
    return held.labels.get(CLUSTER) == label_value(cluster_name)


def _other_cluster(held: client.Balancer, cluster_name: str) -> str:
    """Return the cluster that the label names; empty = this cluster, or there is no label."""
    owner = held.labels.get(CLUSTER, "")
    return "" if owner == label_value(cluster_name) else owner


def _check_reachable(otherwise: bool, held: client.Balancer | None) -> None:
    """Raise `InvalidArgument` if the load balancer would never get an address."""
    if not (otherwise or (held and held.private_net)):
        raise cloud.InvalidArgument(
            "the load balancer would be unreachable: it has neither a public interface nor a "
            f"network; set HCLOUD_NETWORK, or {ann.DISABLE_PUBLIC_NETWORK.name} to false"
        )


def _check(action: client.Action) -> None:
    """Raise `Aborted` for an action that failed."""
    if action.status == "error":
        reason = action.error.message if action.error else "no reason given"
        raise cloud.Aborted(f"{action.command} failed: {reason}")


def _check_refused(
    refused: Mapping[TargetKey, str],
    nodes: Sequence[cloud.Node],
    status: cloud.Status | None = None,
) -> None:
    """Raise `Aborted`, carrying the status, if targets were refused."""
    if refused:
        names = {entry.address: node.name for node in nodes for entry in node.addresses}
        names |= {str(number): name for number, name in balancer_specs.servers(nodes, None).items()}
        details = "; ".join(
            f"node {names.get(str(target), 'unknown')} (server {target}): {reason}"
            for target, reason in sorted(refused.items(), key=str)
        )
        raise cloud.Aborted(
            f"targets refused by the cloud: {details}; correct provider ID or network of the nodes"
        ).carrying(status)


def _build_order(
    recipe: balancer_specs.BalancerSpec, servers: Sequence[TargetKey]
) -> Mapping[str, Any]:
    """Return the request body that creates a load balancer, with all that one request can set."""
    order: dict[str, Any] = {
        "load_balancer_type": recipe.type or balancer_specs.DEFAULT_TYPE,
        "services": [balancer_specs.build_listener(item) for item in recipe.ports],
    }
    if recipe.algorithm:
        order["algorithm"] = {"type": recipe.algorithm}
    if recipe.public is not None:
        order["public_interface"] = recipe.public
    # A fixed address or subnet takes an action of its own, which must come before targets that
    # are reached through the network.
    is_plain = not (recipe.private_ip or recipe.subnet)
    if recipe.network is not None and is_plain:
        order["network"] = recipe.network
    if is_plain or not recipe.private_targets:
        private = recipe.private_targets
        order["targets"] = [balancer_specs.build_target(item, private=private) for item in servers]
    return order


STAGING_LABEL = "HC-Use-Staging-CA"
"""Label that makes the API request a certificate from the issuer's staging environment."""


def certificate_refs(service: cloud.Service) -> Sequence[str]:
    """Return names and IDs of the certificates that a Service uses."""
    if ann.PROTOCOL.read(service) != "https":
        return ()
    if ann.CERTIFICATE_TYPE.read(service) == "managed":
        return (_managed_name(service),)
    return ann.CERTIFICATES.read(service) or ()


def _managed_name(service: cloud.Service) -> str:
    return ann.MANAGED_NAME.read(service) or f"ccm-managed-certificate-{service.uid}"


async def resolve_certificates(api: client.Client, service: cloud.Service) -> Sequence[int]:
    """Return the IDs of the Service's certificates; create a managed certificate if necessary.

    An uploaded certificate that is given by name takes one request.

    Raises:
        InvalidArgument: a certificate does not exist, or a managed certificate has no domains.
    """
    if ann.CERTIFICATE_TYPE.read(service) == "managed":
        return (await _ensure_managed_certificate(api, service),)
    ids = []
    for word in certificate_refs(service):
        number = parse_digits(word)
        if number is None:
            certificate = await api.resolve("certificates", "certificate", client.Labelled, word)
            number = certificate.id
        ids.append(number)
    return ids


async def _ensure_managed_certificate(api: client.Client, service: cloud.Service) -> int:
    name, domains = _managed_name(service), ann.MANAGED_DOMAINS.read(service)
    if not domains:
        raise cloud.InvalidArgument(
            f"{ann.MANAGED_DOMAINS.name} is missing; set the domains of the managed certificate"
        )
    certificate = await api.find_by_name("certificates", client.Labelled, name)
    if certificate is None:
        labels = {SERVICE_UID: service.uid}
        if ann.MANAGED_STAGING.read(service):
            labels[STAGING_LABEL] = "true"
        order = {"name": name, "type": "managed", "domain_names": domains, "labels": labels}
        with contextlib.suppress(cloud.AlreadyExists):  # an earlier call lost the response
            created, _ = await api.create("certificates", "certificate", client.Labelled, order)
            return created.id
        certificate = await api.resolve("certificates", "certificate", client.Labelled, name)
    return certificate.id


async def delete_certificates(api: client.Client, service: cloud.Service) -> Sequence[str]:
    """Delete the certificates created for a Service: one request to list, one per certificate.

    The current annotations are not considered, since an earlier version of the Service may have
    asked for the certificate. Only the label decides.

    Returns:
        Names of the certificates that were kept, because existing load balancers use them.
    """
    labels, kept = {SERVICE_UID: service.uid}, []
    for certificate in await api.list_by_labels("certificates", client.Certificate, labels):
        if await _is_used(api, certificate):
            kept.append(certificate.name)
            continue
        with contextlib.suppress(cloud.NotFound):
            await api.delete(f"/certificates/{certificate.id}")
    return kept


async def _is_used(api: client.Client, certificate: client.Certificate) -> bool:
    """Return whether an existing load balancer uses a certificate: one request per user.

    `used_by` may still have the load balancer that was just deleted.
    """
    for user in certificate.used_by:
        with contextlib.suppress(cloud.NotFound):
            if user.type == "load_balancer":
                await api.get(f"/load_balancers/{user.id}", "load_balancer", client.Named)
                return True
    return False
