"""L2: the provider SDK: interfaces, values, errors and the registry of providers.

A provider may import this package, `ccm.model` and `ccm.base`, and nothing else of the
daemon. The daemon's wrappers around every provider (`calls`, `lookup`) live here too but are not
public. This package calls the API server only in `Context.whole`. Importing `ccm.cloud` loads no
HTTP library; only `ccm.cloud.rest` does.

A Node or Service is a frozen `msgspec.Struct`, in tests too: `Service(metadata=ObjectMeta(
name="web"), spec=ServiceSpec(...))`. `msgspec.json.encode(service)` and `msgspec.to_builtins`
encode it with the API's names (`loadBalancerSourceRanges`). Both omit every field that has its
default. The default of a list is None, so they omit a list that was absent or `null`, but write an
empty list. The model has only some fields of an API object; `Context.whole` reads an object with
all its fields. Compute a digest from selected fields, because `resourceVersion` and status also
change while the load balancer stays the same.
"""

from types import ModuleType as _Module

from ccm.base.parsing import parse_bool as parse_bool
from ccm.cloud.annotations import ServiceAnnotation as ServiceAnnotation
from ccm.cloud.blocking import blocking as blocking
from ccm.cloud.config import ApiClient as ApiClient
from ccm.cloud.config import ClientBuilder as ClientBuilder
from ccm.cloud.config import Context as Context
from ccm.cloud.config import EventSink as EventSink
from ccm.cloud.configvar import ConfigVarBool as ConfigVarBool
from ccm.cloud.configvar import ConfigVarNumber as ConfigVarNumber
from ccm.cloud.configvar import ConfigVarString as ConfigVarString
from ccm.cloud.configvar import Reference as Reference
from ccm.cloud.configvar import Resolver as Resolver
from ccm.cloud.errors import Aborted as Aborted
from ccm.cloud.errors import AlreadyExists as AlreadyExists
from ccm.cloud.errors import Canceled as Canceled
from ccm.cloud.errors import CloudError as CloudError
from ccm.cloud.errors import DataLoss as DataLoss
from ccm.cloud.errors import DeadlineExceeded as DeadlineExceeded
from ccm.cloud.errors import DiskNotFound as DiskNotFound
from ccm.cloud.errors import FailedPrecondition as FailedPrecondition
from ccm.cloud.errors import ImplementedElsewhere as ImplementedElsewhere
from ccm.cloud.errors import Internal as Internal
from ccm.cloud.errors import InvalidArgument as InvalidArgument
from ccm.cloud.errors import NotFound as NotFound
from ccm.cloud.errors import NotOwned as NotOwned
from ccm.cloud.errors import OutOfRange as OutOfRange
from ccm.cloud.errors import PermissionDenied as PermissionDenied
from ccm.cloud.errors import ResourceExhausted as ResourceExhausted
from ccm.cloud.errors import RetryAfter as RetryAfter
from ccm.cloud.errors import Unauthenticated as Unauthenticated
from ccm.cloud.errors import Unavailable as Unavailable
from ccm.cloud.errors import Unimplemented as Unimplemented
from ccm.cloud.errors import Uninitialized as Uninitialized
from ccm.cloud.errors import Unknown as Unknown
from ccm.cloud.gardener import GardenerMachine as GardenerMachine
from ccm.cloud.gardener import GardenerMachineClass as GardenerMachineClass
from ccm.cloud.gardener import GardenerMachineSpec as GardenerMachineSpec
from ccm.cloud.gardener import GardenerMachineStatus as GardenerMachineStatus
from ccm.cloud.gardener import GardenerMetadata as GardenerMetadata
from ccm.cloud.gardener import GardenerRequest as GardenerRequest
from ccm.cloud.gardener import GardenerSecret as GardenerSecret
from ccm.cloud.gardener import GardenerVolumeRequest as GardenerVolumeRequest
from ccm.cloud.gardener import from_gardener as from_gardener
from ccm.cloud.helpers import DEFAULT_SOURCE_RANGES as DEFAULT_SOURCE_RANGES
from ccm.cloud.helpers import cached_for_nodes as cached_for_nodes
from ccm.cloud.helpers import default_load_balancer_name as default_load_balancer_name
from ccm.cloud.helpers import format_provider_id as format_provider_id
from ccm.cloud.helpers import has_load_balancer_finalizer as has_load_balancer_finalizer
from ccm.cloud.helpers import health_check_path_port as health_check_path_port
from ccm.cloud.helpers import is_allow_all as is_allow_all
from ccm.cloud.helpers import is_foreign as is_foreign
from ccm.cloud.helpers import is_same_instance as is_same_instance
from ccm.cloud.helpers import load_balancer_name as load_balancer_name
from ccm.cloud.helpers import load_balancer_source_ranges as load_balancer_source_ranges
from ccm.cloud.helpers import load_balancer_status as load_balancer_status
from ccm.cloud.helpers import load_balancer_status_equal as load_balancer_status_equal
from ccm.cloud.helpers import needs_health_check as needs_health_check
from ccm.cloud.helpers import parse_provider_id as parse_provider_id
from ccm.cloud.helpers import requests_only_local_traffic as requests_only_local_traffic
from ccm.cloud.interface import Cloud as Cloud
from ccm.cloud.interface import Clusters as Clusters
from ccm.cloud.interface import InformerFactory as InformerFactory
from ccm.cloud.interface import Instances as Instances
from ccm.cloud.interface import InstancesByPower as InstancesByPower
from ccm.cloud.interface import InstanceStates as InstanceStates
from ccm.cloud.interface import InstancesV2 as InstancesV2
from ccm.cloud.interface import Inventory as Inventory
from ccm.cloud.interface import LoadBalancer as LoadBalancer
from ccm.cloud.interface import LoadBalancerDigests as LoadBalancerDigests
from ccm.cloud.interface import LoadBalancerRemoval as LoadBalancerRemoval
from ccm.cloud.interface import LoadBalancerTransfer as LoadBalancerTransfer
from ccm.cloud.interface import PVLabeler as PVLabeler
from ccm.cloud.interface import Routes as Routes
from ccm.cloud.interface import SetInformers as SetInformers
from ccm.cloud.interface import Zones as Zones
from ccm.cloud.journal import JournalPart as JournalPart
from ccm.cloud.journal import JournalParts as JournalParts
from ccm.cloud.journal import MachineAccounts as MachineAccounts
from ccm.cloud.journal import PartJournal as PartJournal
from ccm.cloud.journal import PartRequest as PartRequest
from ccm.cloud.kubermatic import DeclaredSpec as DeclaredSpec
from ccm.cloud.kubermatic import ErrorReason as ErrorReason
from ccm.cloud.kubermatic import InstanceNotFound as InstanceNotFound
from ccm.cloud.kubermatic import KubermaticDriver as KubermaticDriver
from ccm.cloud.kubermatic import KubermaticInstance as KubermaticInstance
from ccm.cloud.kubermatic import KubermaticInstanceStatus as KubermaticInstanceStatus
from ccm.cloud.kubermatic import KubermaticMachine as KubermaticMachine
from ccm.cloud.kubermatic import KubermaticMachineSpec as KubermaticMachineSpec
from ccm.cloud.kubermatic import KubermaticMarks as KubermaticMarks
from ccm.cloud.kubermatic import KubermaticProvider as KubermaticProvider
from ccm.cloud.kubermatic import KubermaticSpecs as KubermaticSpecs
from ccm.cloud.kubermatic import NetworkConfig as NetworkConfig
from ccm.cloud.kubermatic import OperatingSystem as OperatingSystem
from ccm.cloud.kubermatic import OSNotSupported as OSNotSupported
from ccm.cloud.kubermatic import ProviderConfig as ProviderConfig
from ccm.cloud.kubermatic import ProviderData as ProviderData
from ccm.cloud.kubermatic import TerminalError as TerminalError
from ccm.cloud.kubermatic import credentials_of as credentials_of
from ccm.cloud.kubermatic import decode_config as decode_config
from ccm.cloud.kubermatic import decode_spec as decode_spec
from ccm.cloud.kubermatic import default_operating_system as default_operating_system
from ccm.cloud.kubermatic import encode_config as encode_config
from ccm.cloud.kubermatic import from_kubermatic as from_kubermatic
from ccm.cloud.kubermatic import to_kubermatic as to_kubermatic
from ccm.cloud.machines import Credentials as Credentials
from ccm.cloud.machines import DeleteMachineResponse as DeleteMachineResponse
from ccm.cloud.machines import Driver as Driver
from ccm.cloud.machines import GetVolumeIDsRequest as GetVolumeIDsRequest
from ccm.cloud.machines import Identity as Identity
from ccm.cloud.machines import ListMachinesRequest as ListMachinesRequest
from ccm.cloud.machines import MachineDriver as MachineDriver
from ccm.cloud.machines import MachineInfo as MachineInfo
from ccm.cloud.machines import MachineMetrics as MachineMetrics
from ccm.cloud.machines import MachineMetricsUpdate as MachineMetricsUpdate
from ccm.cloud.machines import MachineRecord as MachineRecord
from ccm.cloud.machines import MachineRequest as MachineRequest
from ccm.cloud.machines import MigrationRequest as MigrationRequest
from ccm.cloud.machines import Phase as Phase
from ccm.cloud.machines import Problem as Problem
from ccm.cloud.machines import SpecValidation as SpecValidation
from ccm.cloud.machines import UIDMigration as UIDMigration
from ccm.cloud.machines import check_owner as check_owner
from ccm.cloud.machines import token_of as token_of
from ccm.cloud.registry import SDK_VERSION as SDK_VERSION
from ccm.cloud.registry import ProviderError as ProviderError
from ccm.cloud.registry import provider as provider
from ccm.cloud.sessions import Sessions as Sessions
from ccm.cloud.settings import ConfigError as ConfigError
from ccm.cloud.settings import Fields as Fields
from ccm.cloud.settings import Settings as Settings
from ccm.cloud.settings import setting as setting
from ccm.cloud.types import CloudFinding as CloudFinding
from ccm.cloud.types import Ingress as Ingress
from ccm.cloud.types import InstanceListing as InstanceListing
from ccm.cloud.types import InstanceMetadata as InstanceMetadata
from ccm.cloud.types import InstanceRecord as InstanceRecord
from ccm.cloud.types import InstanceState as InstanceState
from ccm.cloud.types import Limits as Limits
from ccm.cloud.types import LoadBalancerRecord as LoadBalancerRecord
from ccm.cloud.types import PortStatus as PortStatus
from ccm.cloud.types import Power as Power
from ccm.cloud.types import Rate as Rate
from ccm.cloud.types import Route as Route
from ccm.cloud.types import Status as Status
from ccm.cloud.types import Zone as Zone
from ccm.cloud.types import add_to_node_addresses as add_to_node_addresses
from ccm.cloud.types import address as address
from ccm.model import LoadBalancerIngress as LoadBalancerIngress
from ccm.model import LoadBalancerStatus as LoadBalancerStatus
from ccm.model import Node as Node
from ccm.model import NodeAddress as NodeAddress
from ccm.model import NodeCondition as NodeCondition
from ccm.model import NodeSpec as NodeSpec
from ccm.model import NodeStatus as NodeStatus
from ccm.model import ObjectMeta as ObjectMeta
from ccm.model import ObjectReference as ObjectReference
from ccm.model import Service as Service
from ccm.model import ServicePort as ServicePort
from ccm.model import ServiceSpec as ServiceSpec
from ccm.model import ServiceStatus as ServiceStatus
from ccm.model import Taint as Taint
from ccm.model.cidr import parse_cidr as parse_cidr
from ccm.model.cidr import parse_cidrs as parse_cidrs

__all__ = [
    name for name in dir() if not name.startswith("_") and not isinstance(globals()[name], _Module)
]
"""All names imported above. Each is a stable interface for providers."""
