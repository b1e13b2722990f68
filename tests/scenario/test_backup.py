"""A cluster is lost and rebuilt from a snapshot: its VMs and load balancers stay.

Then the Lease of the new cluster is lost, too, so that it counts fewer leaders than the storage.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.app.http import PAIR_NAMES, WEBHOOK_PREFIX
from ccm.cli import backup, command, journal
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.doctor import ExaminationError
from ccm.sandbox import process
from ccm.serving import tls
from tests import servers
from tests.manifests import shipped
from tests.scenario import harness, kubermatic, load, machines, test_kubermatic, test_webhook
from tests.scenario.harness import Cluster, Environment, wait_for
from tests.scenario.machines import ALL_CONTROLLERS, Fleet, FleetApi, vms
from tests.scenario.test_webhook import Person
from tests.storage import settings_of

CHANGES = {f"{verb}_{kind}" for verb in ("create", "delete") for kind in ("instance", "balancer")}
SYSTEM = "/api/v1/namespaces/kube-system"


@dataclass(frozen=True, kw_only=True)
class Group:
    """An API group.

    Attributes:
        fleet: its objects.
        kind: class or type of the Machines.
        controllers: value of `--controllers`.
        prepare: installs the CRDs.
        fill: creates the objects to which Machines refer.
    """

    fleet: FleetApi
    kind: str
    controllers: str
    prepare: Callable[[Environment], Awaitable[None]]
    fill: Callable[[Environment], Awaitable[None]]


async def fill_gardener(env: Environment) -> None:
    secret = machines.sim_secret(env.cloud.token)
    await machines.make_class(env.cluster, "one", machines.SIM, secret)


async def fill_kubermatic(env: Environment) -> None:
    token = base64.b64encode(env.cloud.token.encode()).decode()
    secret = {"metadata": {"name": "machine-controller-sim"}, "data": {"token": token}}
    await env.cluster.create(kubermatic.SECRETS, secret)
    await kubermatic.write_user_data(env.cluster, "workers")


GROUPS = {
    "gardener": Group(
        fleet=machines.GARDENER_FLEET,
        kind="one",
        controllers=",".join(ALL_CONTROLLERS),
        prepare=machines.prepare,
        fill=fill_gardener,
    ),
    "kubermatic": Group(
        fleet=kubermatic.FLEET,
        kind=kubermatic.FLEET.kinds[0],
        controllers=kubermatic.FLAGS["controllers"],
        prepare=kubermatic.install,
        fill=fill_kubermatic,
    ),
}


async def said_by(env: Environment, subcommand: command.DaemonCommand, *words: str) -> list[str]:
    """The lines of a successful command."""
    said = io.StringIO()
    request = subcommand.read([f"--kubeconfig={env.server.kubeconfig_path}", *words])
    act = backup.back_up if subcommand is backup.BACKUP else backup.restore
    assert await act(request, said, environ={}) == 0, said.getvalue()
    return said.getvalue().splitlines()


@pytest.fixture
def storages(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The files of `--persistence-config` of a lost cluster and its successor.

    Parametrized with the backend. A database or a bucket serves both, a file of SQLite one cluster.
    """
    backend, key = request.param, tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o400)

    def write(name: str) -> str:
        objects, secrets = (
            {backend: settings_of(backend, request, tmp_path, f"{kind}{name}")}
            for kind in ("objects", "secrets")
        )
        sealed = {"storage": secrets, "key_files": [str(key)]}
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"instances": [objects], "secrets": {"encrypted": sealed}}))
        return str(file)

    old = write("old")
    return old, write("new") if backend == "sqlite" else old


def owner_uid(obj: Mapping[str, Any]) -> str:
    (owner,) = obj["metadata"].get("ownerReferences") or [{"uid": ""}]
    return str(owner["uid"])


@dataclass(frozen=True, kw_only=True)
class Size:
    """Numbers of Machines and Services."""

    machines: int = 5
    services: int = 2

    @property
    def keys(self) -> list[str]:
        """Names of the Services."""
        return [f"web-{number}" for number in range(self.services)]


async def entries_of(env: Environment, config: str) -> list[Any]:
    """The journal entries of load balancers in a storage."""
    said = await journal_said(env, config, "list", "-o", "json")
    entries = json.loads(said).get("entries", [])
    return [one for one in entries if one["resource"] == "loadbalancer"]


async def journal_said(env: Environment, config: str, *words: str) -> str:
    """The output of the command for the journal, which opens the storage itself."""
    said = io.StringIO()
    given = [f"--kubeconfig={env.server.kubeconfig_path}", f"--persistence-config={config}"]
    given += ["--offline", "--cloud-provider=sim", f"--cloud-config={env.cloud_config}"]
    await journal.show_or_change(journal.read([*words, *given]), said, environ={})
    return said.getvalue()


