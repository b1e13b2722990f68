"""L2: the provider SDK: interfaces, values, errors, registry; what a provider imports.

A provider may import this package, `ccm.model` and `ccm.base`, and nothing else of the
daemon. The wrappers that the daemon puts around every provider live here too
(`calls`, `inventory`, `lookup`) but are not part of the public names. Nothing in this
package speaks to the API server unless it is told to (`Context.whole`), and importing it loads no
HTTP library; who wants one imports `ccm.cloud.rest`.

A Node or Service is a frozen `msgspec.Struct`, in tests too: `Service(metadata=ObjectMeta(
name="web"), spec=ServiceSpec(...))`. `msgspec.json.encode(service)` and `msgspec.to_builtins`
write it with the API's names (`loadBalancerSourceRanges`) and leave out every field that has its
default: an absent list and `null` are the same, an empty list is written. What the model does not
hold is not in it; `Context.whole` reads that. A digest is made of fields that are picked for it:
a whole Service has `resourceVersion` and status, which change while its load balancer does not.
"""

from ccm.base.booleans import parse_bool
from ccm.cloud.addresses import add_to_node_addresses
from ccm.cloud.annotations import ServiceAnnotation
from ccm.cloud.blocking import blocking
from ccm.cloud.config import ApiClient, ClientBuilder, Context
from ccm.cloud.errors import (
    Aborted,
    AlreadyExists,
    Canceled,
    CloudError,
    DataLoss,
    DeadlineExceeded,
    DiskNotFound,
    FailedPrecondition,
    ImplementedElsewhere,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    RetryAfter,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Uninitialized,
    Unknown,
)
from ccm.cloud.fields import ConfigError, Fields
from ccm.cloud.interface import (
    Cloud,
    Clusters,
    InformerFactory,
    InstanceStates,
    InstancesV2,
    Inventory,
    LoadBalancer,
    LoadBalancerDigests,
    LoadBalancerRemoval,
    PVLabeler,
    Routes,
    SetInformers,
)
from ccm.cloud.legacy import Instances, Zones
from ccm.cloud.provider_id import format_provider_id, is_foreign, parse_provider_id
from ccm.cloud.registry import SDK_VERSION, ProviderError, provider
from ccm.cloud.services import (
    DEFAULT_SOURCE_RANGES,
    default_load_balancer_name,
    has_load_balancer_finalizer,
    health_check_path_port,
    is_allow_all,
    load_balancer_name,
    load_balancer_source_ranges,
    load_balancer_status,
    load_balancer_status_equal,
    needs_health_check,
    requests_only_local_traffic,
)
from ccm.cloud.settings import Settings, setting
from ccm.cloud.types import (
    Ingress,
    InstanceListing,
    InstanceMetadata,
    InstanceRecord,
    InstanceState,
    Limits,
    LoadBalancerRecord,
    PortStatus,
    Power,
    Rate,
    Route,
    Status,
    Zone,
    address,
)
from ccm.model import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Node,
    NodeAddress,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
    Taint,
)
from ccm.model.cidr import parse_cidr, parse_cidrs

__all__ = [
    "DEFAULT_SOURCE_RANGES",
    "SDK_VERSION",
    "Aborted",
    "AlreadyExists",
    "ApiClient",
    "Canceled",
    "ClientBuilder",
    "Cloud",
    "CloudError",
    "Clusters",
    "ConfigError",
    "Context",
    "DataLoss",
    "DeadlineExceeded",
    "DiskNotFound",
    "FailedPrecondition",
    "Fields",
    "ImplementedElsewhere",
    "InformerFactory",
    "Ingress",
    "InstanceListing",
    "InstanceMetadata",
    "InstanceRecord",
    "InstanceState",
    "InstanceStates",
    "Instances",
    "InstancesV2",
    "Internal",
    "InvalidArgument",
    "Inventory",
    "Limits",
    "LoadBalancer",
    "LoadBalancerDigests",
    "LoadBalancerIngress",
    "LoadBalancerRecord",
    "LoadBalancerRemoval",
    "LoadBalancerStatus",
    "Node",
    "NodeAddress",
    "NodeCondition",
    "NodeSpec",
    "NodeStatus",
    "NotFound",
    "ObjectMeta",
    "OutOfRange",
    "PVLabeler",
    "PermissionDenied",
    "PortStatus",
    "Power",
    "ProviderError",
    "Rate",
    "ResourceExhausted",
    "RetryAfter",
    "Route",
    "Routes",
    "Service",
    "ServiceAnnotation",
    "ServicePort",
    "ServiceSpec",
    "ServiceStatus",
    "SetInformers",
    "Settings",
    "Status",
    "Taint",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Uninitialized",
    "Unknown",
    "Zone",
    "Zones",
    "add_to_node_addresses",
    "address",
    "blocking",
    "default_load_balancer_name",
    "format_provider_id",
    "has_load_balancer_finalizer",
    "health_check_path_port",
    "is_allow_all",
    "is_foreign",
    "load_balancer_name",
    "load_balancer_source_ranges",
    "load_balancer_status",
    "load_balancer_status_equal",
    "needs_health_check",
    "parse_bool",
    "parse_cidr",
    "parse_cidrs",
    "parse_provider_id",
    "provider",
    "requests_only_local_traffic",
    "setting",
]
