"""The cluster of a guide: kubelets for the servers of its cloud, and Deployments that run.

A Pod of a Deployment is a process of this machine: the container's program with its arguments,
variables, Secrets and ConfigMaps, and with the identity of the administrator. Other namespaces than
kube-system have no such Pods.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
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

_POLL_S = 0.1
_DEPLOYMENTS = "/apis/apps/v1/namespaces/kube-system/deployments"
_PODS = "/api/v1/namespaces/kube-system/pods"


@dataclass(slots=True, kw_only=True)
class RunningPod:
    """A Pod and its process.

    Attributes:
        owner: name of the Deployment.
        template: the Pod template that it has.
        url: address of its health checks.
    """

    owner: str
    template: str
    url: str
    child: process.Child


class Deployments:
    """Runs the Deployments of kube-system; the parts of kubelet and kube-controller-manager.

    Args:
        session: client of the API server, as its administrator.
        kubeconfig: kubeconfig of the processes.
        folder: folder for their files.
        environment: variables of each process, besides those of its container.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        kubeconfig: Path,
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._session = session
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._environment = environment
        self._pods: dict[str, RunningPod] = {}
        self._started = 0

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
        files = sorted(self._folder.glob("*.log"))
        return "\n".join(f"--- {file.name} ---\n{file.read_text()}" for file in files)

    async def _sync(self) -> None:
        listed = await self._call("GET", _DEPLOYMENTS)
        wanted = {one["metadata"]["name"]: one for one in listed["items"]}
        present = {one["metadata"]["name"] for one in (await self._call("GET", _PODS))["items"]}
        for name, pod in [*self._pods.items()]:
            template = _template(wanted[pod.owner]) if pod.owner in wanted else ""
            siblings = [one for one in self._pods.values() if one.owner == pod.owner]
            surplus = pod.owner in wanted and len(siblings) > _replicas(wanted[pod.owner])
            if name not in present or pod.template != template or surplus:
                await self._stop(name)
                break  # the next one only after the replacement of this one
            assert pod.child.exit_code is None, pod.child.log_tail()
        for owner, deployment in wanted.items():
            running = [pod for pod in self._pods.values() if pod.owner == owner]
            if len(running) < _replicas(deployment):
                await self._start(deployment)
            await self._report(deployment)

    async def _start(self, deployment: Mapping[str, Any]) -> None:
        name = f"{deployment['metadata']['name']}-{self._started}"
        self._started += 1
        folder = self._folder / name
        folder.mkdir()
        spec = deployment["spec"]["template"]["spec"]
        container = spec["containers"][0]
        mounts = [place async for place in self._mount(spec, container, folder)]
        port = process.pick_port()
        given = [*container.get("args", ())]
        argv = [_moved(text, mounts) for text in given] + [
            f"--kubeconfig={self._kubeconfig}",
            f"--authentication-kubeconfig={self._kubeconfig}",
            f"--authorization-kubeconfig={self._kubeconfig}",
            f"--bind-address={process.LOOPBACK}",
            f"--secure-port={port}",
            "--logging-format=json",
        ]
        variables = {key: _moved(text, mounts) async for key, text in self._variables(container)}
        log = self._folder / f"{name}.log"
        environ = {"PATH": os.defpath, "HOME": str(folder), **variables, **self._environment}
        assert "command" not in container, "no guide runs other commands of the image yet"
        self._pods[name] = RunningPod(
            owner=deployment["metadata"]["name"],
            template=_template(deployment),
            url=f"https://{process.LOOPBACK}:{port}/readyz",
            child=forkserver.Child(["ccm", *argv], log=log, env=environ),
        )
        metadata = {"name": name, "labels": deployment["spec"]["template"]["metadata"]["labels"]}
        body = {"name": container["name"], "image": container["image"], "args": given}
        pod = {"metadata": metadata, "spec": {"nodeName": WORKERS[0], "containers": [body]}}
        await self._call("POST", _PODS, pod)

    async def _stop(self, name: str) -> None:
        pod = self._pods.pop(name)
        await pod.child.stop(grace_s=cluster.GRACE_S)
        await self._call("DELETE", f"{_PODS}/{name}", {"gracePeriodSeconds": 0}, missing=True)

    async def _report(self, deployment: Mapping[str, Any]) -> None:
        """Write the status that `kubectl rollout status` reads."""
        name = deployment["metadata"]["name"]
        mine = [pod for pod in self._pods.values() if pod.owner == name]
        ready = sum([await self._is_ready(pod) for pod in mine])
        current = sum(pod.template == _template(deployment) for pod in mine)
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(mine),
            "updatedReplicas": current,
            "readyReplicas": ready,
            "availableReplicas": ready,
        }
        if deployment.get("status") != status:
            place = f"{_DEPLOYMENTS}/{name}/status"
            await self._call("PATCH", place, {"status": status}, missing=True)

    async def _is_ready(self, pod: RunningPod) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with self._session.get(pod.url, ssl=False) as response:
                return response.status == 200
        return False

    async def _mount(
        self, spec: Mapping[str, Any], container: Mapping[str, Any], folder: Path
    ) -> AsyncIterator[tuple[str, Path]]:
        """Write the Secrets and ConfigMaps of a Pod; yield the paths of a mount, there and here."""
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            match volumes[mount["name"]]:
                case {"secret": {"secretName": name}}:
                    files = await self._secret(name)
                case {"configMap": {"name": name}}:
                    place = f"/api/v1/namespaces/kube-system/configmaps/{name}"
                    files = (await self._call("GET", place)).get("data", {})
                case _:
                    continue
            place_here = folder / mount["name"]
            place_here.mkdir()
            for name, text in files.items():
                (place_here / name).write_text(text)
            yield mount["mountPath"], place_here / mount.get("subPath", "")

    async def _variables(self, container: Mapping[str, Any]) -> AsyncIterator[tuple[str, str]]:
        for source in container.get("envFrom", ()):
            for name, text in (await self._secret(source["secretRef"]["name"])).items():
                yield name, text
        for entry in container.get("env", ()):
            if "value" in entry:
                yield entry["name"], entry["value"]
            elif reference := entry.get("valueFrom", {}).get("secretKeyRef"):
                secret = await self._secret(reference["name"])
                if reference["key"] in secret or not reference.get("optional"):
                    yield entry["name"], secret[reference["key"]]

    async def _secret(self, name: str) -> Mapping[str, str]:
        found = await self._call("GET", f"/api/v1/namespaces/kube-system/secrets/{name}")
        return {key: base64.b64decode(text).decode() for key, text in found["data"].items()}

    async def _call(
        self, method: str, path: str, body: Any = None, *, missing: bool = False
    ) -> dict[str, Any]:
        patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, path, data=data, headers={"Content-Type": patch}
        ) as response:
            text = await response.text()
            assert response.ok or (missing and response.status == 404), text
            return dict(json.loads(text))


