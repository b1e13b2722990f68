"""Comparison with the vendor's manager in the guide of the Hetzner Cloud."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ccm.app.options.table import ALIASES, FLAGS, NO_EFFECT
from ccm.cloud import settings
from providers.hcloud import config, names
from providers.hcloud import service_annotations as ann
from tests.generated import GENERATED, ROOT

GUIDE = ROOT / "providers" / "hcloud" / "README.md"
_BEGIN, _END = f"<!-- comparison: {GENERATED} -->\n", "<!-- end of the comparison -->"
_BUILT = "built"

_OURS = {"HCLOUD_LOAD_BALANCERS_ADOPT_BY_NAME", "ROBOT_ENDPOINT"}
"""Settings that the vendor's manager lacks."""

_SECONDS = "differs: a number of seconds is valid too, as the vendor documents it; no negative one"
_OUTPUT = "left out: the vendor's manager documents it as an output, and never writes it"
_MANAGED = "differs: the certificate is deleted with the Service, unless it is used elsewhere"
_ATTACHED = "differs: compared with the subnets of the network before the first write"

_ANNOTATIONS: Mapping[str, str] = {
    ann.NAME.name: "differs: an adopted load balancer is never renamed",
    ann.ID.name: _OUTPUT,
    ann.IPV4.name: _OUTPUT,
    ann.IPV6.name: _OUTPUT,
    ann.DISABLE_PUBLIC_NETWORK.name: "differs: disabled after the targets became private",
    ann.PRIVATE_IPV4.name: _ATTACHED,
    ann.PRIVATE_SUBNET.name: _ATTACHED,
    ann.NODE_SELECTOR.name: "differs: while it is malformed, all nodes are members",
    ann.COOKIE_LIFETIME.name: _SECONDS,
    ann.CHECK_INTERVAL.name: _SECONDS,
    ann.CHECK_TIMEOUT.name: _SECONDS,
    ann.MANAGED_NAME.name: _MANAGED,
    ann.MANAGED_DOMAINS.name: _MANAGED,
}

_VARIABLES: Mapping[str, str] = {
    "HCLOUD_TOKEN": "built; files named by `HCLOUD_TOKEN_FILE` and the like are reloaded",
    "HCLOUD_NETWORK": "differs: a missing network fails the calls that need it, not the start",
    "HCLOUD_LOAD_BALANCERS_PRIVATE_SUBNET_IP_RANGE": _ATTACHED,
    "ROBOT_RATE_LIMIT_WAIT_TIME": "differs: after other errors, calls to Robot pause too",
}

_HTTP = "left out: the servers speak HTTP/1.1"
_PODS = "left out: kube-controller-manager assigns the Pod CIDRs"
_PROFILES = "left out: a profiler such as py-spy needs no support by the daemon"

_FLAGS: Mapping[str, str] = {
    "allocate-node-cidrs": _PODS,
    "allow-untagged-cloud": "differs: not needed, since load balancers have a label of the cluster",
    "cidr-allocator-type": _PODS,
    "concurrent-node-lifecycle-syncs": "differs: the default is 16",
    "contention-profiling": _PROFILES,
    "disable-http2-serving": _HTTP,
    "external-cloud-volume-plugin": "left out: CSI drivers manage volumes",
    "http2-max-streams-per-connection": _HTTP,
    "kube-api-content-type": "left out: requests are in JSON",
    "leader-elect-resource-lock": "differs: only leases",
    "node-sync-period": "left out: without effect in the vendor's manager too",
    "permit-address-sharing": "left out: addresses are always shared (SO_REUSEADDR)",
    "profiling": _PROFILES,
    "webhook-disable-http2-serving": _HTTP,
}

_METRICS: Mapping[str, str] = {
    "hcloud_api_requests_total": _BUILT,
    "hcloud_api_request_duration_seconds": _BUILT,
    "hcloud_api_in_flight_requests": _BUILT,
    "cloud_controller_manager_operations_total": "differs: calls of the daemon, without the steps "
    "inside of them",
    "cloud_controller_manager_server_cache_requests_total": "differs: lookups of nodes in the "
    "shared listing",
    "cloud_controller_manager_load_balancer_type_cache_requests_total": "differs: only hits, since "
    "a load balancer contains its type",
}

_EVENTS: Mapping[str, str] = {
    names.TYPE_UNCONFIGURED: "differs: when a load balancer is created, not at each reconcile",
    names.TYPE_DEPRECATED: "differs: once, not at each reconcile",
    names.UNSUPPORTED_PROTOCOL: "differs: once per change, not at each reconcile",
    names.UNKNOWN_PREFIX: "differs: once per node, not for each Service",
    names.MAX_TARGETS: "differs: about the Service, once per number of nodes, not about each node",
    names.CLUSTER_CIDR: _BUILT,
    names.SERVER_NOT_FOUND: "differs: once per node, not at each reconcile",
    names.INTERNAL_IP_NOT_CONFIGURED: "differs: once per change, about all nodes of the Service",
    names.INSTANCE_LOOKUP_FAILED: _BUILT,
    names.POSSIBLE_NODE_DELETION: "differs: the node is kept",
    names.MISCONFIGURED_INTERNAL_IP: "differs: once per change, about all addresses of the node",
}


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and content of the guide."""
    before, _, rest = GUIDE.read_text().partition(_BEGIN)
    tables = "\n".join(
        line
        for title, rows in (
            ("Annotation", _annotations()),
            ("Variable", _variables()),
            ("Flag", _flags()),
            ("Metric", _METRICS.items()),
            ("Event", _EVENTS.items()),
        )
        for line in _table(title, rows)
    )
    yield GUIDE, f"{before}{_BEGIN}{tables}\n\n{_END}{rest.partition(_END)[2]}"


def _table(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield from ("", f"| {title} | kube-ccm |", "| --- | --- |")
    yield from (f"| `{name}` | {status} |" for name, status in rows)


def _annotations() -> Iterator[tuple[str, str]]:
    for item in ann.SCHEMA:
        yield item.name, _ANNOTATIONS.get(item.name, _BUILT)


def _variables() -> Iterator[tuple[str, str]]:
    for item in settings.table(config.Config):
        if item.name in _OURS or item.name.endswith("_FILE"):
            continue
        reason = item.help.removeprefix("No effect").removeprefix(":").strip(" .")
        status = _VARIABLES.get(item.name, _BUILT)
        if item.help.startswith("No effect"):
            status = f"left out: {reason}"
        yield item.name, status


def _flags() -> Iterator[tuple[str, str]]:
    machine = "machine-controller"
    theirs = [
        flag.name
        for flag in FLAGS.values()
        if not flag.section.ours and flag.section.title != machine and flag.name not in ALIASES
    ]
    for name in sorted([*theirs, *NO_EFFECT]):
        yield f"--{name}", _FLAGS[name] if name in NO_EFFECT else _FLAGS.get(name, _BUILT)