def balancers(env: Environment) -> set[str]:
    """The IDs of the load balancers in the cloud."""
    return {balancer.id for balancer in env.cloud.worlds.balancers.list()}


async def are_served(env: Environment, size: Size) -> bool:
    """Whether all Services have a load balancer."""
    found = await env.cluster.items(load.SERVICES)
    served = [one for one in found if one.get("status", {}).get("loadBalancer", {}).get("ingress")]
    return {one["metadata"]["name"] for one in served} >= {*size.keys}


async def lose(
    env: Environment, group: Group, config: str, flags: Mapping[str, str], size: Size
) -> str:
    """Store a snapshot of a fleet while the daemon runs, then kill it; the UID of the cluster."""
    await group.prepare(env)
    await group.fill(env)
    daemon = await env.start_leading(flags={**flags, "persistence-config": config})
    await daemon.says("journal opened")
    for name in size.keys:
        await env.cluster.create(load.SERVICES, load.web(name))
    async with (
        servers.connect(env.server) as session,
        Fleet(session, boot_s=0, api=group.fleet).at_work() as fleet,
    ):
        await fleet.deploy(size.machines, kind=group.kind, surge=1, unavailable=0)
        await fleet.until(lambda one: one.all_run(group.kind, size.machines))
    await wait_for(lambda: are_served(env, size), "load balancers")

    async def are_recorded() -> bool:
        entries = await entries_of(env, config)
        return [one["state"] for one in entries] == ["Created"] * size.services

    await wait_for(are_recorded, "load balancers are recorded")
    # The daemon writes to the same storage.
    stored = await said_by(env, backup.BACKUP, f"--persistence-config={config}")
    assert "Secret: 1 stored" in stored
    with pytest.raises(ExaminationError, match=r"holds the Lease .*; stop all replicas"):
        await said_by(env, backup.RESTORE, f"--persistence-config={config}")
    assert daemon.lines("journal is unavailable") == []
    await daemon.kill()
    return str(((await env.cluster.get(SYSTEM)) or {})["metadata"]["uid"])


async def restore_all(
    env: Environment, group: Group, words: Sequence[str], uid: str, size: Size
) -> None:
    """Restore the snapshot: first the dry run, at last once more."""
    planned = await said_by(env, backup.RESTORE, *words, "--dry-run")
    assert await env.cluster.items(f"{group.fleet.path}/machines") == []
    done = await said_by(env, backup.RESTORE, *words)
    assert planned == [
        line.replace(" created", " would be created").replace(" added", " would be added")
        for line in done
    ]
    assert f": {size.machines} created, 0 exist already, 0 failed" in "\n".join(done)
    assert f"journal: {size.services} entries added" in done
    assert done[-1] == f"start the daemon with --cluster-id={uid}, the marker of the VMs"
    again = await said_by(env, backup.RESTORE, *words)
    assert f": 0 created, {size.machines} exist already, 0 failed" in "\n".join(again)


async def adopt_all(env: Environment, config: str, size: Size) -> None:
    """Create the Services anew, and give them their load balancers."""
    for name in size.keys:
        await env.cluster.create(load.SERVICES, load.web(name))
    for entry in await entries_of(env, config):
        key = f"default/{entry['owner']['name']}"
        said = await journal_said(env, config, "adopt", entry["name"], "service", key)
        assert f"now belongs to Service {key}" in said


async def lose_lease(env: Environment, flags: Mapping[str, str]) -> None:
    """Let the Lease count back, and create a load balancer, which is recorded."""
    daemon = await env.start_leading(flags=flags)
    counted = (await env.cluster.lease())["leaseTransitions"]
    assert await daemon.stop() == 0
    await env.cluster.delete(harness.LEASE)
    daemon = await env.start_leading(flags=flags)
    await daemon.says("journal opened")
    assert ((await env.cluster.lease()).get("leaseTransitions") or 0) < counted
    await env.cluster.create(load.SERVICES, load.web("later"))

    async def is_recorded() -> bool:
        entries = await entries_of(env, flags["persistence-config"])
        states = {one["owner"]["name"]: one["state"] for one in entries}
        return states.get("later") == "Created"

    await wait_for(is_recorded, "the load balancer is recorded")
    assert daemon.lines("journal is unavailable") == []
    assert await daemon.stop() == 0


def cases() -> Iterator[Any]:
    """API groups, backends, and sizes."""
    large = Size(machines=50, services=10)
    for backend, name in itertools.product(("sqlite", "postgres", "s3"), GROUPS):
        marks = [] if backend == "sqlite" else [pytest.mark.xdist_group(backend)]
        # The storage does not depend on the API group.
        if backend == "sqlite" or name == "gardener":
            yield pytest.param(name, backend, Size(), marks=marks)
        yield pytest.param(name, backend, large, marks=[*marks, pytest.mark.soak])


