"""Instances V1: the old interfaces, and how they answer what the daemon asks of the new one.

The order of the calls and their fallbacks are those of the Go reference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from ccm.cloud.errors import CloudError, FailedPrecondition, NotFound, Unimplemented
from ccm.cloud.operation import Caller, operation
from ccm.cloud.provider_id import format_provider_id
from ccm.cloud.types import InstanceMetadata, InstanceState, Power, Zone
from ccm.model import Node, NodeAddress

T = TypeVar("T")


class Instances(Protocol):
    """Instances looked up by provider ID or by node name: the old interface.

    For providers ported from an older code base. Only what the node controllers call is
    needed. Where there are two ways to ask, they ask by provider ID first, and by name after
    any error; the error of the second counts. Whatever is raised while a node is initialised
    keeps its taint, makes a Warning event and is tried again according to its class.
    """

    @operation()
    async def node_addresses(self, node_name: str) -> Sequence[NodeAddress]:
        """Addresses by node name.

        Called after `node_addresses_by_provider_id` raised anything. An empty answer leaves
        the addresses of the node as they are. An error in the periodic pass is logged and
        asked again in the next one.
        """
        ...

    @operation()
    async def node_addresses_by_provider_id(self, provider_id: str) -> Sequence[NodeAddress]:
        """Addresses by provider ID.

        Called once to initialise a node, and for each initialised node once per
        `--node-status-update-frequency`. Any error leads to `node_addresses`.
        """
        ...

    @operation()
    async def instance_id(self, node_name: str) -> str:
        """The cloud's ID of an instance, without scheme, for nodes without provider ID.

        Called once to initialise such a node, and by the lifecycle controller in each look
        at one that is not Ready.

        Raises:
            NotFound: no such instance, not even a stopped one; the lifecycle controller
                then deletes the Node, after asking a second time.
            Unimplemented: initialisation goes on without a provider ID.
        """
        ...

    @operation()
    async def instance_type(self, node_name: str) -> str:
        """Instance type by node name.

        Called after `instance_type_by_provider_id` raised anything. Empty = no label.
        """
        ...

    @operation()
    async def instance_type_by_provider_id(self, provider_id: str) -> str:
        """Instance type by provider ID.

        Called once to initialise a node. Empty = no label. Any error leads to
        `instance_type`.
        """
        ...

    async def add_ssh_key_to_all_instances(self, user: str, key: str) -> None:
        """Put an SSH key (`<type> <blob>`) on every instance. The daemon never calls it."""
        ...

    async def current_node_name(self, hostname: str) -> str:
        """The node name of the machine we run on. The daemon never calls it."""
        ...

    @operation()
    async def instance_exists_by_provider_id(self, provider_id: str) -> bool:
        """Whether the instance exists; True for a stopped one.

        Called as `InstancesV2.instance_exists` is, and False deletes the Node as there. An
        error keeps the node and is asked again with back-off; `NotFound` is such an error
        too, never an answer.
        """
        ...

    @operation()
    async def instance_shutdown_by_provider_id(self, provider_id: str) -> bool:
        """Whether the instance is switched off.

        Called right after `instance_exists_by_provider_id` said True. True puts the
        shutdown taint on the node. Any error but `Unimplemented` leaves the node as it is.

        Raises:
            NotFound: the instance is gone since; neither running nor switched off.
            Unimplemented: the cloud cannot tell, which reads as no.
        """
        ...


class Zones(Protocol):
    """Zones for the old `Instances` interface.

    Called once to initialise a node, after its addresses and type are known. Either field
    of the answer may be empty: no label then. An error of the second way keeps the node's
    taint, makes a Warning event and is tried again according to its class.
    """

    async def get_zone(self) -> Zone:
        """The zone of the machine we run on. The daemon never calls it."""
        ...

    @operation()
    async def get_zone_by_provider_id(self, provider_id: str) -> Zone:
        """The zone of an instance. Any error leads to `get_zone_by_node_name`."""
        ...

    @operation()
    async def get_zone_by_node_name(self, node_name: str) -> Zone:
        """The same by node name, after the other way failed."""
        ...


class LegacyInstances:
    """Answers as `InstancesV2` and `InstanceStates` do, by asking `Instances` and `Zones`.

    Args:
        caller: puts the questions.
    """

    def __init__(self, caller: Caller) -> None:
        self._ask = caller.call
        self._caller = caller

    async def instance_exists(self, node: Node) -> bool:
        """See `InstancesV2.instance_exists`."""
        return await self._existing(node) is not None

    async def instance_state(self, node: Node) -> InstanceState:
        """See `InstanceStates.instance_state`."""
        provider_id = await self._existing(node)
        if provider_id is None:
            return InstanceState(exists=False)
        off = await self._is_off(provider_id)
        return InstanceState(exists=True, power=Power.SHUTDOWN if off else Power.RUNNING)

    async def instance_metadata(self, node: Node) -> InstanceMetadata:
        """See `InstancesV2.instance_metadata`."""
        provider_id = node.provider_id
        if not provider_id:
            try:
                provider_id = await self._provider_id(node)
            except Unimplemented:
                _warn("provider cannot tell instance IDs", node)
        addresses = await self._addresses(provider_id, node.name)
        instance_type = await self._first_of(
            lambda: self._ask(Instances.instance_type_by_provider_id, provider_id),
            lambda: self._ask(Instances.instance_type, node.name),
            what="instance type",
        )
        zone = Zone()
        if self._caller.offers(Zones):
            zone = await self._first_of(
                lambda: self._ask(Zones.get_zone_by_provider_id, provider_id),
                lambda: self._ask(Zones.get_zone_by_node_name, node.name),
                what="zone",
            )
        return InstanceMetadata(
            provider_id=provider_id,
            instance_type=instance_type,
            addresses=addresses,
            zone=zone.failure_domain,
            region=zone.region,
        )

    async def addresses(self, node: Node) -> Sequence[NodeAddress]:
        """The addresses alone, which the old interface answers for less than all metadata."""
        return await self._addresses(node.provider_id, node.name)

    async def _existing(self, node: Node) -> str | None:
        """The provider ID of an instance that exists; None when it does not."""
        provider_id = node.provider_id
        if not provider_id:
            try:
                provider_id = await self._provider_id(node)
            except NotFound:
                return None
        # A NotFound from here on is an ordinary error: only the boolean says "gone".
        try:
            exists = await self._ask(Instances.instance_exists_by_provider_id, provider_id)
        except NotFound as error:
            raise FailedPrecondition(f"existence of {provider_id} is unclear: {error}") from error
        return provider_id if exists else None

    async def _is_off(self, provider_id: str) -> bool:
        try:
            return await self._ask(Instances.instance_shutdown_by_provider_id, provider_id)
        except Unimplemented:
            return False

    async def _addresses(self, provider_id: str, name: str) -> Sequence[NodeAddress]:
        return await self._first_of(
            lambda: self._ask(Instances.node_addresses_by_provider_id, provider_id),
            lambda: self._ask(Instances.node_addresses, name),
            what="addresses",
        )

    async def _provider_id(self, node: Node) -> str:
        instance_id = await self._ask(Instances.instance_id, node.name)
        return format_provider_id(self._caller.name, instance_id)

    async def _first_of(
        self, first: Callable[[], Awaitable[T]], second: Callable[[], Awaitable[T]], *, what: str
    ) -> T:
        try:
            return await first()
        except CloudError as by_id:
            try:
                return await second()
            except CloudError as by_name:
                text = f"{what}: by provider ID: {by_id}; by name: {by_name}"
                raise _retold(by_name, text) from by_name


def _retold(error: CloudError, text: str) -> CloudError:
    """The same error with another text: its class and facts stay, so its policy holds.

    A copy, because a provider may raise one object again and again.
    """
    kind = type(error)
    copied = kind.__new__(kind, text)
    copied.__dict__.update(error.__dict__)
    return copied


def _warn(message: str, node: Node) -> None:
    # Loaded here, because importing the SDK must not load a logging library.
    from ccm.base import log

    log.logger("lookup").warning(message, node=node.name)
