"""Helpers of providers: facts of a Service, provider IDs, label values. Pure.

Answers about a Service are those of the Go library. A provider ID is `<scheme>://<id>`, where the
scheme is the name of the provider.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import sha256

from ccm.cloud.errors import InvalidArgument
from ccm.cloud.types import Status
from ccm.model import Service, names
from ccm.model.cidr import Network, parse_cidr
from ccm.model.service import POLICY_LOCAL, TYPE_LOAD_BALANCER, TYPE_NODE_PORT

DEFAULT_SOURCE_RANGES = "0.0.0.0/0"
"""The ranges of a Service that names none: every IPv4 client."""

HEALTH_CHECK_PATH = "/healthz"
"""Where kube-proxy says whether a node has endpoints of a Service with local traffic."""

_NAME_LENGTH = 32


def load_balancer_name(uid: str) -> str:
    """`a` and a Service's UID without dashes, at most 32 characters: valid in most clouds."""
    return ("a" + uid.replace("-", ""))[:_NAME_LENGTH]


def default_load_balancer_name(service: Service) -> str:
    """`load_balancer_name` of the Service's UID."""
    return load_balancer_name(service.uid)


def has_load_balancer_finalizer(service: Service) -> bool:
    """Whether the Service waits for its load balancer to be removed before it vanishes."""
    return names.FINALIZER_LOAD_BALANCER in service.finalizers


def load_balancer_source_ranges(service: Service) -> frozenset[Network]:
    """The client ranges that may use the load balancer, host bits cleared, each once.

    The field of the spec wins over the annotation; without both it is every IPv4 client.

    Raises:
        InvalidArgument: an entry is no CIDR; the message names its place.
    """
    place = "spec.loadBalancerSourceRanges"
    entries = list(service.spec.load_balancer_source_ranges or ())
    if not entries:
        place = f"annotation {names.ANNOTATION_SOURCE_RANGES}"
        text = service.annotations.get(names.ANNOTATION_SOURCE_RANGES, "").strip()
        entries = (text or DEFAULT_SOURCE_RANGES).split(",")
    found = set()
    for entry in entries:
        network = parse_cidr(entry.strip())
        if network is None:
            raise InvalidArgument(
                f"{place}: {entry.strip()!r} is no CIDR; expected entries like 10.0.0.0/24"
            )
        found.add(network)
    return frozenset(found)


def is_allow_all(ranges: Collection[Network]) -> bool:
    """Whether the ranges let every IPv4 client in by one entry; `::/0` says nothing of those."""
    return any(str(network) == DEFAULT_SOURCE_RANGES for network in ranges)


def requests_only_local_traffic(service: Service) -> bool:
    """Whether a node may serve only its own Pods to clients from outside."""
    reachable = service.type in (TYPE_LOAD_BALANCER, TYPE_NODE_PORT)
    return reachable and service.spec.external_traffic_policy == POLICY_LOCAL


def needs_health_check(service: Service) -> bool:
    """Whether the load balancer must find out which nodes have Pods of the Service."""
    return service.type == TYPE_LOAD_BALANCER and requests_only_local_traffic(service)


def health_check_path_port(service: Service) -> tuple[str, int]:
    """Path and node port of that health check; ("", 0) when there is none."""
    port = service.spec.health_check_node_port
    return (HEALTH_CHECK_PATH, port) if needs_health_check(service) and port else ("", 0)


def load_balancer_status(service: Service) -> Status:
    """The Service's status in the SDK's words."""
    return Status.from_ingress(service.ingress)


def load_balancer_status_equal(one: Status, other: Status) -> bool:
    """Whether both say the same in the same order; an unset IP mode is not `VIP`."""
    return _comparable(one) == _comparable(other)


def _comparable(status: Status) -> list[object]:
    """Sequences of any type as lists, so that only their content is compared."""
    return [
        (entry.ip, entry.hostname, entry.ip_mode, list(entry.ports)) for entry in status.ingress
    ]


_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def is_label_value(text: str) -> bool:
    """Whether a label may have that value."""
    return _VALUE.fullmatch(text) is not None


def label_value(text: str) -> str:
    """The text itself, or where it cannot stand in a label one that is made of it."""
    return text if is_label_value(text) else sha256(text.encode()).hexdigest()[:40]


_SEPARATOR = "://"


def format_provider_id(scheme: str, instance_id: str) -> str:
    """Build a provider ID."""
    return f"{scheme}{_SEPARATOR}{instance_id}"


def parse_provider_id(provider_id: str, scheme: str) -> str:
    """The instance ID in a provider ID of this scheme.

    Raises:
        InvalidArgument: it has another scheme, none, or nothing behind it. A foreign ID is
            never an absence.
    """
    found, separator, instance_id = provider_id.partition(_SEPARATOR)
    if not separator or found != scheme or not instance_id.strip("/"):
        raise InvalidArgument(
            f"provider ID {provider_id!r} is not of this cloud; expected {scheme}://<id>"
        )
    return instance_id


def is_foreign(provider_id: str, schemes: Collection[str], others: Collection[str] = ()) -> bool:
    """Whether a provider ID names another cloud.

    An empty ID and one without a scheme are not foreign: nothing says whose they are, so
    the provider decides.

    Args:
        provider_id: of a node.
        schemes: ours.
        others: what IDs begin with that are others' though their scheme is ours.
    """
    scheme, separator, _ = provider_id.partition(_SEPARATOR)
    return bool(separator) and (scheme not in schemes or provider_id.startswith(tuple(others)))


def is_same_instance(one: str, other: str) -> bool:
    """Whether two provider IDs name the same instance, one of them with more of its place.

    `stackit://<project>/<server>` and `stackit://<server>` do: some clouds' machine drivers and
    node controllers write different forms. Two of the same length are the same when they are equal.
    """
    if not one or not other:
        return False
    schemes, _, rests = zip(*(each.partition(_SEPARATOR) for each in (one, other)), strict=True)
    shorter, longer = sorted((rest.strip("/").split("/") for rest in rests), key=len)
    return len(set(schemes)) == 1 and longer[-len(shorter) :] == shorter