@pytest.mark.timeout(480)
@pytest.mark.parametrize(("name", "storages", "size"), list(cases()), indirect=["storages"])
@servers.only_builtin
async def test_lost_cluster_keeps_its_vms_and_load_balancers(
    env: Environment, name: str, storages: tuple[str, str], size: Size, tmp_path: Path
) -> None:
    group, count = GROUPS[name], size.machines
    path = group.fleet.path
    old, new = storages
    controllers = f"{SERVICE.name},{group.controllers}"
    flags = {"controllers": controllers, "kube-api-qps": "-1", "journal": "report"}
    uid = await lose(env, group, old, flags, size)
    before, held, calls = vms(env), balancers(env), len(env.calls())
    assert (len(before), len(held)) == (count, size.services)

    async def adopted() -> bool:
        (deployment,) = await env.cluster.items(f"{path}/machinedeployments")
        (one,) = await env.cluster.items(f"{path}/machinesets")
        owners = {owner_uid(machine) for machine in await env.cluster.items(f"{path}/machines")}
        return owner_uid(one) == deployment["metadata"]["uid"] and owners == {
            one["metadata"]["uid"]
        }

    rebuilt = servers.BuiltinServer(tmp_path / "rebuilt")
    await rebuilt.start()
    try:
        async with servers.connect(rebuilt) as session:
            env.server, env.cluster = rebuilt, Cluster(session)
            await group.prepare(env)
            words = (f"--persistence-config={new}", f"--from-persistence-config={old}")
            await restore_all(env, group, (*words, f"--from-cluster-id={uid}"), uid, size)
            await adopt_all(env, new, size)
            given = {"cluster-id": uid, "persistence-config": new}
            daemon = await env.start_leading(flags={**flags, **given})
            async with Fleet(session, boot_s=0, api=group.fleet).at_work() as fleet:
                await fleet.until(lambda one: one.all_run(group.kind, count))
                await wait_for(adopted, "set and Machines are adopted")
                await wait_for(lambda: are_served(env, size), "load balancers")
                assert (vms(env), balancers(env)) == (before, held)
                operations = {call.operation for call in env.calls()[calls:]}
                assert operations.isdisjoint(CHANGES)
                # The daemon still deletes the VM of a Machine that is not needed.
                await fleet.scale(count - 1)
                await fleet.until(lambda one: one.all_run(group.kind, count - 1))
            assert len(vms(env)) == count - 1
            assert vms(env).items() <= before.items()
            assert await daemon.stop() == 0
            await lose_lease(env, {**flags, **given})
            held = balancers(env) - held
            assert len(held) == 1
            assert vms(env).items() <= before.items()
    finally:
        await rebuilt.kill()


@servers.only_builtin
async def test_storage_in_the_cluster_is_refused(env: harness.Environment) -> None:
    config = env.folder / "storage.yaml"
    config.write_text("instances: [{kubernetes: {}}]\n")
    for subcommand in (backup.BACKUP, backup.RESTORE):
        with pytest.raises(ExaminationError, match="would be lost with the cluster"):
            await said_by(env, subcommand, f"--persistence-config={config}")


@pytest.mark.timeout(180)
@servers.only_real
async def test_restore_names_the_webhook_that_only_the_daemon_serves(env: Environment) -> None:
    file = env.folder / "storage.yaml"
    file.write_text(f"instances: [{{sqlite: {{path: {env.folder}/store.db}}}}]\n")
    words, person, port = f"--persistence-config={file}", Person(env), process.pick_port()
    await kubermatic.install(env)
    created = await env.cluster.create(kubermatic.DEPLOYMENTS, test_kubermatic.deployment(0))
    path = f"{kubermatic.DEPLOYMENTS}/{created['metadata']['name']}"
    await said_by(env, backup.BACKUP, words)
    await env.cluster.delete(path)
    await tls.directory(env.folder / "certs", PAIR_NAMES[WEBHOOK_PREFIX], tls.LOCAL)()

    async def refusal() -> str:
        """Return the error of a dry run; empty if it succeeds."""
        try:
            await said_by(env, backup.RESTORE, words, "--dry-run")
        except ExaminationError as error:
            return str(error)
        return ""

    manifest = shipped.KUBERMATIC_WEBHOOK / "webhook.yaml"
    async with test_webhook.registered(env, person, port, manifest):
        said = await wait_for(refusal, "the API server calls the webhook")
        assert "failed calling webhook" in said
        assert "delete its MutatingWebhookConfiguration" in said

    async def is_allowed() -> bool:
        return not await refusal()

    await wait_for(is_allowed, "the API server calls no webhook")
    await said_by(env, backup.RESTORE, words)
    assert await env.cluster.get(path)
