"""The Deployment of the daemon as the cluster has it: its Pods, their image, the Secrets they need.

The parts that judge are pure: objects in, what is wrong with them out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from urllib.parse import quote

import msgspec

from ccm.app.options import FLAGS
from ccm.base import clock
from ccm.doctor import objects
from ccm.doctor.case import Case
from ccm.doctor.finding import Finding, count, fail, ok, warn
from ccm.kube import errors
from ccm.model import names, times

NAME = "cloud-controller-manager"
"""The label of our Deployments, whether the base or the chart made them; also the name of the
Lease where no flag says another."""

RECENT = timedelta(hours=1)
"""How long the end of a container is worth a warning."""

_PULL = "push the image, correct its name, or give the Pods imagePullSecrets"
_LOGS = "see why it ends: kubectl -n {namespace} logs {pod} --previous"
_SEE = "see what it waits for: kubectl -n {namespace} describe pod {pod}"
_ADVICE: Mapping[str, str] = {
    "ErrImagePull": _PULL,
    "ImagePullBackOff": _PULL,
    "InvalidImageName": "correct the name of the image",
    "ErrImageNeverPull": "load the image on the node, or set imagePullPolicy: IfNotPresent",
    "CrashLoopBackOff": _LOGS,
    "Error": _LOGS,
    "Completed": _LOGS,
    "CreateContainerConfigError": "make what it lacks; see the finding about Secrets",
    "OOMKilled": "raise resources.limits.memory",
    "Unschedulable": "make room: see which node it could be on, and why it is not",
    "NotReady": "ask it: kubectl get --raw "
    "'/api/v1/namespaces/{namespace}/pods/https:{pod}:{port}/proxy/readyz?verbose'",
}
"""Why a Pod does not work -> what to do; what is not here, `_SEE`."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a Pod: the reason, and what is known about it."""

    pod: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"Pod {self.pod}: {self.reason}{self.message and f': {self.message}'}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A Secret that Pods need; `key` empty: any will do."""

    secret: str
    key: str
    use: str


async def deployment(case: Case) -> Finding:
    """Look at the Deployment and its Pods."""
    found = await ours(case)
    if found is None:
        return ok("no Deployment of this daemon: it runs elsewhere, or is not installed yet")
    container, kubectl = main(found), f"kubectl -n {found.metadata.namespace}"
    ready, wanted = found.status.ready_replicas, found.spec.replicas
    what = f"{found.key}, image {container.image}: {ready} of {count(wanted, 'replica')} ready"
    if wanted == 0:
        return warn(what, f"{kubectl} scale deployment {found.metadata.name} --replicas=2")
    troubles = await _troubles(case, found)
    details = [str(trouble) for trouble in troubles]
    advice = list(dict.fromkeys(_advice(one, found) for one in troubles))
    provider = container.flag("--cloud-provider")
    if provider not in ("", case.options.cloud_provider):
        details.append(f"it has --cloud-provider={provider}")
        advice.append("give this command the flags of the Deployment")
    if ready < wanted and not advice:
        advice = [f"{kubectl} describe deployment {found.metadata.name}"]
    if not advice:
        return ok(what)
    return (warn if ready else fail)(what, *advice, details=details)


async def secrets(case: Case) -> Finding:
    """Look whether the Secrets are there that the Pods mount and read."""
    found = await ours(case)
    if found is None:
        return ok("no Deployment needs one")
    namespace, given = found.metadata.namespace, main(found).flag("--cloud-config")
    if given and not is_mounted(found, given):
        return fail(
            f"--cloud-config={given} is on no volume of {found.key}",
            f"mount the Secret with it at {PurePosixPath(given).parent}",
        )
    wanted = list(wanted_secrets(found))
    there = {name: await _keys(case, namespace, name) for name in {one.secret for one in wanted}}
    missing = [one for one in wanted if lack_of(one, there[one.secret])]
    if missing:
        first = missing[0]
        return fail(
            f"{namespace} lacks {'; '.join(lack_of(one, there[one.secret]) for one in missing)}",
            f"kubectl -n {namespace} create secret generic {first.secret} "
            f"--from-file={first.key or 'KEY'}=FILE",
        )
    told = ", ".join(sorted(there))
    return ok(f"{told} of {namespace} has what the Pods need" if told else "none is needed")


async def ours(case: Case) -> objects.Deployment | None:
    """The Deployment whose replicas compete for the Lease of the flags. Raises KubeError."""
    namespace = case.options.leader_elect_resource_namespace
    selector = {"labelSelector": f"{names.LABEL_APP}={NAME}"}
    try:
        answer = await case.client.raw("GET", "/apis/apps/v1/deployments", query=selector)
    except errors.Forbidden:
        path = f"/apis/apps/v1/namespaces/{quote(namespace)}/deployments"
        answer = await case.client.raw("GET", path, query=selector)
    every = msgspec.json.decode(answer, type=objects.Deployments).items or ()
    lease = case.options.leader_elect_resource_name
    return next((one for one in every if one.containers and _lease(main(one)) == lease), None)


