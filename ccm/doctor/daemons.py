"""Checks of the daemon's Deployment, Pods, Secrets and Lease, and of other controller managers.

Two managers of one cloud must share a Lease; otherwise both change the same nodes and load
balancers. Two managers of different clouds must not share a Lease; otherwise only one works at a
time.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from ccm.app.machineapis import KUBERMATIC
from ccm.app.machines.commands import COMMANDS
from ccm.app.options import FLAGS, controllers
from ccm.base import clock
from ccm.base.parsing import parse_digits
from ccm.doctor.case import (
    Case,
    CheckFinding,
    count,
    fail,
    get_field,
    get_text_field,
    items,
    ok,
    read,
    some,
    warn,
)
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.model import names, times

NAME = "cloud-controller-manager"
"""Label value of the daemon's Deployment, and default name of the Lease.

Names of other managers often contain this name too.
"""

START_ADVICE = (
    "start the daemon with these flags; if the daemon is running, see the findings deployment and "
    "lease, and its log"
)
"""Advice if an object waits for the daemon, but no daemon is active."""

RECENT_TERMINATION = timedelta(hours=1)
"""How long the last termination of a container counts as a problem."""

DEFAULT_PORT = 10258
"""Default port of the HTTPS server (`--secure-port`)."""

_LEASES = "/apis/coordination.k8s.io/v1"
_NOT_OF_NODES = "metadata.namespace!=kube-node-lease"
_PROVIDER = "--cloud-provider"
_EXTERNAL = "external"

_PULL = "push the image, correct its name, or set imagePullSecrets of the Pods"
_LOGS = "find why the container exits: kubectl -n {namespace} logs {pod} --previous"
_SEE = "find the cause in the events: kubectl -n {namespace} describe pod {pod}"
_ADVICE: Mapping[str, str] = {
    "ErrImagePull": _PULL,
    "ImagePullBackOff": _PULL,
    "InvalidImageName": "correct the name of the image",
    "ErrImageNeverPull": "load the image on the node, or set imagePullPolicy: IfNotPresent",
    "CrashLoopBackOff": _LOGS,
    "Error": _LOGS,
    "Completed": _LOGS,
    "CreateContainerConfigError": "create the missing object; see the finding secrets",
    "OOMKilled": "raise resources.limits.memory",
    "Unschedulable": "free resources on a suitable node, or relax the scheduling constraints",
    "NotReady": "find the failing check: kubectl get --raw "
    "'/api/v1/namespaces/{namespace}/pods/https:{pod}:{port}/proxy/readyz?verbose'",
}
"""Reason why a Pod does not work -> advice; `_SEE` for other reasons."""


# --- the Deployment -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deployment:
    """The Deployment of the daemon, and the daemon's container in its Pod template."""

    body: Mapping[str, Any]
    container: Mapping[str, Any]

    @property
    def namespace(self) -> str:
        return get_text_field(self.body, "metadata.namespace")

    @property
    def key(self) -> str:
        return f"{self.namespace}/{get_text_field(self.body, 'metadata.name')}"

    @property
    def ready(self) -> int:
        """Number of ready replicas."""
        return get_field(self.body, "status.readyReplicas") or 0

    @property
    def replicas(self) -> int:
        given = get_field(self.body, "spec.replicas")
        return 1 if given is None else given

    @property
    def selector(self) -> str:
        """Label selector of the Deployment's Pods, as for `kubectl -l`."""
        labels = get_field(self.body, "spec.selector.matchLabels") or {}
        return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


async def find_own_deployment(case: Case) -> Deployment | None:
    """Return the Deployment whose replicas compete for the daemon's Lease; None if there is none.

    Raises KubeError.
    """
    namespace = quote(case.options.leader_elect_resource_namespace)
    selector = f"{names.LABEL_APP}={NAME}"
    try:
        bodies = await items(case.client, "/apis/apps/v1/deployments", labelSelector=selector)
    except errors.Forbidden:
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        bodies = await items(case.client, path, labelSelector=selector)
    for body in bodies:
        containers = get_field(body, "spec.template.spec.containers") or ()
        if not containers:
            continue
        main = next(
            (candidate for candidate in containers if flag_value(candidate, _PROVIDER)),
            containers[0],
        )
        lease = flag_value(main, "--leader-elect-resource-name") or NAME
        if lease == case.options.leader_elect_resource_name:
            return Deployment(body, main)
    return None


