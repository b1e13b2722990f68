"""Helpers for providers: properties of a Service, provider IDs, label values. No I/O.

Helpers for Services return the same results as the Go cloud-provider library. A provider ID is
`<scheme>://<id>`, where the scheme is usually the name of the provider.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Collection, Hashable, Iterable
from hashlib import sha256
from typing import TypeVar, TypeVarTuple

from ccm.cloud.errors import InvalidArgument
from ccm.cloud.types import Status
from ccm.model import Service, names
from ccm.model.cidr import Network, overlap, parse_cidr
from ccm.model.service import POLICY_LOCAL, TYPE_LOAD_BALANCER, TYPE_NODE_PORT

DEFAULT_SOURCE_RANGES = "0.0.0.0/0"
"""Source ranges of a Service that states none: every IPv4 client."""

HEALTH_CHECK_PATH = "/healthz"
"""Path of kube-proxy's health check, which tells whether a node has endpoints of a Service."""

_NAME_LENGTH = 32

Arguments = TypeVarTuple("Arguments")
E = TypeVar("E")
T = TypeVar("T")

_CACHED_TUPLES = 4
"""Tuples of nodes whose results `cached_for_nodes` keeps: for both values of
externalTrafficPolicy, the nodes of new calls and those of calls that began before a change."""

_CACHED_RESULTS = 16
"""Maximum results for one tuple: annotations may ask for any number of selections."""


def cached_for_nodes(
    function: Callable[[Iterable[E], *Arguments], T],
) -> Callable[[Iterable[E], *Arguments], T]:
    """Cache the results of a function of the nodes of a load balancer, for the last few tuples.

    Until the nodes change, the controller passes the same tuple of nodes for every Service. So a
    decorated function runs once for all Services, which matters with thousands of nodes. Only
    results for a tuple are cached, by its identity.

    Args:
        function: pure function of nodes and hashable arguments; its result must not be changed.
            The nodes may be replaced by the result of another such function, if that is a tuple.
    """
    cached: dict[int, tuple[Iterable[E], dict[Hashable, T]]] = {}
    lock = threading.Lock()  # a blocking provider calls the function in threads

    @functools.wraps(function)
    def call(nodes: Iterable[E], *arguments: *Arguments) -> T:
        if not isinstance(nodes, tuple):
            return function(nodes, *arguments)
        with lock:
            if id(nodes) not in cached:
                if len(cached) >= _CACHED_TUPLES:
                    del cached[next(iter(cached))]  # the oldest
                cached[id(nodes)] = nodes, {}  # while it is kept, no other tuple has this ID
            results = cached[id(nodes)][1]
            if arguments not in results:
                if len(results) >= _CACHED_RESULTS:
                    results.clear()
                results[arguments] = function(nodes, *arguments)
            return results[arguments]

    return call


def load_balancer_name(uid: str) -> str:
    """Return `a` and a Service's UID without dashes, cut to 32 characters.

    Most clouds accept names of this length.
    """
    return ("a" + uid.replace("-", ""))[:_NAME_LENGTH]


def default_load_balancer_name(service: Service) -> str:
    """Return `load_balancer_name` of the Service's UID."""
    return load_balancer_name(service.uid)


def has_load_balancer_finalizer(service: Service) -> bool:
    """Return whether the Service has the load balancer finalizer."""
    return names.FINALIZER_LOAD_BALANCER in service.finalizers


def load_balancer_source_ranges(service: Service) -> frozenset[Network]:
    """Return the CIDRs of allowed clients, without duplicates and with host bits cleared.

    `spec.loadBalancerSourceRanges` wins over the annotation. Without either, every IPv4 client is
    allowed.

    Raises:
        InvalidArgument: an entry is no CIDR; the message names the field or annotation.
    """
    place = "spec.loadBalancerSourceRanges"
    entries = list(service.spec.load_balancer_source_ranges or ())
    if not entries:
        place = f"annotation {names.ANNOTATION_SOURCE_RANGES}"
        text = service.annotations.get(names.ANNOTATION_SOURCE_RANGES, "").strip()
        entries = (text or DEFAULT_SOURCE_RANGES).split(",")
    networks = set()
    for entry in entries:
        network = parse_cidr(entry.strip())
        if network is None:
            raise InvalidArgument(
                f"{place}: {entry.strip()!r} is not a CIDR; expected entries like 10.0.0.0/24"
            )
        networks.add(network)
    return frozenset(networks)


def is_allow_all(ranges: Collection[Network]) -> bool:
    """Return whether one range allows every IPv4 client; `::/0` does not count."""
    return any(str(network) == DEFAULT_SOURCE_RANGES for network in ranges)


