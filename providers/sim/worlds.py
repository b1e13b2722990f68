"""Everything the simulated cloud holds, how it behaves, and the file that keeps it.

An order of an instance with the token of an earlier order is that order, as long as its instance is
there: a customer who got no answer may repeat it.
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
"""The most items one page may hold."""

SAVE_EVERY_S = 1.0
"""How often changes are written down; a killed process forgets at most so much."""

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Delay = Annotated[float, msgspec.Meta(ge=0, le=world.HISTORY_S)]
Limit = Annotated[int, msgspec.Meta(ge=0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the cloud behaves; every setting can be changed while it runs.

    `latency_s` precedes every answer. `rate_limit` is calls per second, `order_rate_limit`
    orders of instances per second, 0 = no limit; as many may come at once, the rest gets 429
    with Retry-After. `list_delay_s` and `get_delay_s` are how far behind the truth listings
    and single reads are. `transition_s` is how long starting (of a new instance too) and
    stopping take, `removal_s` how long an instance is `deleting`, `linger_s` how long it is then
    still shown as `deleted`. `provision_s` is how long a new load balancer takes, `change_s` how
    long a change of one takes; `instance_quota`, `balancer_quota` and `route_quota` are how many
    there may be, `zone_capacity` how many instances each zone holds, 0 = no limit.
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
    """An instance as a customer orders it.

    `user_data` is Base64; the instance boots with it. `volumes` are IDs of those that it gets.
    """

    token: str = ""
    user_data: str = ""
    volumes: tuple[str, ...] = ()


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a cloud, as it is kept across restarts."""

    instances: tuple[world.Instance, ...] = ()
    balancers: tuple[world_balancers.Balancer, ...] = ()
    routes: tuple[world.Route, ...] = ()
    volumes: tuple[world.Volume, ...] = ()


class Worlds:
    """The parts of one cloud.

    Args:
        rng: draws IDs.
    """

    def __init__(self, rng: random.Random) -> None:
        self.instances = world.World(rng)
        self.volumes = world.Volumes(rng, self.instances.is_there)
        self.balancers = world_balancers.Balancers(rng)
        self.routes = world.RouteTable(rng, self._owners)
        self._parts = (self.instances, self.balancers, self.routes, self.volumes)
        self._settings = Settings()
        self._by_token: dict[str, str] = {}
        self._user_data: dict[str, str] = {}
        self._owned: tuple[int, Mapping[str, world.Instance]] = (-1, {})

    @property
    def revision(self) -> int:
        """Counts the writes, so that a saver knows whether there is something new."""
        return sum(part.revision for part in self._parts)

    def use(self, settings: Settings) -> None:
        """Take on new settings."""
        self._settings = settings
        self.instances.transition_s = settings.transition_s
        self.instances.removal_s = settings.removal_s
        self.instances.linger_s = settings.linger_s
        self.balancers.provision_s = settings.provision_s
        self.balancers.change_s = settings.change_s
        self.balancers.quota = settings.balancer_quota
        self.routes.quota = settings.route_quota

    def order(self, order: Order) -> world.Instance:
        """Order an instance: it is `starting` now and `running` soon.

        Raises:
            WorldError: `invalid` without a name or with odd user data, `quota_exceeded`,
                `no_capacity` in its zone, or `not_found` or `conflict` about a volume.
        """
        world.check_text("user_data", _decoded, order.user_data)
        before = self._by_token.get(order.token, "")
        if self.instances.is_there(before):
            found = self.instances.get(before)
            if found.state != "deleting":
                return found
        self._check_room(order.zone)
        self.volumes.check_free(order.volumes)
        made = self.instances.create(order)
        self.volumes.attach(order.volumes, made.id)
        self._user_data[made.id] = order.user_data
        if order.token:
            self._by_token[order.token] = made.id
        return made

    def user_data(self, instance_id: str) -> Mapping[str, str]:
        """Return what an instance was booted with.

        Raises:
            WorldError: `not_found`.
        """
        self.instances.get(instance_id)
        return {"user_data": self._user_data.get(instance_id, "")}

    def snapshot(self) -> Saved:
        """Return everything as it is now."""
        return Saved(
            instances=self.instances.snapshot(),
            balancers=tuple(self.balancers.list()),
            routes=tuple(self.routes.list()),
            volumes=tuple(self.volumes.list()),
        )

    def load(self, saved: Saved) -> None:
        """Place what was saved.

        Raises:
            WorldError: it cannot be.
        """
        self.instances.put_all(saved.instances)
        self.balancers.put_all(saved.balancers)
        self.routes.put_all(saved.routes)
        self.volumes.put_all(saved.volumes)

    def name_of(self, thing_id: str) -> str:
        """Return the name of the thing with that ID; empty when none has it."""
        for part in self._parts:
            with contextlib.suppress(world.WorldError):
                return str(part.get(thing_id).name)
        return ""

    def _check_room(self, zone: str) -> None:
        quota, capacity = self._settings.instance_quota, self._settings.zone_capacity
        if not (quota or capacity):
            return
        living = self.instances.snapshot()
        if quota and len(living) >= quota:
            text = f"the quota is {quota} instances, and there are {len(living)}"
            raise world.WorldError("quota_exceeded", text)
        there = sum(one.zone == zone for one in living)
        if capacity and there >= capacity:
            text = f"zone {zone} holds {capacity} instances, and there are {there}"
            raise world.WorldError("no_capacity", text)

    def _owners(self) -> Mapping[str, world.Instance]:
        revision, owners = self._owned
        if revision != self.instances.revision:
            owners = {
                address.value: instance
                for instance in self.instances.snapshot()
                for address in instance.addresses
            }
            self._owned = (self.instances.revision, owners)
        return owners


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def load(path: Path) -> Saved:
    """Read the saved cloud; a missing file is an empty one.

    Raises:
        ValueError: the file holds something else; the message says where.
        OSError: the file cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Saved)
    except FileNotFoundError:
        return Saved()
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is no saved state: {error}") from error


def _save(path: Path, content: Saved) -> None:
    """Write the cloud so that a crash leaves the old file or the new one, never half."""
    draft = path.with_name(f"{path.name}.new")
    with draft.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content)))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextlib.asynccontextmanager
async def kept(cloud: Worlds, path: Path | None) -> AsyncIterator[None]:
    """Fill a cloud from its file, and keep the file up to date while the context is open.

    None keeps nothing.

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


async def _save_changes(cloud: Worlds, path: Path, saved: int, stop: asyncio.Event) -> None:
    """Save changes once in a while and a last time at the end.

    It is told to stop instead of being cancelled: a thread that writes cannot be, and
    two of them would spoil the draft.
    """
    last = False
    while not last:
        last = await tasks.wait_for(stop, SAVE_EVERY_S)
        if cloud.revision != saved:
            saved = cloud.revision
            await asyncio.to_thread(_save, path, cloud.snapshot())