async def deployment(case: Case) -> CheckFinding:
    """Check the Deployment and its Pods."""
    own = await find_own_deployment(case)
    if own is None:
        return ok("no Deployment of this daemon: it runs elsewhere, or is not installed yet")
    name, kubectl = own.key.partition("/")[2], f"kubectl -n {own.namespace}"
    ready, wanted, image = own.ready, own.replicas, get_text_field(own.container, "image")
    summary = f"{own.key}, image {image}: {ready} of {count(wanted, 'replica')} ready"
    if wanted == 0:
        return warn(summary, f"{kubectl} scale deployment {name} --replicas=2")
    path = f"/api/v1/namespaces/{quote(own.namespace)}/pods"
    pods = await items(case.client, path, labelSelector=own.selector)
    details, advice = list[str](), dict[str, None]()
    for pod in pods:
        # Evicted Pods remain as Failed after the ReplicaSet has replaced them.
        if ready >= wanted and get_field(pod, "status.phase") == "Failed":
            continue
        for reason, message in troubles_of(pod, clock.now()):
            pod_name = get_text_field(pod, "metadata.name")
            details.append(f"Pod {pod_name}: {reason}{message and f': {message}'}")
            advice[
                _ADVICE.get(reason, _SEE).format(
                    namespace=own.namespace,
                    pod=pod_name,
                    port=flag_value(own.container, "--secure-port") or FLAGS["secure-port"].default,
                )
            ] = None
    provider = flag_value(own.container, _PROVIDER)
    if provider not in ("", case.options.cloud_provider):
        details.append(f"the Deployment has --cloud-provider={provider}")
        advice["pass the flags of the Deployment to this command"] = None
    if ready < wanted and not advice:
        advice[f"{kubectl} describe deployment {name}"] = None
    if not advice:
        return ok(summary)
    return (warn if ready else fail)(summary, *advice, details=details)


