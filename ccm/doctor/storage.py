"""Where copies are kept, if anywhere: reachable, writable, how fast, and whose it is.

Nobody is fenced by it: storage is opened with the epoch of the Lease as it is.
"""

from __future__ import annotations

from typing import Any

from ccm.app.provider import Misconfigured
from ccm.doctor.case import Case
from ccm.doctor.finding import Finding, fail, ok, warn
from ccm.kube import errors
from ccm.kube.resources import LEASES

API_VERSION, KIND = "doctor.ccm/v1", "Probe"
PROBE = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "doctor"}}


async def persistence(case: Case) -> Finding:
    """Open the storage of `--persistence-config`, write something and remove it."""
    options = case.options
    if not options.persistence_config:
        return ok("no --persistence-config: nothing is kept outside the cluster, nor needs to be")
    from ccm.app import persistence as wiring

    try:
        stores = wiring.Stores(
            options.persistence_config,
            case.client,
            namespace=options.leader_elect_resource_namespace,
        )
        epoch = await _epoch(case)
        async with stores.opened(options.cluster_name, "doctor", epoch, rotates=False):
            return await _tried(stores)
    except Misconfigured as error:
        if case.holder and "in use by another process" in str(error):
            return warn(f"not tried: {error}", "that is as it should be, if it is the daemon")
        return fail(str(error), "correct the file, or what it names")


async def _epoch(case: Case) -> int:
    options = case.options
    where = options.leader_elect_resource_namespace
    try:
        name = options.leader_elect_resource_name
        found = await case.client.resource(LEASES).get(name, namespace=where)
    except errors.NotFound:
        return 0
    return found.spec.lease_transitions or 0


async def _tried(stores: Any) -> Finding:
    from ccm.persistence.errors import PersistenceError
    from ccm.persistence.interface import GVK

    manager = stores.manager
    try:
        key = await manager.put_object(PROBE)
        await manager.delete_object(GVK.of(API_VERSION, KIND), key)
        await manager.settled()
    except PersistenceError as error:
        return fail(f"nothing can be written: {error}", "see that storage is there and not full")
    found = {one.name: await one.latency() for one in manager.members}
    secrets = await stores.secret_latencies()
    shown = tuple(
        f"{name}: {'down' if took is None else f'up, {1000 * took:.1f} ms for a write'}"
        for name, took in sorted(found.items())
    ) + tuple(
        f"{name}: {'down' if took is None else 'up'}, for secrets"
        for name, took in sorted(secrets.items())
    )
    if None in (*found.values(), *secrets.values()):
        return warn("some storage is down", "see why; the rest is used meanwhile", details=shown)
    return ok("storage is ours, and can be written", *shown)