def requests_only_local_traffic(service: Service) -> bool:
    """Return whether nodes send external traffic only to their own Pods."""
    reachable = service.type in (TYPE_LOAD_BALANCER, TYPE_NODE_PORT)
    return reachable and service.spec.external_traffic_policy == POLICY_LOCAL


def needs_health_check(service: Service) -> bool:
    """Return whether the load balancer needs kube-proxy's health check to find nodes with Pods."""
    return service.type == TYPE_LOAD_BALANCER and requests_only_local_traffic(service)


def health_check_path_port(service: Service) -> tuple[str, int]:
    """Return path and node port of kube-proxy's health check; ("", 0) = none is needed."""
    port = service.spec.health_check_node_port
    return (HEALTH_CHECK_PATH, port) if needs_health_check(service) and port else ("", 0)


def load_balancer_status(service: Service) -> Status:
    """Return the Service's load balancer status as an SDK value."""
    return Status.from_ingress(service.ingress)


def load_balancer_status_equal(one: Status, other: Status) -> bool:
    """Return whether two statuses are equal in content and order.

    An unset IP mode differs from `VIP`.
    """
    return _comparable(one) == _comparable(other)


def _comparable(status: Status) -> list[object]:
    """Convert sequences to lists, so that their type does not affect the comparison."""
    return [
        (entry.ip, entry.hostname, entry.ip_mode, list(entry.ports)) for entry in status.ingress
    ]


_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def is_label_value(text: str) -> bool:
    """Return whether the text is a valid label value."""
    return _VALUE.fullmatch(text) is not None


def label_value(text: str) -> str:
    """Return the text if it is a valid label value, else the first 40 digits of its SHA-256."""
    return text if is_label_value(text) else sha256(text.encode()).hexdigest()[:40]


_NOT_IN_LABELS = re.compile(r"[^-A-Za-z0-9_.]+")


@functools.lru_cache  # a listing repeats the same few types and zones
def sanitize_label_value(text: str) -> str:
    """Return a readable label value: with dashes for invalid characters, and cut to 63 characters.

    A valid text stays unchanged. Different texts may have the same result.
    """
    return _NOT_IN_LABELS.sub("-", text).strip("-_.")[:63].rstrip("-_.")


def is_pod_cidr(text: str, pod_ranges: Collection[Network]) -> bool:
    """Return whether a CIDR is inside the cluster's Pod ranges; True if these are unknown."""
    cidr = parse_cidr(text)
    return not pod_ranges or any(
        overlap(cidr, pods) and cidr.prefixlen >= pods.prefixlen
        for pods in pod_ranges
        if cidr is not None
    )


_SEPARATOR = "://"


def format_provider_id(scheme: str, instance_id: str) -> str:
    """Return `<scheme>://<instance ID>`."""
    return f"{scheme}{_SEPARATOR}{instance_id}"


def parse_provider_id(provider_id: str, scheme: str) -> str:
    """Return the instance ID of a provider ID.

    Raises:
        InvalidArgument: scheme or instance ID is missing or wrong. Never NotFound, because a
            foreign provider ID does not mean absence.
    """
    id_scheme, separator, instance_id = provider_id.partition(_SEPARATOR)
    if not separator or id_scheme != scheme or not instance_id.strip("/"):
        raise InvalidArgument(
            f"provider ID {provider_id!r} does not belong to this cloud; expected {scheme}://<id>"
        )
    return instance_id


def is_foreign(provider_id: str, schemes: Collection[str], others: Collection[str] = ()) -> bool:
    """Return whether a node's provider ID belongs to another cloud or controller.

    An empty ID and an ID without a scheme are not foreign: their owner is unknown, so the
    provider must decide.

    Args:
        provider_id: the node's provider ID.
        schemes: schemes of our cloud.
        others: prefixes of foreign IDs that have one of our schemes.
    """
    scheme, separator, _ = provider_id.partition(_SEPARATOR)
    return bool(separator) and (scheme not in schemes or provider_id.startswith(tuple(others)))


def is_same_instance(one: str, other: str) -> bool:
    """Return whether two provider IDs name the same instance; one may have a longer path.

    `stackit://<project>/<server>` matches `stackit://<server>`: the machine driver and the node
    controller of some clouds write different forms. IDs with equally long paths must be equal.
    """
    if not one or not other:
        return False
    schemes, _, rests = zip(
        *(provider_id.partition(_SEPARATOR) for provider_id in (one, other)), strict=True
    )
    shorter, longer = sorted((rest.strip("/").split("/") for rest in rests), key=len)
    return len(set(schemes)) == 1 and longer[-len(shorter) :] == shorter