def troubles_of(pod: Any, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield why a Pod does not work, or did not work recently, as pairs of reason and message."""
    if get_field(pod, "metadata.deletionTimestamp"):
        return
    if get_field(pod, "status.phase") == "Failed":
        yield (
            get_text_field(pod, "status.reason") or "Failed",
            get_text_field(pod, "status.message"),
        )
        return
    for condition in get_field(pod, "status.conditions") or ():
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
            yield get_text_field(condition, "reason"), get_text_field(condition, "message")
    for status in get_field(pod, "status.containerStatuses") or ():
        waiting, ended = (
            get_field(status, "state.waiting"),
            get_field(status, "lastState.terminated"),
        )
        ending = ""
        if ended is not None:
            reason = get_text_field(ended, "reason")
            why = f" ({reason})" if reason not in ("", "Error") else ""
            ending = f"exit code {ended.get('exitCode', 0)}{why}"
        if waiting is not None:
            yield get_text_field(waiting, "reason"), get_text_field(waiting, "message") or ending
        elif not status.get("ready"):
            yield "NotReady", "running, but not ready"
        elif ended is not None and _is_recent(get_text_field(ended, "finishedAt"), now):
            restarts = count(status.get("restartCount", 0), "restart")
            yield get_text_field(ended, "reason"), f"{restarts}, the last with {ending}"


def _is_recent(moment: str, now: datetime) -> bool:
    try:
        return now - times.parse_time(moment) < RECENT_TERMINATION
    except ValueError:
        return False


async def secrets(case: Case) -> CheckFinding:
    """Check that all Secrets needed by the Deployment's Pods exist and have the needed keys."""
    own = await find_own_deployment(case)
    if own is None:
        return ok("no Deployment, so no Secret is needed")
    namespace, config = own.namespace, flag_value(own.container, "--cloud-config")
    mounts = get_field(own.container, "volumeMounts") or ()
    if config and not any(_holds(mount, config) for mount in mounts):
        return fail(
            f"--cloud-config={config} is on no volume of {own.key}",
            f"mount a Secret with this file at {PurePosixPath(config).parent}",
        )
    keys: dict[str, Collection[str] | None] = {}
    missing: list[tuple[str, str, str]] = []
    for secret, key, use in needed_secrets(own):
        if secret not in keys:
            keys[secret] = await _keys(case.client, namespace, secret)
        content = f"--from-literal={key or 'KEY'}=VALUE"
        if use.startswith("/"):
            # The only known key of a volume is the cloud config; its file may be called cloud.conf.
            path = case.options.cloud_config if key else ""
            content = f"--from-file={key or 'KEY'}={shlex.quote(path or 'FILE')}"
        if (known_keys := keys[secret]) is None:
            missing.append((secret, content, f"the Secret {secret} (for {use})"))
        elif key and key not in known_keys:
            known = ", ".join(sorted(known_keys))
            lack = f"the key {key} in the Secret {secret} (it has {known})"
            missing.append((secret, content, lack))
    if missing:
        secret, content, _ = missing[0]
        create = f"kubectl -n {namespace} create secret generic {secret} {content}"
        if keys[secret] is not None:
            # With a field manager of its own, which owns no other key, the other keys stay.
            apply = "kubectl apply --server-side --field-manager=kube-ccm -f -"
            create += f" --dry-run=client -o yaml | {apply}"
        return fail(f"{namespace} lacks {'; '.join(lack for _, _, lack in missing)}", create)
    shown = ", ".join(sorted(keys))
    return ok(f"complete in {namespace}: {shown}" if shown else "no Secret is needed")


def needed_secrets(own: Deployment) -> Iterator[tuple[str, str, str]]:
    """Yield name, key and use of each Secret that the Pods need to start.

    An empty key means that no specific key is needed.
    """
    config = flag_value(own.container, "--cloud-config")
    volumes = get_field(own.body, "spec.template.spec.volumes") or ()
    by_name = {get_text_field(volume, "name"): volume.get("secret") for volume in volumes}
    for mount in get_field(own.container, "volumeMounts") or ():
        secret, path = (
            by_name.get(get_text_field(mount, "name")),
            get_text_field(mount, "mountPath"),
        )
        if secret is None or secret.get("optional"):
            continue
        key = ""
        if config and _holds(mount, config):
            below = PurePosixPath(config).relative_to(path)
            file = PurePosixPath(get_text_field(mount, "subPath")) / below
            renamed = {
                get_text_field(item, "path"): item.get("key") for item in secret.get("items") or ()
            }
            # If the path is the mount point itself, no key is known.
            name = "" if file == PurePosixPath() else str(file)
            key = renamed.get(name) or name
        yield get_text_field(secret, "secretName"), key, path
    for source in get_field(own.container, "envFrom") or ():
        if (ref := source.get("secretRef")) and not ref.get("optional"):
            yield get_text_field(ref, "name"), "", "the environment"
    for variable in get_field(own.container, "env") or ():
        if (ref := get_field(variable, "valueFrom.secretKeyRef")) and not ref.get("optional"):
            yield (
                get_text_field(ref, "name"),
                get_text_field(ref, "key"),
                f"the variable {variable.get('name')}",
            )


def _holds(mount: Any, path: str) -> bool:
    """Return whether a path is on the mounted volume."""
    return PurePosixPath(path).is_relative_to(get_text_field(mount, "mountPath"))


async def _keys(client: Client, namespace: str, name: str) -> Collection[str] | None:
    """Return the keys of a Secret; None if it does not exist."""
    try:
        secret = await read(client, f"/api/v1/namespaces/{namespace}/secrets/{name}")
    except errors.NotFound:
        return None
    return (secret.get("data") or {}).keys()


def flag_value(container: Any, name: str) -> str:
    """Return the last value of a flag in a container's command line; empty if absent.

    `name` includes the dashes.
    """
    value = ""
    for word, following in pairwise([*_words(container), ""]):
        if word.startswith(f"{name}="):
            value = word.removeprefix(f"{name}=")
        elif word == name:
            value = following
    return value


def _words(container: Any) -> Sequence[str]:
    """Return the container's command and args; parts that the image defines are unknown."""
    return [*(get_field(container, "command") or ()), *(get_field(container, "args") or ())]


# --- managers that run as Pods ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerPod:
    """A Pod that runs a cloud-controller-manager.

    Attributes:
        pod: name of the Pod.
        host: host name in the Pod; part of the manager's Lease identity.
        image: image of the container.
        provider: value of `--cloud-provider`; empty = unknown.
        lease: `NAMESPACE/NAME` of the manager's Lease; empty = no leader election.
        controllers: names of the manager's controllers.
        port: port of the manager's HTTPS server.
    """

    pod: str
    host: str
    image: str
    provider: str
    lease: str = ""
    controllers: Collection[str] = ()
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        provider = f", {_PROVIDER}={self.provider}" if self.provider else ""
        return f"Pod {self.pod} ({self.image}{provider})"


async def managers_of(case: Case, namespace: str) -> Sequence[ManagerPod] | None:
    """Return the managers among the Pods of a namespace; None if the Pods cannot be listed."""
    try:
        pods = await items(case.client, f"/api/v1/namespaces/{namespace}/pods")
    except (errors.Forbidden, errors.NotFound):
        return None
    return list(in_pods(pods))


def in_pods(pods: Sequence[Any]) -> Iterator[ManagerPod]:
    """Yield the managers among the containers of Pods."""
    for pod in pods:
        if get_field(pod, "status.phase") in ("Succeeded", "Failed"):
            continue
        name = get_text_field(pod, "metadata.name")
        host = get_text_field(pod, "spec.nodeName") if get_field(pod, "spec.hostNetwork") else name
        for container in get_field(pod, "spec.containers") or ():
            provider, image = flag_value(container, _PROVIDER), get_text_field(container, "image")
            words = _words(container)
            is_known = any(NAME in word for word in (image, *words[:1]))
            if not is_known and provider in ("", _EXTERNAL):
                continue
            program = PurePosixPath(next(iter(words), "")).name
            ports = get_field(container, "ports") or ()
            named = (entry.get("containerPort") for entry in ports if entry.get("name") == "https")
            given = parse_digits(flag_value(container, "--secure-port"))
            yield ManagerPod(
                pod=name,
                host=host,
                image=image,
                provider=provider,
                lease=_lease_of(container, program),
                controllers=_controllers(
                    program, flag_value(container, "--controllers") or controllers.ALL
                ),
                port=next(named, DEFAULT_PORT) if given is None else given,
            )


def _lease_of(container: Any, program: str) -> str:
    """Return `NAMESPACE/NAME` of the Lease that a container's flags select.

    Empty without leader election.
    """
    if flag_value(container, "--leader-elect") == "false":
        return ""
    command = COMMANDS.get(program)
    known = command.flags if command is not None else FLAGS
    prefix = "leader-elect-resource-"
    name, namespace = (
        flag_value(container, f"--{prefix}{part}") or known[f"{prefix}{part}"].default
        for part in ("name", "namespace")
    )
    if command is not None:
        name = name or command.name
        namespace = namespace or flag_value(container, "--namespace") or known["namespace"].default
    return f"{namespace}/{name}"


def _controllers(program: str, requested: str = controllers.ALL) -> Collection[str]:
    """Return the names of the controllers that a program runs with a `--controllers` list."""
    command = COMMANDS.get(program)
    if command is not None:
        return command.controllers
    return [manifest.name for manifest in controllers.enabled(requested.split(","))]


def pod_of(holder: str, pods: Sequence[ManagerPod]) -> ManagerPod | None:
    """Return the manager whose host name the holder's identity contains; None if none matches."""
    host = holder.rpartition("_")[0] or holder
    return next((manager for manager in pods if manager.host == host), None)


# --- the Lease ----------------------------------------------------------------------------------


async def lease(case: Case) -> CheckFinding:
    """Check that the daemon's Lease is free, or that a replica of the daemon holds it."""
    options = case.options
    if not options.leader_elect:
        return warn(
            "--leader-elect is false: two daemons may be active at once",
            "run only one replica, and stop it before its successor starts (strategy Recreate)",
        )
    namespace, name = options.leader_elect_resource_namespace, options.leader_elect_resource_name
    try:
        body = await read(case.client, f"{_LEASES}/namespaces/{namespace}/leases/{quote(name)}")
    except errors.NotFound:
        case.lease_holder = ""
        return await _absent(case, namespace, name)
    holder, silent_s = get_text_field(body, "spec.holderIdentity"), _silence_s(case.client, body)
    lasts_s = get_field(body, "spec.leaseDurationSeconds") or 0
    case.lease_holder = holder if _is_fresh(case.client, body) else ""
    if not holder:
        return await _free(case, f"{namespace}/{name} has no holder")
    held = f"{namespace}/{name} is held by {holder}"
    if not case.lease_holder:
        since = "for an unknown time" if silent_s is None else f"for {silent_s:.0f} s"
        return warn(
            f"{held}, not renewed {since} (lease duration {lasts_s} s)",
            "start the daemon: it acquires the Lease. If a daemon is running, check its log: the "
            "daemon hangs, or cannot reach the API server",
        )
    pods = await managers_of(case, namespace)
    pod, renewed = pod_of(holder, pods or ()), f"renewed {silent_s or 0:.0f} s ago"
    if pod is None and (holder.rpartition("_")[0] or holder) == socket.gethostname():
        return ok(f"{held}, a process on this machine, {renewed}")
    if pod is None:
        why = "no Pod matches the holder" if pods is not None else "no permission to list Pods"
        return warn(
            f"{held}; {why}",
            "nothing to do if the holder is a replica of this daemon on another machine. If it is "
            "another program, give one of the two its own Lease with --leader-elect-resource-name",
            f"if the holder no longer runs: kubectl -n {namespace} delete lease {name}, or wait "
            f"{lasts_s} s until the Lease expires",
        )
    if pod.provider not in ("", options.cloud_provider):
        return fail(
            f"{held}, a manager of another cloud: {pod}",
            "give one of the two its own Lease with --leader-elect-resource-name, or stop one",
        )
    return ok(f"{held}: {pod}, {renewed}")


async def _absent(case: Case, namespace: str, name: str) -> CheckFinding:
    try:
        await read(case.client, f"/api/v1/namespaces/{quote(namespace)}")
    except errors.NotFound:
        return fail(
            f"the namespace {namespace} of the Lease does not exist",
            f"set --leader-elect-resource-namespace, or run kubectl create ns {namespace}",
        )
    except errors.Forbidden:
        pass  # the daemon does not need to read namespaces
    return await _free(case, f"{namespace}/{name} does not exist yet; the first daemon creates it")


async def _free(case: Case, text: str) -> CheckFinding:
    """Return the finding for a Lease without holder: a warning only if a replica is ready."""
    try:
        own = await find_own_deployment(case)
    except errors.Forbidden:
        own = None
    if own is None or not own.ready:
        return ok(text)
    return warn(
        f"{text}; no leader, although {own.key} has {count(own.ready, 'ready replica')}",
        "check --leader-elect-resource-namespace of the replicas, and their logs: kubectl -n "
        f"{own.namespace} logs -l {own.selector} --prefix",
    )


async def holder_of(client: Client, namespace: str, name: str) -> str:
    """Return the holder of a Lease that has not expired; empty = none. Raises KubeError."""
    path = f"{_LEASES}/namespaces/{quote(namespace)}/leases/{quote(name)}"
    try:
        body = await read(client, path)
    except errors.NotFound:
        return ""
    return get_text_field(body, "spec.holderIdentity") if _is_fresh(client, body) else ""


def _silence_s(client: Client, lease: Any) -> float | None:
    """Return the seconds since the last renewal, by the API server's clock; None = unknown."""
    try:
        renewed = times.parse_time(get_text_field(lease, "spec.renewTime"))
    except ValueError:
        return None
    return max(0.0, (client.server_time() - renewed).total_seconds())


def _is_fresh(client: Client, lease: Any) -> bool:
    silent_s = _silence_s(client, lease)
    return silent_s is not None and silent_s <= (get_field(lease, "spec.leaseDurationSeconds") or 0)


async def machine_manager(case: Case) -> CheckFinding:
    """Check that no other program holds the `SharedLease` of Kubermatic's machine controllers."""
    lease = KUBERMATIC.manifest.lease(case.options)
    assert lease is not None
    holder = await holder_of(case.client, lease.namespace, lease.name)
    own = await managers_of(case, case.options.leader_elect_resource_namespace) or ()
    pod = pod_of(holder, own)
    is_ours = pod is not None and KUBERMATIC.manifest.name in pod.controllers
    if not holder or holder == case.lease_holder or is_ours:
        return ok(f"no other program holds the Lease {lease}")
    return (fail if case.lease_holder else warn)(
        f"Lease {lease} is held by {holder}; the controllers of Kubermatic's machines wait for it",
        lease.advice,
    )


# --- other managers -----------------------------------------------------------------------------


async def managers(case: Case) -> CheckFinding:
    """Find other managers that run the same controllers: search renewed Leases and Pods."""
    namespace = case.options.leader_elect_resource_namespace
    pods = await managers_of(case, namespace)
    held = [
        held_lease
        for held_lease in await _leases(case, namespace)
        if _is_held_by_another(case, held_lease)
    ]
    known = list(pods or ())
    others = {
        get_text_field(held_lease, "metadata.namespace")
        for held_lease in held
        if _is_managers(case, held_lease)
    }
    for elsewhere in sorted(others - {namespace}):
        known += await managers_of(case, elsewhere) or ()
    rivals = list(_rivals(case, held, known))
    if not rivals:
        if pods is None:
            return ok(f"no Lease of another manager in {namespace}; no permission to list Pods")
        return ok(f"no other cloud-controller-manager in {namespace}")
    message = f"{count(len(rivals), 'other manager')}: {some([shown for shown, _, _ in rivals])}"
    details = [f"{shown}: runs {', '.join(shared)} too" for shown, _, shared in rivals]
    if case.lease_holder and any(
        provider == case.options.cloud_provider for _, provider, _ in rivals
    ):
        return fail(
            message,
            "stop one of them, or give both the same --leader-elect-resource-name and "
            "--leader-elect-resource-namespace, so that one is on standby",
            details=details,
        )
    return warn(
        message,
        "let only one of them manage each node: stop the other, give both the same Lease, or "
        "ensure that the other manager's nodes have provider IDs of another cloud",
        details=details,
    )


async def _leases(case: Case, namespace: str) -> Sequence[Any]:
    """Return the Leases of all namespaces, without those of kubelets.

    Without permission for all namespaces, return the Leases of `namespace`.
    """
    for where in ("", f"/namespaces/{namespace}"):
        try:
            return await items(case.client, f"{_LEASES}{where}/leases", fieldSelector=_NOT_OF_NODES)
        except errors.Forbidden:
            continue
    return ()


def _rivals(
    case: Case, held: Sequence[Any], pods: Sequence[ManagerPod]
) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield description, provider and shared controllers of each other active manager.

    Shared controllers are those that the daemon runs too.
    """
    own = {manifest.name for manifest in controllers.enabled(case.options.controllers)}
    by_lease: list[str] = []
    for held_lease in held:
        key = _key(held_lease)
        lease_pods = [pod for pod in pods if pod.lease == key]
        if not (lease_pods or _is_managers(case, held_lease)):
            continue
        by_lease.append(key)
        holder, program = get_text_field(held_lease, "spec.holderIdentity"), _renewed_by(held_lease)
        pod = pod_of(holder, lease_pods) or next(iter(lease_pods), None)
        command = next(
            filter(COMMANDS.get, (program, get_text_field(held_lease, "metadata.name"))), ""
        )
        by = f": {pod}" if pod else f", renewed by {program}" if program else ""
        if shared := sorted(own.intersection(pod.controllers if pod else _controllers(command))):
            yield f"Lease {key}, held by {holder}{by}", pod.provider if pod else "", shared
    for pod in pods:
        shared = sorted(own.intersection(pod.controllers))
        is_unelected = not pod.lease and case.options.leader_elect
        is_foreign = pod.provider not in ("", case.options.cloud_provider)
        if shared and (is_unelected or (is_foreign and pod.lease not in by_lease)):
            yield f"{pod}{'' if pod.lease else ' without leader election'}", pod.provider, shared


def _key(lease: Any) -> str:
    return f"{get_text_field(lease, 'metadata.namespace')}/{get_text_field(lease, 'metadata.name')}"


def _renewed_by(lease: Any) -> str:
    """Return the field manager that last renewed a Lease; empty = unknown."""
    for entry in get_field(lease, "metadata.managedFields") or ():
        if "f:renewTime" in (get_field(entry, "fieldsV1.f:spec") or {}):
            return get_text_field(entry, "manager")
    return ""


def _is_held_by_another(case: Case, lease: Any) -> bool:
    """Return whether a process other than the daemon's leader renews this Lease."""
    options, holder = case.options, get_text_field(lease, "spec.holderIdentity")
    own = f"{options.leader_elect_resource_namespace}/{options.leader_elect_resource_name}"
    is_ours = options.leader_elect and _key(lease) == own
    return (
        bool(holder)
        and not is_ours
        and holder != case.lease_holder
        and _is_fresh(case.client, lease)
    )


def _is_managers(case: Case, lease: Any) -> bool:
    """Return whether the name or the field manager of a Lease is that of a controller manager."""
    # Machine commands have their Leases in the namespace of their Machines; ignore others.
    is_near = get_text_field(lease, "metadata.namespace") == case.options.namespace
    words = (_renewed_by(lease), get_text_field(lease, "metadata.name"))
    return any(NAME in word or (is_near and word in COMMANDS) for word in words)
