"""Service, with the fields on which a load balancer depends."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ccm.model.meta import KubeObject, ObjectMeta, ObjectReference, Wire

TYPE_LOAD_BALANCER = "LoadBalancer"
TYPE_NODE_PORT = "NodePort"

POLICY_LOCAL = "Local"
"""Value of `externalTrafficPolicy`: a node sends external traffic only to its own Pods."""


class ServicePort(Wire, frozen=True, kw_only=True):
    """Port of a Service; `target_port` is a number or the name of a container port."""

    name: str = ""
    protocol: str = "TCP"
    app_protocol: str | None = None
    port: int = 0
    target_port: int | str = 0
    node_port: int = 0


class ClientIPConfig(Wire, frozen=True, kw_only=True):
    """Time for which requests of a client go to the same Pod."""

    timeout_seconds: int | None = None


class SessionAffinityConfig(Wire, frozen=True, kw_only=True):
    """Settings of `session_affinity`."""

    client_ip: ClientIPConfig | None = msgspec.field(default=None, name="clientIP")


class ServiceSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a Service."""

    type: str = ""
    ports: list[ServicePort] | None = None
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    cluster_ips: list[str] | None = msgspec.field(default=None, name="clusterIPs")
    external_ips: list[str] | None = msgspec.field(default=None, name="externalIPs")
    ip_families: list[str] | None = None
    ip_family_policy: str | None = None
    session_affinity: str = ""
    session_affinity_config: SessionAffinityConfig | None = None
    external_traffic_policy: str = ""
    internal_traffic_policy: str | None = None
    health_check_node_port: int = 0
    load_balancer_ip: str = msgspec.field(default="", name="loadBalancerIP")
    load_balancer_source_ranges: list[str] | None = None
    load_balancer_class: str | None = None
    allocate_load_balancer_node_ports: bool | None = None


class PortStatus(Wire, frozen=True, kw_only=True):
    """State of one port of a load balancer; the API requires port and protocol."""

    port: int
    protocol: str
    error: str | None = None


class LoadBalancerIngress(Wire, frozen=True, kw_only=True):
    """Address of a load balancer; if `ip` is set, the API server adds a missing `ip_mode`."""

    ip: str = ""
    hostname: str = ""
    ip_mode: str | None = None
    ports: list[PortStatus] | None = None


class LoadBalancerStatus(Wire, frozen=True, kw_only=True):
    """Addresses of a load balancer."""

    ingress: list[LoadBalancerIngress] | None = None


class ServiceStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a Service."""

    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


class Service(KubeObject, frozen=True, kw_only=True):
    """Service, with the fields on which a load balancer depends."""

    metadata: ObjectMeta
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()

    @property
    def type(self) -> str:
        """Value of `spec.type`."""
        return self.spec.type

    @property
    def ports(self) -> Sequence[ServicePort]:
        """Ports; empty instead of null."""
        return self.spec.ports or ()

    @property
    def ingress(self) -> Sequence[LoadBalancerIngress]:
        """Addresses of the load balancer in the status; empty instead of null."""
        return self.status.load_balancer.ingress or ()

    @property
    def reference(self) -> ObjectReference:
        """Reference for events, without a resourceVersion."""
        return ObjectReference(
            kind="Service", api_version="v1", namespace=self.namespace, name=self.name, uid=self.uid
        )
