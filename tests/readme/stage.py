"""The cluster of a guide: kubelets for the servers of its cloud, and Deployments that run.

A Pod of a Deployment or DaemonSet in kube-system is a process of this machine: a program of the
image with the arguments, variables, Secrets and ConfigMaps of its container, and with the identity
of the administrator. A Pod of a Go program is a process of our daemon with the arguments of that
program: it holds the Lease and settles the objects in its place. Other namespaces have no Pods.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from ccm.base import tasks
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import StaticCredentials, TlsSettings, bearer
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import NODES
from ccm.kube.transport import Transport
from ccm.sandbox import cluster, kubelet, process
from tests import forkserver, servers
from tests.readme.clouds import CLOUDS, GuideCloud

WORKERS = ("worker-1", "worker-2")
"""Names of the nodes that a cluster has from the start."""

_POLL_S = 0.2
_WORKLOADS = "/apis/apps/v1/namespaces/kube-system"
_CORE = "/api/v1/namespaces/kube-system"

Object = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class RunningPod:
    """A Pod and its process.

    Attributes:
        owner: path of its Deployment or DaemonSet.
        template: the Pod template that it has.
        volumes: here -> the volume whose files are there.
        url: address of its readiness probe.
    """

    owner: str
    template: str
    volumes: Mapping[Path, Object]
    url: str
    child: process.Child


@dataclass(slots=True, kw_only=True)
class Workloads:
    """Runs the Deployments and DaemonSets: the parts of kubelet and kube-controller-manager.

    Attributes:
        session: client of the API server, as its administrator.
        kubeconfig: kubeconfig of the processes.
        folder: folder for their files.
        environment: variables of each process, besides those of its container.
    """

    session: aiohttp.ClientSession
    kubeconfig: Path
    folder: Path
    environment: Mapping[str, str]
    _pods: dict[str, RunningPod] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def run(self) -> None:
        """Run Pods until cancelled.

        Raises:
            AssertionError: a process ended by itself.
        """
        try:
            while True:
                await self._sync()
                await asyncio.sleep(_POLL_S)
        finally:
            for pod in self._pods.values():
                await pod.child.kill()

    def logs(self) -> str:
        """Return the logs of all processes so far."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {file.name} ---\n{file.read_text()}" for file in files)

    async def _sync(self) -> None:
        owners = {
            f"{_WORKLOADS}/{plural}/{one['metadata']['name']}": one
            for plural in ("deployments", "daemonsets")
            for one in (await self._call("GET", f"{_WORKLOADS}/{plural}")).get("items", ())
        }
        pods = [one["metadata"] for one in (await self._call("GET", f"{_CORE}/pods"))["items"]]
        present = {pod["name"] for pod in pods if "deletionTimestamp" not in pod}
        await self._stop_one(owners, present)
        for path, owner in owners.items():
            if len(self._of(path)) < _replicas(owner):
                await self._start(path, owner)
            await self._report(path, owner)
        for pod in self._pods.values():
            assert pod.child.exit_code is None, pod.child.log_tail()
            for folder, volume in pod.volumes.items():
                await self._write(folder, volume)

    def _of(self, owner: str) -> Sequence[RunningPod]:
        return [pod for pod in self._pods.values() if pod.owner == owner]

    async def _stop_one(self, owners: Mapping[str, Object], present: set[str]) -> None:
        """Stop a Pod that is deleted, surplus or outdated; the next one after its replacement."""
        for name, pod in self._pods.items():
            owner = owners.get(pod.owner)
            is_wanted = owner is not None and len(self._of(pod.owner)) <= _replicas(owner)
            if name in present and is_wanted and pod.template == _template(owner):
                continue
            await pod.child.stop(grace_s=cluster.GRACE_S)
            await self._call("DELETE", f"{_CORE}/pods/{name}", {"gracePeriodSeconds": 0})
            del self._pods[name]
            return

    async def _start(self, path: str, owner: Object) -> None:
        name = f"{owner['metadata']['name']}-{next(self._numbers)}"
        template = owner["spec"]["template"]
        spec, container = template["spec"], template["spec"]["containers"][0]
        mounts, volumes = {"inClusterConfig": self.kubeconfig}, {}
        for mount in container.get("volumeMounts", ()):
            here = self.folder / name / mount["name"]
            here.mkdir(parents=True)
            mounts[mount["mountPath"]] = here / mount.get("subPath", "")
            (volumes[here],) = (one for one in spec["volumes"] if one["name"] == mount["name"])
            await self._write(here, volumes[here])
        variables = {key: _moved(text, mounts) async for key, text in self._variables(container)}
        given = [
            re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], text)
            for text in container["args"]
        ]
        port = process.pick_port()
        command, scheme, implied = self._command(container, port)
        argv = [*command, *(_moved(text, mounts) for text in given), *implied]
        environ = {"PATH": os.defpath, **variables, **self.environment}
        log = self.folder / f"{name}.log"
        self._pods[name] = RunningPod(
            owner=path,
            template=_template(owner),
            volumes=volumes,
            url=f"{scheme}://{process.LOOPBACK}:{port}/readyz",
            child=forkserver.Child(argv, log=log, env=environ),
        )
        labels = template["metadata"]["labels"]
        shown = {"name": container["name"], "image": container["image"], "args": given}
        pod = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"nodeName": WORKERS[0], "containers": [shown]},
        }
        await self._call("POST", f"{_CORE}/pods", pod)

    def _command(self, container: Object, port: int) -> tuple[list[str], str, list[str]]:
        """Return the module, the scheme of its port, and the arguments that a cluster implies."""
        if "command" in container:
            own = [f"--target-kubeconfig={self.kubeconfig}", f"--address={process.LOOPBACK}"]
            name = Path(container["command"][0]).name
            return ["ccm.app.machines", name], "http", [*own, f"--port={port}"]
        names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        own = [f"--{name}={self.kubeconfig}" for name in names]
        own += [f"--bind-address={process.LOOPBACK}", f"--secure-port={port}"]
        return ["ccm"], "https", own

    async def _report(self, path: str, owner: Object) -> None:
        """Write the status that `kubectl rollout status` reads."""
        pods = self._of(path)
        ready = sum([await self._is_ready(pod) for pod in pods])
        current = sum(pod.template == _template(owner) for pod in pods)
        status = {"observedGeneration": owner["metadata"]["generation"]}
        if "/deployments/" in path:
            counts = {"replicas": len(pods), "updatedReplicas": current}
            status |= {**counts, "readyReplicas": ready, "availableReplicas": ready}
        else:
            counts = {"desiredNumberScheduled": _replicas(owner), "numberMisscheduled": 0}
            status |= {**counts, "currentNumberScheduled": len(pods), "numberReady": ready}
        old = owner.get("status", {})
        if any(old.get(key, 0) != value for key, value in status.items()):
            await self._call("PATCH", f"{path}/status", {"status": status})

    async def _is_ready(self, pod: RunningPod) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with self.session.get(pod.url, ssl=False) as response:
                return response.status == 200
        return False

    async def _write(self, folder: Path, volume: Object) -> None:
        """Write the files of a Secret or ConfigMap that have changed."""
        match volume:
            case {"secret": {"secretName": name}}:
                files = await self._secret(name)
            case {"configMap": {"name": name}}:
                files = (await self._call("GET", f"{_CORE}/configmaps/{name}")).get("data", {})
            case _:
                return
        for name, text in files.items():
            file = folder / name
            if not file.exists() or file.read_text() != text:
                file.write_text(text)

    async def _variables(self, container: Object) -> AsyncIterator[tuple[str, str]]:
        for source in container.get("envFrom", ()):
            for name, text in (await self._secret(source["secretRef"]["name"])).items():
                yield name, text
        for entry in container.get("env", ()):
            if "value" in entry:
                yield entry["name"], entry["value"]
                continue
            reference = entry["valueFrom"]["secretKeyRef"]
            secret = await self._secret(reference["name"])
            if reference["key"] in secret or not reference.get("optional"):
                yield entry["name"], secret[reference["key"]]

    async def _secret(self, name: str) -> Mapping[str, str]:
        found = await self._call("GET", f"{_CORE}/secrets/{name}")
        data = found.get("data", {})  # deleted while a Pod still runs
        return {key: base64.b64decode(text).decode() for key, text in data.items()}

    async def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request; return the response, or nothing if the object does not exist."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": kind}
        async with self.session.request(method, path, data=data, headers=headers) as response:
            text = await response.text()
            assert response.ok or response.status == 404, text
            return dict(json.loads(text)) if response.ok else {}