def _replicas(deployment: Mapping[str, Any]) -> int:
    return int(deployment["spec"].get("replicas", 1))


def _template(deployment: Mapping[str, Any]) -> str:
    return json.dumps(deployment["spec"]["template"], sort_keys=True)


def _moved(text: str, mounts: Sequence[tuple[str, Path]]) -> str:
    """Replace the paths of mounts by those of this machine."""
    for there, here in sorted(mounts, reverse=True):  # a path before those that begin like it
        text = text.replace(there, str(here))
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
    deployments: Deployments
    is_populated: Callable[[], Coroutine[Any, Any, bool]]
    run: Callable[[], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def open_stage(
    server: servers.ApiServer, folder: Path, provider: str
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
        deployments = Deployments(session, server.kubeconfig_path, folder, cloud.environment)
        yield Stage(
            kubeconfig=server.kubeconfig_path,
            cloud=cloud,
            deployments=deployments,
            is_populated=lambda: _is_populated(session),
            run=lambda: _run(Client(transport), cloud, deployments),
        )


async def _run(client: Client, cloud: GuideCloud, deployments: Deployments) -> None:
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
        deployments.run(),
        name="stage",
    )


async def _is_populated(session: aiohttp.ClientSession) -> bool:
    async with session.get("/api/v1/nodes") as response:
        return len((await response.json())["items"]) == len(WORKERS)


async def _follow_servers(kubelets: kubelet.Kubelets, cloud: GuideCloud) -> None:
    while True:
        kubelets.set_running_machines(cloud.running())
        await asyncio.sleep(_POLL_S)
