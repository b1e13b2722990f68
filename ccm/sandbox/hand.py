"""What a person does to the machines of a running sandbox: power off and on, delete, add."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ccm.sandbox import cloud
from ccm.sandbox.running import Running


class Refused(Exception):
    """It cannot be done; the text says why."""


async def carry_out(act: str, node: str, told: Running) -> str:
    """Do one of `ACTS` to the machine of a node; what was done, for people.

    Raises:
        Refused: the node has no machine there, or already has one.
        CloudTrouble: the cloud refused or did not answer.
    """
    if not told.url:
        raise Refused("this sandbox runs with a cloud of your own: do it there")
    async with cloud.open_admin(told.url, told.token) as admin:
        return await ACTS[act](admin, node)


async def _power_off(admin: cloud.Admin, node: str) -> str:
    machine = await _machine(admin, node)
    await admin.act(machine.id, "stop")
    return f"{node}: {machine.id} is powered off; its node gets the shutdown taint"


async def _power_on(admin: cloud.Admin, node: str) -> str:
    machine = await _machine(admin, node)
    await admin.act(machine.id, "start")
    return f"{node}: {machine.id} is powered on; its node loses the shutdown taint"


async def _delete(admin: cloud.Admin, node: str) -> str:
    machine = await _machine(admin, node)
    await admin.delete(machine.id)
    return f"{node}: {machine.id} is deleted; its node goes when the cloud has denied it twice"


async def _add(admin: cloud.Admin, node: str) -> str:
    found = {one.name for one in await admin.instances()}
    if node in found:
        raise Refused(f"{node} has a machine already")
    machine = await admin.add(node, number=len(found))
    return f"{node}: {machine.id} runs; its node registers"


async def _machine(admin: cloud.Admin, node: str) -> cloud.Instance:
    found = {one.name: one for one in await admin.instances()}
    if node not in found:
        known = ", ".join(sorted(found)[:_SHOWN]) or "none"
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise Refused(f"the cloud has no machine for {node!r}; it has {known}{more}")
    return found[node]


_SHOWN = 5

ACTS: Mapping[str, Callable[[cloud.Admin, str], Awaitable[str]]] = {
    "poweroff": _power_off,
    "poweron": _power_on,
    "delete": _delete,
    "add": _add,
}
"""What can be done, by the words of the command line."""
