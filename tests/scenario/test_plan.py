"""`kube-ccm plan` on both API servers: its predictions against the actions of a daemon."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from ccm.cli import plan
from ccm.cloud import default_load_balancer_name
from ccm.doctor import start_forecast
from ccm.model import Node, Service, names
from ccm.model.meta import KubeObject
from ccm.planning import changes
from ccm.planning.changes import (
    BALANCER,
    MEMBERS,
    ROUTE,
    ChangedObject,
    ChangeKind,
    Forecast,
    PlannedChange,
)
from ccm.sandbox import realserver
from providers.sim import world
from tests.scenario import harness, legacy, load
from tests.scenario.harness import Environment, wait_for
from tests.scenario.legacy import F

CREATE, DELETE = ChangeKind.CREATE, ChangeKind.DELETE
FLAGS: Mapping[str, str] = {
    **legacy.FLAGS,
    "node-monitor-period": "500ms",
    "node-status-update-frequency": "1s",
    "load-balancer-node-update-quiet-period": "100ms",
    "route-reconciliation-min-interval": "100ms",
}
MEMBERS_OF_ALL = [f"10.0.0.{number}" for number in range(1, 9)]


def words(env: Environment, *more: str) -> list[str]:
    """The command line with the flags of the daemon."""
    return [
        f"--kubeconfig={env.server.kubeconfig_path}",
        f"--cloud-config={env.cloud_config}",
        *harness.command_line({**harness.FLAGS, **FLAGS}),
        *more,
    ]


@dataclass(frozen=True, kw_only=True)
class Told:
    """Output of the command, its exit status, and its forecast."""

    code: int
    lines: list[str]
    found: Forecast


async def planned(env: Environment, *more: str) -> Told:
    """Run the command in its own event loop, without waiting times."""
    said, wanted = io.StringIO(), plan.read(words(env, *more))
    found: list[Forecast] = []
    forecast_of = start_forecast.forecast_of

    async def keep(*given: Any, **how: Any) -> Forecast:
        found.append(await forecast_of(*given, **how))
        return found[0]

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(start_forecast, "forecast_of", keep)
        code = await start_forecast.run_in_forecast_thread(
            lambda: plan.show_plan(wanted, said, environ={})
        )
    print(said.getvalue())
    return Told(code=code, lines=said.getvalue().splitlines(), found=found[0])


async def settle(env: Environment) -> None:
    """Eight nodes and eight Services, as a manager leaves them."""
    for number in range(1, 9):
        await legacy.place_node(
            env, f"n{number}", ips=[f"10.0.0.{number}"], ranges=[f"10.244.{number}.0/24"]
        )
    for number in range(1, 9):
        await legacy.settle_service(env, f"s{number}", MEMBERS_OF_ALL)


# --- the changes --------------------------------------------------------------------------------


async def machine_is(env: Environment, name: str, action: world.Action | None = None) -> None:
    """Stop or delete the VM of a node, and its kubelet."""
    found = next(one for one in env.cloud.world.snapshot() if one.name == name)
    if action is None:
        env.cloud.world.delete(found.id)
    else:
        env.cloud.world.act(found.id, action)
    await env.cluster.set_ready(name, names.STATUS_UNKNOWN)


async def node_patched(env: Environment, name: str, patch: Mapping[str, Any]) -> None:
    await env.cluster.patch(f"{harness.NODES}/{name}", patch)


async def balancer_lost(env: Environment) -> None:
    env.cloud.worlds.balancers.delete((await load.balancer_of(env, "s4")).id)


async def stray_route(env: Environment) -> None:
    legacy.place_route(env, "10.244.77.0/24", "10.0.0.5")


ELSEWHERE = {"metadata": {"labels": {names.LABEL_ZONE_BETA: "elsewhere"}}}
OFF = {"spec": {"taints": [{"key": names.TAINT_SHUTDOWN, "effect": "NoSchedule"}]}}
HTTPS = {"name": "https", "protocol": "TCP", "port": 443, "targetPort": 8443}
UNREADY: Mapping[str, Any] = {"ready": names.STATUS_UNKNOWN, "taints": []}
NEW: Mapping[str, Any] = {
    "ready": names.STATUS_TRUE,
    "podCIDR": "10.244.9.0/24",
    "podCIDRs": ["10.244.9.0/24"],
}
FREE = {"metadata": {"finalizers": None}}

Deed = Callable[[Environment], Awaitable[Any]]
CHANGES: Mapping[Deed, tuple[str, ...]] = {
    lambda env: node_patched(env, "n4", ELSEWHERE): ("Node n4",),
    lambda env: node_patched(env, "n3", OFF): ("Node n3",),
    lambda env: machine_is(env, "n2", "stop"): ("Node n2",),
    # The cloud denies it, and nothing proves that it is ours.
    lambda env: env.cluster.register("stranger", **UNREADY): ("Node stranger",),
    stray_route: ("Route 10.244.77.0/24",),
    lambda env: load.create(env, load.web("new")): ("Service default/new",),
    lambda env: load.delete(env, "s1"): ("Service default/s1",),
    lambda env: load.edit(env, "s2", {"spec": {"type": "ClusterIP"}}): ("Service default/s2",),
    lambda env: load.edit(env, "s3", {"spec": {"ports": [HTTPS]}}): ("Service default/s3",),
    balancer_lost: ("Service default/s4",),
    lambda env: legacy.show(env, "s5", []): ("Service default/s5",),
    lambda env: load.edit(env, "s6", FREE): ("Service default/s6",),
    lambda env: env.node("n9", **NEW): (
        *("Node n9", "Route 10.244.9.0/24"),
        *("Service default/s7", "Service default/s8"),
    ),
    lambda env: machine_is(env, "n1"): ("Node n1", "Route 10.244.1.0/24"),
}
"""Changes, and the subjects that the plan then lists for the first time."""


@pytest.mark.both_servers
async def test_plan_predicts_the_changes_of_the_daemon(env: Environment) -> None:
    await settle(env)
    assert (await planned(env)).lines == ["nothing to do"]

    told: Told | None = None
    known: set[str] = set()
    steps = [([change], subjects) for change, subjects in CHANGES.items()]
    if isinstance(env.server, realserver.RealServer):  # all at once: a plan costs seconds
        steps = [(list(CHANGES), tuple(itertools.chain(*CHANGES.values())))]
    for made, subjects in steps:
        for change in made:
            await change(env)
        told = await planned(env)
        found = told.found
        about = {str(one.subject) for one in found.changes}
        about |= {str(one.subject) for one in found.blocked}
        assert (about - known, told.code) == ({*subjects}, 3), made
        known |= about
    assert told is not None

    wanted, holds = comparable(told.found.changes), {str(one.subject) for one in told.found.blocked}
    before = await pictured(env)
    daemon = await env.start_leading(flags=FLAGS)

    async def done() -> bool:
        return (wanted, holds) == (await happened(env, before), await held(env))

    try:
        await wait_for(done, "what was planned")
    except AssertionError:
        assert (wanted, holds) == (await happened(env, before), await held(env))

    async def settled() -> bool:
        """The members of load balancers follow in more than one step."""
        after = await planned(env)
        return (after.lines[-1], after.code) == ("nothing to do; 1 deletion blocked", 0)

    await wait_for(settled, "nothing is left to do")
    assert await daemon.stop() == 0


# --- actual changes -------------------------------------------------------------------------------

Key = tuple[str, str, str, str | None, str | None]


def comparable(found: Sequence[PlannedChange]) -> set[Key]:
    """Return the observable changes; addresses of new load balancers are unpredictable."""
    # Whether a Service without an address is ensured, or gets it from the listing and its members
    # later, depends on which nodes are initialised by then.
    ensured = {one.subject for one in found if one.what in (BALANCER, MEMBERS)}
    keys = set[Key]()
    routes = Counter({one.subject: 0 for one in found if one.what == ROUTE})
    routes.update(one.subject for one in found if one.what == ROUTE and one.action is CREATE)
    routes.subtract(one.subject for one in found if one.what == ROUTE and one.action is DELETE)
    for subject, more in routes.items():
        if more:  # a recreated route looks unchanged
            keys.add((str(subject), ROUTE, "create" if more > 0 else "delete", None, None))
    for one in found:
        if one.what == MEMBERS:
            keys.add((str(one.subject), BALANCER, "change", None, None))
        elif one.what == BALANCER:
            keys.add((str(one.subject), one.what, one.action.value, None, None))
        elif one.what != ROUTE and not (
            one.what == "status.loadBalancer.ingress" and one.subject in ensured
        ):
            keys.add((str(one.subject), one.what, one.action.value, one.old, one.new))
    return keys


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A cluster and its cloud at one moment."""

    objects: Mapping[str, KubeObject]
    balancers: Mapping[str, object]
    routes: set[str]


