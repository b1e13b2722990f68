"""State and settings of the simulated cloud, and the file that persists the state.

The creation of an instance is idempotent by token: while the instance of an earlier request with
the same token exists and is not being deleted, a request returns that instance.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from ccm.base import tasks

from . import world, world_balancers

MAX_PAGE = 500
"""Maximum page size."""

SAVE_INTERVAL_S = 1.0
"""Seconds between saves: a killed process loses at most the changes of this interval."""

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Delay = Annotated[float, msgspec.Meta(ge=0, le=world.HISTORY_S)]
Limit = Annotated[int, msgspec.Meta(ge=0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Behaviour of the cloud. Every setting can be changed at run time.

    Attributes:
        latency_s: delay before every response.
        rate_limit: calls per second, also the burst size; 0 = no limit. Excess calls get 429 with
            Retry-After.
        order_rate_limit: additional limit for requests that create instances, like `rate_limit`.
        page_size: maximum number of items in a page.
        list_delay_s: age of the data in listings, to simulate eventual consistency.
        get_delay_s: age of the data in reads of one instance.
        transition_s: time an instance takes to start (also a new one) or to stop.
        removal_s: time a deleted instance is `deleting`.
        linger_s: time after `removal_s` for which a deleted instance is still listed as `deleted`.
        provision_s: time a new load balancer takes to become active.
        change_s: time a change of a load balancer takes.
        instance_quota: maximum number of instances; 0 = no limit.
        zone_capacity: maximum number of instances in a zone; 0 = no limit.
        balancer_quota: maximum number of load balancers; 0 = no limit.
        route_quota: maximum number of routes in a cluster; 0 = no limit.
    """

    latency_s: Seconds = 0.0
    rate_limit: Seconds = 0.0
    order_rate_limit: Seconds = 0.0
    page_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE
    list_delay_s: Delay = 0.0
    get_delay_s: Delay = 0.0
    transition_s: Seconds = 0.5
    removal_s: Seconds = 0.0
    linger_s: Delay = 0.0
    provision_s: Seconds = 0.0
    change_s: Seconds = 0.0
    instance_quota: Limit = 0
    zone_capacity: Limit = 0
    balancer_quota: Limit = 0
    route_quota: Limit = 0


