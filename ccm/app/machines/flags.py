"""The flags that these commands have otherwise than the daemon has them, or alone.

Names and defaults are those of Gardener's machine-controller-manager, so that a command line of it
starts ours. What the daemon calls otherwise, or has a check for that is not theirs, stands here.
"""
# ruff: noqa: RUF009 - `Section.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address
from types import MappingProxyType
from typing import Any

from ccm.app.options import FLAGS
from ccm.base import flag_checks as checks
from ccm.base import flag_values as values
from ccm.base.flags import Fault, Section, table
from ccm.gardener.flags import IN_CLUSTER, NO_TARGET, somewhere
from ccm.runtime.manifest import GENERIC

CLUSTERS = Section("clusters")
SERVING = Section("serving")
WORK = Section("work")
IDLE = Section("without effect")

_HIGHEST_PORT = 65535
_LOOKS = "machine-safety-apiserver-statuscheck"
_MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(/[!#$%&'*+.^_`|~0-9A-Za-z-]+)?(\s*;.*)?")


def _port(value: int) -> str:
    return "" if 1 <= value <= _HIGHEST_PORT else f"must be from 1 to {_HIGHEST_PORT}"


def _media_type(value: str) -> str:
    if not value or _MEDIA_TYPE.fullmatch(value):
        return ""
    return "must be a media type such as application/json"


@dataclass(frozen=True, kw_only=True)
class CommandFlags:
    """What both commands have; one field a flag."""

    control_kubeconfig: str = CLUSTERS.flag(
        "",
        "kubeconfig of the cluster that has Machines, MachineClasses, their Secrets, and our "
        f"Lease; {IN_CLUSTER} means the one whose Pod this is. Empty means that of "
        "--target-kubeconfig.",
        check=somewhere,
    )
    target_kubeconfig: str = CLUSTERS.flag(
        "",
        "kubeconfig of the cluster that machines join, with their Nodes and bootstrap tokens; "
        f"{NO_TARGET} means that there is none: VMs are made, and nothing is asked of any Node. "
        "Empty means the one whose Pod this is.",
    )
    address: values.Address = SERVING.flag(
        IPv4Address("0.0.0.0"),  # noqa: S104 - the reference's default
        "Address that health checks and metrics are served on, without TLS and to anybody; "
        "127.0.0.1 keeps them on this host. 0.0.0.0 or :: means every interface.",
        kind=values.ADDRESS,
    )
    port: int = SERVING.flag(
        10259,
        "Port of /healthz, /livez, /readyz, /metrics and /configz.",
        unit="port",
        check=_port,
        kind=values.INT,
    )
    profiling: bool = SERVING.flag(False, "Serve profiles under /debug/pprof.")
    contention_profiling: bool = SERVING.flag(
        False, "Also profile waiting for locks.", accepted="it belongs to the Go run time"
    )
    concurrent_syncs: int = WORK.flag(
        50,
        "Objects of each kind that are worked on at the same time, without those that wait for "
        "the cloud.",
        unit="objects",
        check=checks.at_least_one,
    )
    cloud_provider: str = WORK.flag(
        "", "Name of the provider that makes the VMs, as it registered itself. Required."
    )
    kube_api_content_type: str = WORK.flag(
        "application/vnd.kubernetes.protobuf",
        "Encoding of requests to the API server.",
        accepted="requests are always JSON, which every API server takes",
        check=_media_type,
    )
    kube_api_qps: float = WORK.flag(
        20.0,
        "Requests that each client sends to the API server over time.",
        unit="requests per second",
        check=lambda value: "" if 0 < value < float("inf") else "must be above 0",
    )
    kube_api_burst: int = WORK.flag(
        30,
        "Requests that a client may send at once after a pause. 0 means 10.",
        unit="requests",
        check=checks.zero_or_more("meaning 10"),
    )
    leader_elect_resource_name: str = GENERIC.flag(
        "", "Name of the lease. Empty means that of this command, as the Go program has it."
    )
    leader_elect_resource_namespace: str = GENERIC.flag(
        "", "Namespace of the lease, in the control cluster. Empty means that of --namespace."
    )


def _later(default: Any, text: str, *, check: Any = checks.not_negative) -> Any:
    why = "nothing of this command reads it"
    return IDLE.flag(default, text, check=check, accepted=why, deprecated="leave it out")


def _klog(default: Any, text: str) -> Any:
    why = "the log goes to stderr, and nowhere else"
    return IDLE.flag(default, text, accepted=why, deprecated="leave it out")


@dataclass(frozen=True, kw_only=True)
class IdleFlags:
    """Flags of the Go programs that are accepted and say so, as far as no controller has them."""

    machine_health_timeout: timedelta = _later(
        timedelta(minutes=10), "Time for which a node may be sick before its machine has failed."
    )
    machine_drain_timeout: timedelta = _later(
        timedelta(hours=2), "Time that Pods have to leave a node before it is drained by force."
    )
    machine_inplace_update_timeout: timedelta = _later(
        timedelta(minutes=20), "Time that an update in place may take."
    )
    machine_max_evict_retries: int = _later(
        360, "How often the eviction of a Pod is tried.", check=checks.zero_or_more()
    )
    machine_pv_detach_timeout: timedelta = _later(
        timedelta(minutes=2), "Time that a volume has to be detached."
    )
    machine_pv_reattach_timeout: timedelta = _later(
        timedelta(seconds=90), "Time that a volume has to be attached elsewhere."
    )
    machine_safety_apiserver_statuscheck_timeout: timedelta = _later(
        timedelta(seconds=30), "Time for which an API server may be away before all is frozen."
    )
    machine_safety_apiserver_statuscheck_period: timedelta = _later(
        timedelta(minutes=1), "Time between two looks at the API servers."
    )
    machine_preserve_timeout: timedelta = _later(
        timedelta(hours=96), "Time for which a failed machine is kept that is to be preserved."
    )
    safety_up: int = _later(
        2, "Machines above the wanted number at which a set is frozen.", check=checks.zero_or_more()
    )
    safety_down: int = _later(
        1, "Machines below that number at which it goes on.", check=checks.zero_or_more()
    )
    machine_safety_overshooting_period: timedelta = _later(
        timedelta(minutes=1), "Time between two counts of the machines of a set."
    )
    autoscaler_scaledown_annotation_during_rollout: bool = _later(
        True, "Keep the autoscaler from scaling down while machines are rolled.", check=None
    )
    logtostderr: bool = _klog(True, "Log to stderr instead of files.")
    alsologtostderr: bool = _klog(False, "Log to stderr and to files.")
    stderrthreshold: str = _klog("2", "Least severity that goes to stderr besides files.")
    log_dir: str = _klog("", "Folder of log files.")
    log_file: str = _klog("", "Log file.")
    log_file_max_size: int = _klog(1800, "Largest size of a log file, in megabytes.")
    log_backtrace_at: str = _klog("", "Place in the code whose log lines come with a trace.")
    one_output: bool = _klog(False, "Log each severity to one file only.")
    add_dir_header: bool = _klog(False, "Name the folder of the code in each line.")
    skip_headers: bool = _klog(False, "Leave out what stands before a line.")
    skip_log_headers: bool = _klog(False, "Leave out the head of log files.")


OWN = MappingProxyType(table(CommandFlags))
"""Those of both commands by name, sorted."""

ACCEPTED = MappingProxyType(table(IdleFlags))
"""Those that are accepted where nothing has them, by name, sorted."""


def faults(given: Any) -> Iterator[Fault]:
    """Settings that make no sense together; `given` has the value of each flag by its name."""
    if given["target-kubeconfig"] == NO_TARGET and not given["control-kubeconfig"]:
        yield "control-kubeconfig", f"is needed with --target-kubeconfig={NO_TARGET}"
    if given["contention-profiling"] and not given["profiling"]:
        yield "contention-profiling", "needs --profiling"
    if f"{_LOOKS}-period" in FLAGS:
        return  # a controller reads it, and says what is right
    timeout = given[f"{_LOOKS}-timeout"]
    if given[f"{_LOOKS}-period"] < timeout:
        text = values.DURATION.write(timeout)
        yield f"{_LOOKS}-period", f"must be --{_LOOKS}-timeout={text} or longer"
