"""A load balancer whose Service lost its finalizer and was deleted is reported, and stays."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ccm.cli import orphans
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.doctor import journal
from ccm.kube.credentials import TlsSettings
from ccm.model import names
from ccm.runtime.journal import LOAD_BALANCER
from ccm.sandbox import process
from tests import servers
from tests.faults import Match
from tests.scenario import harness
from tests.scenario.harness import Environment, wait_for
from tests.scenario.machines import SERVICES
from tests.support import journals
from tests.vendors import hurried
from tests.vendors.clouds import Hcloud, OpenStack, Sim, Stackit, Vendor
from tests.vendors.crashes import CONFIG_MAPS
from tests.vendors.test_daemons import metrics

PROVIDER = '''
"""A cloud that can look up a load balancer, and lists none."""

from ccm import cloud
from providers import sim

METHODS = (
    "get_load_balancer_name",
    "get_load_balancer",
    "ensure_load_balancer",
    "update_load_balancer",
    "ensure_load_balancer_deleted",
)


class Balancers:
    def __init__(self, balancers):
        for name in METHODS:
            setattr(self, name, getattr(balancers, name))


@cloud.provider(sdk="2.0")
async def open_cloud(context):
    async with sim.open_cloud(context) as given:
        yield cloud.Cloud(
            name="unlistable",
            load_balancer=Balancers(given.load_balancer),
            service_annotations=sim.ANNOTATIONS,
            has_cluster_id=True,
        )
'''


METRIC = re.compile(
    r'^ccm_journal_orphans\{(?=[^}]*action="report")(?=[^}]*resource="loadbalancer")[^}]*\} (\S+)$',
    re.MULTILINE,
)


class Unlistable(Sim):
    """The simulated cloud with a provider that lists no load balancers."""

    name = "unlistable"

    def configure(self, env: Environment, url: str) -> None:
        super().configure(env, url)
        self.how["env"] = harness.install(env.folder, self.name, PROVIDER)


@pytest.mark.slow
@pytest.mark.row("journal-04")
@servers.only_builtin
@pytest.mark.parametrize("made", [Sim, Hcloud, OpenStack, Stackit, Unlistable])
async def test_load_balancer_of_a_lost_service_is_reported_by_one_search(
    api_server: servers.ApiServer,
    tmp_path: Path,
    made: Callable[[], Vendor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vendor, port = made(), process.pick_port()
    kubeconfig = str(api_server.kubeconfig_path)
    vendor.flags = {
        **vendor.flags,
        "controllers": SERVICE.name,
        "journal": "report",
        "journal-check-period": "500ms",
        "secure-port": str(port),
        "bind-address": process.LOOPBACK,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "authorization-always-allow-paths": "/metrics",
    }
    address, trust = f"{process.LOOPBACK}:{port}", TlsSettings(insecure=True)
    monkeypatch.setattr(journal, "ask", partial(journal.ask, address=address, trust=trust))
    async with vendor.opened(api_server, tmp_path) as (env, cloud):
        # The command reads its provider and the provider's environment in this process.
        monkeypatch.syspath_prepend(env.folder / "site")
        for variable, value in vendor.how.get("env", {}).items():
            monkeypatch.setenv(variable, value)
        daemon = await env.start_leading(**vendor.how, module=hurried.__name__)
        await daemon.says("journal opened")
        for name in ("ran", "down"):
            spec = {"type": "LoadBalancer", "ports": [{"port": 80}]}
            meta = {"name": name, "annotations": dict(vendor.pool().annotations)}
            await env.cluster.create(SERVICES, {"metadata": meta, "spec": spec})
        await wait_for(lambda: are_created(env, 2), "the load balancers are recorded")
        held = vendor.ids()

        # The controller itself deletes the load balancer of a Service that it saw, if it can.
        refused = cloud.on(Match(method="DELETE"), harness.refusal(503))
        await env.cluster.delete(f"{SERVICES}/ran")
        await env.cluster.patch(f"{SERVICES}/ran", {"metadata": {"finalizers": None}}, kind="merge")
        await assert_reported(env, vendor, port, "ran")
        assert await daemon.stop() == 0
        cloud.remove(refused)

        path = f"{SERVICES}/down"
        await env.cluster.patch(path, {"metadata": {"finalizers": None}}, kind="merge")
        await env.cluster.delete(path)
        how: dict[str, Any] = {**vendor.how, "module": hurried.__name__}
        how["flags"] = {**how["flags"], "journal-check-period": "1h"}
        daemon = await env.start_leading(**how)
        await assert_reported(env, vendor, port, "ran", "down")
        assert vendor.ids() == held
        assert await daemon.stop() == 0


async def are_created(env: Environment, count: int) -> bool:
    pages = await env.cluster.items(CONFIG_MAPS)
    entries = [entry for page in pages for entry in journals.entries_in(page)]
    states = [one["state"] for one in entries if one["resource"] == LOAD_BALANCER]
    return states == ["Created"] * count


async def assert_reported(env: Environment, vendor: Vendor, port: int, *services: str) -> None:
    """The Services are in Events on the Lease, in the metric, and in the output of a command."""
    owners = [f"The owner Service default/{name} of loadbalancer" for name in services]
    lease = harness.LEASE.rpartition("/")[2]
    words = [
        f"--kubeconfig={env.server.kubeconfig_path}",
        *harness.command_line({**vendor.all_flags, "cloud-config": str(env.cloud_config)}),
    ]

    async def is_reported() -> bool:
        events = await env.cluster.events(lease, names.REASON_ORPHANED_RESOURCE)
        texts, out = [event["message"] for event in events], io.StringIO()
        if not all(any(owner in text for text in texts) for owner in owners):
            return False
        found = METRIC.findall(await metrics(port))
        await orphans.show_or_delete(orphans.read(words), out, environ={})
        is_shown = all(owner in out.getvalue() for owner in owners)
        return is_shown and [float(value) for value in found] == [len(services)]

    await wait_for(is_reported, f"{services} are reported")