class Order(world.NewInstance, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request that creates an instance.

    `token` makes repetitions return the same instance; empty = no token. `user_data` is the boot
    script in Base64. `volumes` are the IDs of volumes to attach.
    """

    token: str = ""
    user_data: str = ""
    volumes: tuple[str, ...] = ()


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """Persisted state of a cloud."""

    instances: tuple[world.Instance, ...] = ()
    balancers: tuple[world_balancers.Balancer, ...] = ()
    routes: tuple[world.Route, ...] = ()
    volumes: tuple[world.Volume, ...] = ()


class CloudState:
    """State of one cloud: instances, volumes, load balancers and routes.

    Args:
        rng: random source of the IDs.
    """

    def __init__(self, rng: random.Random) -> None:
        self.instances = world.InstanceStore(rng)
        self.volumes = world.Volumes(rng, self.instances.exists)
        self.balancers = world_balancers.Balancers(rng)
        self.routes = world.RouteTable(rng, self._owners)
        self._parts = (self.instances, self.balancers, self.routes, self.volumes)
        self._settings = Settings()
        self._by_token: dict[str, str] = {}
        self._user_data: dict[str, str] = {}
        self._owners_cache: tuple[int, Mapping[str, world.Instance]] = (-1, {})

    @property
    def revision(self) -> int:
        """Number of writes; a change of this number triggers a save."""
        return sum(part.revision for part in self._parts)

    def apply_settings(self, settings: Settings) -> None:
        """Apply settings."""
        self._settings = settings
        self.instances.transition_s = settings.transition_s
        self.instances.removal_s = settings.removal_s
        self.instances.linger_s = settings.linger_s
        self.balancers.provision_s = settings.provision_s
        self.balancers.change_s = settings.change_s
        self.balancers.quota = settings.balancer_quota
        self.routes.quota = settings.route_quota

    def order(self, order: Order) -> world.Instance:
        """Create an instance: `starting` at first, `running` after `transition_s`.

        Raises:
            WorldError: `invalid` if the name is missing or the user data are malformed,
                `quota_exceeded`, `no_capacity` if the zone is full, `not_found` if a volume does
                not exist, `conflict` if a volume is attached.
        """
        world.check_text("user_data", _decoded, order.user_data)
        before = self._by_token.get(order.token, "")
        if self.instances.exists(before):
            instance = self.instances.get(before)
            if instance.state != "deleting":
                return instance
        self._check_quota(order.zone)
        self.volumes.check_unattached(order.volumes)
        new_instance = self.instances.create(order)
        self.volumes.attach(order.volumes, new_instance.id)
        self._user_data[new_instance.id] = order.user_data
        if order.token:
            self._by_token[order.token] = new_instance.id
        return new_instance

    def user_data(self, instance_id: str) -> Mapping[str, str]:
        """Return the user data of an instance.

        Raises:
            WorldError: `not_found`.
        """
        self.instances.get(instance_id)
        return {"user_data": self._user_data.get(instance_id, "")}

    def snapshot(self) -> Saved:
        """Return the current state."""
        return Saved(
            instances=self.instances.snapshot(),
            balancers=tuple(self.balancers.list()),
            routes=tuple(self.routes.list()),
            volumes=tuple(self.volumes.list()),
        )

    def load(self, saved: Saved) -> None:
        """Restore a saved state.

        Raises:
            WorldError: an instance is invalid or exists already.
        """
        self.instances.put_all(saved.instances)
        self.balancers.put_all(saved.balancers)
        self.routes.put_all(saved.routes)
        self.volumes.put_all(saved.volumes)

    def name_of(self, thing_id: str) -> str:
        """Return the name of the object with an ID; empty if there is none."""
        for part in self._parts:
            with contextlib.suppress(world.WorldError):
                return str(part.get(thing_id).name)
        return ""

    def _check_quota(self, zone: str) -> None:
        quota, capacity = self._settings.instance_quota, self._settings.zone_capacity
        if not (quota or capacity):
            return
        living = self.instances.snapshot()
        if quota and len(living) >= quota:
            text = f"quota of {quota} instances is used up: {len(living)} exist"
            raise world.WorldError("quota_exceeded", text)
        in_zone = sum(instance.zone == zone for instance in living)
        if capacity and in_zone >= capacity:
            text = f"zone {zone} is full: capacity {capacity}, {in_zone} instances exist"
            raise world.WorldError("no_capacity", text)

    def _owners(self) -> Mapping[str, world.Instance]:
        revision, owners = self._owners_cache
        if revision != self.instances.revision:
            owners = {
                address.value: instance
                for instance in self.instances.snapshot()
                for address in instance.addresses
            }
            self._owners_cache = (self.instances.revision, owners)
        return owners


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def load(path: Path) -> Saved:
    """Read a saved state; a missing file is an empty state.

    Raises:
        ValueError: the content is malformed; the message says where.
        OSError: the file cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Saved)
    except FileNotFoundError:
        return Saved()
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is not a saved state: {error}") from error


def _save(path: Path, content: Saved) -> None:
    """Save the state atomically: a crash leaves the old file or the new one."""
    draft = path.with_name(f"{path.name}.new")
    with draft.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content)))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextlib.asynccontextmanager
async def persisted(cloud: CloudState, path: Path | None) -> AsyncIterator[None]:
    """Load the state from a file, and save changes to it while the context is open.

    Without a path nothing is persisted.

    Raises:
        ValueError: see `load`.
        OSError: the file cannot be read or written.
    """
    if path is None:
        yield
        return
    cloud.load(await asyncio.to_thread(load, path))
    stop = asyncio.Event()
    saver = tasks.spawn(_save_changes(cloud, path, cloud.revision, stop), name="state-saver")
    try:
        yield
    finally:
        stop.set()
        await saver


async def _save_changes(cloud: CloudState, path: Path, saved: int, stop: asyncio.Event) -> None:
    """Save changes every `SAVE_INTERVAL_S`, and once more after `stop`.

    `stop` replaces cancellation: a writing thread cannot be cancelled, and a second writing thread
    would corrupt the draft file.
    """
    last = False
    while not last:
        last = await tasks.wait_for(stop, SAVE_INTERVAL_S)
        if cloud.revision != saved:
            saved = cloud.revision
            await asyncio.to_thread(_save, path, cloud.snapshot())