async def pictured(env: Environment) -> Picture:
    kinds: Mapping[str, Any] = {"node": Node, "service": Service}
    bodies = await load.objects(env)
    return Picture(
        objects={
            name: msgspec.convert(body, kinds[name.partition(" ")[0]])
            for name, body in bodies.items()
        },
        balancers=load.balancers(env),
        routes={one.destination for one in env.cloud.worlds.routes.list()},
    )


async def happened(env: Environment, before: Picture) -> set[Key]:
    """Return the differences since then, in the form of a plan."""
    now, found = await pictured(env), list[PlannedChange]()
    for name in before.objects.keys() | now.objects.keys():
        was, is_ = before.objects.get(name), now.objects.get(name)
        if was is not None and was.is_deleting and is_ is None:
            found.append(
                of_service(was, DELETE, "metadata.finalizers", F)
            )  # its finalizer was taken away
            continue
        kind = "Node" if isinstance(was or is_, Node) else "Service"
        found += changes.object_changes(kind, was, is_, after_s=0)
    for service in before.objects.values():
        name = default_load_balancer_name(service) if isinstance(service, Service) else ""
        one, other = before.balancers.get(name), now.balancers.get(name)
        if one != other:
            made = CREATE if one is None else ChangeKind.CHANGE if other is not None else DELETE
            found.append(of_service(service, made, BALANCER))
    for route in before.routes ^ now.routes:
        subject = ChangedObject("Route", "", route)
        made = CREATE if route in now.routes else DELETE
        found.append(PlannedChange(subject=subject, action=made, what=ROUTE))
    return comparable(found)


def of_service(
    service: KubeObject, action: ChangeKind, what: str, old: str | None = None
) -> PlannedChange:
    subject = ChangedObject("Service", service.namespace, service.name)
    return PlannedChange(subject=subject, action=action, what=what, old=old)


async def held(env: Environment) -> set[str]:
    """Return the blocked deletions that the daemon reports."""
    events = await env.cluster.items(harness.EVENTS)
    about = [each["involvedObject"] for each in events if each["reason"] == "DeletionHeld"]
    return {f"{one['kind']} {one['name']}" for one in about}