def main(found: objects.Deployment) -> objects.Container:
    """The container with the daemon."""
    containers = found.containers
    return next((one for one in containers if one.flag("--cloud-provider")), containers[0])


def troubles_of(pod: objects.Pod, now: datetime) -> Iterator[Trouble]:
    """Why a Pod does not work, or did not lately."""
    status, name = pod.status, pod.metadata.name
    if pod.metadata.deletion_timestamp:
        return
    if status.phase == "Failed":
        yield Trouble(name, status.reason or "Failed", status.message)
        return
    for condition in status.conditions or ():
        if (condition.type, condition.status) == ("PodScheduled", "False"):
            yield Trouble(name, condition.reason, condition.message)
    for one in status.container_statuses or ():
        ended = one.last_state.terminated
        if one.state.waiting is not None:
            message = one.state.waiting.message or (_ending(ended) if ended else "")
            yield Trouble(name, one.state.waiting.reason, message)
        elif not one.ready:
            yield Trouble(name, "NotReady", "it runs and says that it is not ready")
        elif ended and _is_recent(ended, now):
            times_ = count(one.restart_count, "restart")
            yield Trouble(name, ended.reason, f"{times_}, the last time it {_ending(ended)}")


def wanted_secrets(found: objects.Deployment) -> Iterator[Wanted]:
    """What Secrets the Pods cannot start without, and the key with the cloud config."""
    container = main(found)
    config = container.flag("--cloud-config")
    volumes = {one.name: one.secret for one in found.spec.template.spec.volumes or ()}
    for mount in container.volume_mounts or ():
        secret = volumes.get(mount.name)
        if secret is not None and not secret.optional:
            yield Wanted(secret.secret_name, _key(mount, secret, config), mount.mount_path)
    for whole in container.env_from or ():
        if whole.secret_ref and not whole.secret_ref.optional:
            yield Wanted(whole.secret_ref.name, "", "its environment")
    for variable in container.env or ():
        ref = variable.value_from.secret_key_ref if variable.value_from else None
        if ref and not ref.optional:
            yield Wanted(ref.name, ref.key, f"the variable {variable.name}")


def lack_of(one: Wanted, keys: Collection[str] | None) -> str:
    """What is missing, in words; empty: nothing. `keys` None: there is no such Secret."""
    if keys is None:
        return f"the Secret {one.secret} (for {one.use})"
    if one.key and one.key not in keys:
        return f"the key {one.key} in the Secret {one.secret} (it has {', '.join(sorted(keys))})"
    return ""


def is_mounted(found: objects.Deployment, path: str) -> bool:
    """Whether a file lies on one of the volumes."""
    return any(_holds(mount, path) for mount in main(found).volume_mounts or ())


def _holds(mount: objects.Mount, path: str) -> bool:
    at = PurePosixPath(mount.mount_path)
    return at == PurePosixPath(path) or at in PurePosixPath(path).parents


def _key(mount: objects.Mount, secret: objects.SecretVolume, path: str) -> str:
    """The key that is the file of that path; empty: it lies elsewhere."""
    if not path or not _holds(mount, path):
        return ""
    below = PurePosixPath(path).relative_to(mount.mount_path)
    file = mount.sub_path if str(below) == "." else str(PurePosixPath(mount.sub_path) / below)
    renamed = {item.path: item.key for item in secret.items or ()}
    return renamed.get(file, file)


def _lease(container: objects.Container) -> str:
    return container.flag("--leader-elect-resource-name") or NAME


def _ending(ended: objects.Terminated) -> str:
    why = f" ({ended.reason})" if ended.reason not in ("", "Error") else ""
    return f"ended with exit code {ended.exit_code}{why}"


def _is_recent(ended: objects.Terminated, now: datetime) -> bool:
    try:
        return now - times.parse_time(ended.finished_at or "") < RECENT
    except ValueError:
        return False


def _advice(trouble: Trouble, found: objects.Deployment) -> str:
    return _ADVICE.get(trouble.reason, _SEE).format(
        namespace=found.metadata.namespace,
        pod=trouble.pod,
        port=main(found).flag("--secure-port") or FLAGS["secure-port"].default,
    )


async def _troubles(case: Case, found: objects.Deployment) -> Sequence[Trouble]:
    path = f"/api/v1/namespaces/{quote(found.metadata.namespace)}/pods"
    answer = await case.client.raw("GET", path, query={"labelSelector": found.selector})
    pods = msgspec.json.decode(answer, type=objects.Pods).items or ()
    # Pods that were evicted stay, and have successors.
    is_whole = found.status.ready_replicas >= found.spec.replicas
    looked_at = [pod for pod in pods if not is_whole or pod.status.phase != "Failed"]
    return [trouble for pod in looked_at for trouble in troubles_of(pod, clock.now())]


async def _keys(case: Case, namespace: str, name: str) -> Collection[str] | None:
    """The keys of a Secret; None: there is none."""
    try:
        answer = await case.client.raw("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
    except errors.NotFound:
        return None
    return (msgspec.json.decode(answer, type=objects.Secret).data or {}).keys()
