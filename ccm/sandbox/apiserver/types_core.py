"""Shapes of Kubernetes' core/v1 kinds except Pod, as Kubernetes 1.36 serves them.

The notation is explained in `schema.py`.
"""

from __future__ import annotations

CORE = """
AttachedVolume = devicePath! name!
ClientIPConfig = timeoutSeconds*:i
ConfigMap = binaryData:{bytes} data:{s} immutable*:b metadata=:ObjectMeta
ConfigMapNodeConfigSource = kubeletConfigKey! name! namespace! resourceVersion uid
ContainerImage = names=:[s] sizeBytes:l
DaemonEndpoint = Port!:i
Event = action count:i eventTime=:micro firstTimestamp=:time involvedObject!:ObjectReference
    lastTimestamp=:time message metadata!:ObjectMeta reason related:ObjectReference
    reportingComponent= reportingInstance= series:EventSeries source=:EventSource type
EventSeries = count:i lastObservedTime=:micro
EventSource = component host
LoadBalancerIngress = hostname ip ipMode* ports:[PortStatus]
LoadBalancerStatus = ingress:[LoadBalancerIngress]
LocalObjectReference = name
Namespace = metadata=:ObjectMeta spec=:NamespaceSpec status=:NamespaceStatus
NamespaceCondition = lastTransitionTime=:time message reason status! type!
NamespaceSpec = finalizers:[s]
NamespaceStatus = conditions:[NamespaceCondition]@type phase:s(Active|Terminating)
Node = metadata=:ObjectMeta spec=:NodeSpec status=:NodeStatus
NodeAddress = address! type!
NodeCondition = lastHeartbeatTime=:time lastTransitionTime=:time message reason status! type!
NodeConfigSource = configMap:ConfigMapNodeConfigSource
NodeConfigStatus = active:NodeConfigSource assigned:NodeConfigSource error
    lastKnownGood:NodeConfigSource
NodeDaemonEndpoints = kubeletEndpoint=:DaemonEndpoint
NodeFeatures = supplementalGroupsPolicy*:b
NodeRuntimeHandler = features:NodeRuntimeHandlerFeatures name=
NodeRuntimeHandlerFeatures = recursiveReadOnlyMounts*:b userNamespaces*:b
NodeSpec = configSource:NodeConfigSource externalID podCIDR podCIDRs:[s]@ providerID
    taints:[Taint] unschedulable:b
NodeStatus = addresses:[NodeAddress]@type allocatable:{q} capacity:{q}
    conditions:[NodeCondition]@type config:NodeConfigStatus daemonEndpoints=:NodeDaemonEndpoints
    declaredFeatures:[s] features:NodeFeatures images:[ContainerImage] nodeInfo=:NodeSystemInfo
    phase:s(Pending|Running|Terminated) runtimeHandlers:[NodeRuntimeHandler]
    volumesAttached:[AttachedVolume] volumesInUse:[s]
NodeSwapStatus = capacity*:l
NodeSystemInfo = architecture! bootID! containerRuntimeVersion! kernelVersion! kubeProxyVersion!
    kubeletVersion! machineID! operatingSystem! osImage! swap:NodeSwapStatus systemUUID!
ObjectReference = apiVersion fieldPath kind name namespace resourceVersion uid
PortStatus = error* port!:i protocol!:s(SCTP|TCP|UDP)
Secret = data:{bytes} immutable*:b metadata=:ObjectMeta stringData:{s} type
Service = metadata=:ObjectMeta spec=:ServiceSpec status=:ServiceStatus
ServiceAccount = automountServiceAccountToken*:b imagePullSecrets:[LocalObjectReference]
    metadata=:ObjectMeta secrets:[ObjectReference]@name
ServicePort = appProtocol* name nodePort:i port!:i protocol:s(SCTP|TCP|UDP) targetPort:ios
ServiceSpec = allocateLoadBalancerNodePorts*:b clusterIP clusterIPs:[s] externalIPs:[s]
    externalName externalTrafficPolicy:s(Cluster|Local) healthCheckNodePort:i
    internalTrafficPolicy*:s(Cluster|Local) ipFamilies:[s]
    ipFamilyPolicy*:s(PreferDualStack|RequireDualStack|SingleStack) loadBalancerClass*
    loadBalancerIP loadBalancerSourceRanges:[s] ports:[ServicePort]@port
    publishNotReadyAddresses:b selector:{s} sessionAffinity:s(ClientIP|None)
    sessionAffinityConfig:SessionAffinityConfig trafficDistribution*
    type:s(ClusterIP|ExternalName|LoadBalancer|NodePort)
ServiceStatus = conditions:[Condition]@type loadBalancer=:LoadBalancerStatus
SessionAffinityConfig = clientIP:ClientIPConfig
Taint = effect!:s(NoExecute|NoSchedule|PreferNoSchedule) key! timeAdded*:time value
"""