def _replicas(owner: Object) -> int:
    if "replicas" not in owner["spec"]:  # a DaemonSet
        # No node of a guide has a label for a node selector of its own.
        return int("nodeSelector" not in owner["spec"]["template"]["spec"])
    return int(owner["spec"]["replicas"])


def _template(owner: Object | None) -> str:
    return json.dumps(owner and owner["spec"]["template"], sort_keys=True)


def _moved(text: str, mounts: Mapping[str, Path]) -> str:
    """Replace the paths in a cluster by those of this machine."""
    for there in sorted(mounts, reverse=True):  # a path before those that begin like it
        text = text.replace(there, str(mounts[there]))
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The surroundings of a walk through a guide.

    Attributes:
        is_populated: function that returns whether all kubelets have registered their nodes.
        run: function that runs them until it is cancelled, or until a process ends by itself.
    """

    kubeconfig: Path
    cloud: GuideCloud
    workloads: Workloads
    is_populated: Callable[[], Coroutine[Any, Any, bool]]
    run: Callable[[], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def open_stage(
    server: cluster.ApiServer, folder: Path, provider: str
) -> AsyncIterator[Stage]:
    """Prepare the surroundings of a guide for a provider."""
    authorities = server.ca_file.read_bytes() if server.ca_file else None
    config = ClusterConfig(
        server=server.url,
        credentials=StaticCredentials(bearer(server.token)),
        tls=TlsSettings(authorities=authorities),
    )
    folder.mkdir()
    async with (
        CLOUDS[provider](WORKERS) as cloud,
        servers.connect(server) as session,
        Transport(config, user_agent="kubelets") as transport,
    ):
        workloads = Workloads(
            session=session,
            kubeconfig=server.kubeconfig,
            folder=folder,
            environment=cloud.environment,
        )
        yield Stage(
            kubeconfig=server.kubeconfig,
            cloud=cloud,
            workloads=workloads,
            is_populated=lambda: _is_populated(session),
            run=lambda: _run(Client(transport), cloud, workloads),
        )


async def _run(client: Client, cloud: GuideCloud, workloads: Workloads) -> None:
    informers = SharedInformers(client)
    kubelets = kubelet.Kubelets(
        informers.informer_for(NODES), client.resource(NODES), ranges=kubelet.PodRanges()
    )
    await tasks.first_of(
        informers.run(),
        kubelets.run(),
        kubelet.PodLifecycle(informers, client).run(),
        kubelet.DisruptionController(informers, client).run(),
        _follow_servers(kubelets, cloud),
        workloads.run(),
        name="stage",
    )


async def _is_populated(session: aiohttp.ClientSession) -> bool:
    async with session.get("/api/v1/nodes") as response:
        return len((await response.json())["items"] or ()) == len(WORKERS)


async def _follow_servers(kubelets: kubelet.Kubelets, cloud: GuideCloud) -> None:
    while True:
        kubelets.set_running_machines(cloud.running())
        await asyncio.sleep(_POLL_S)
