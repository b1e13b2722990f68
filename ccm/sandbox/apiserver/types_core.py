"""Shapes of Kubernetes' core/v1 kinds except Pod, as Kubernetes 1.36 serves them.

The notation is explained in `schema.py`.
"""

from __future__ import annotations

CORE = """
AttachedVolume = devicePath#2! name#1!
ClientIPConfig = timeoutSeconds#1*:i
ConfigMap = binaryData#3:{bytes} data#2:{s} immutable#4*:b metadata#1=:ObjectMeta
ConfigMapNodeConfigSource = kubeletConfigKey#5! name#2! namespace#1! resourceVersion#4 uid#3
ContainerImage = names#1=:[s] sizeBytes#2:l
DaemonEndpoint = Port#1!:i
Event = action#12 count#8:i eventTime#10=:micro firstTimestamp#6=:time
    involvedObject#2!:ObjectReference lastTimestamp#7=:time message#4 metadata#1!:ObjectMeta
    reason#3 related#13:ObjectReference reportingComponent#14= reportingInstance#15=
    series#11:EventSeries source#5=:EventSource type#9
EventSeries = count#1:i lastObservedTime#2=:micro
EventSource = component#1 host#2
LoadBalancerIngress = hostname#2 ip#1 ipMode#3* ports#4:[PortStatus]
LoadBalancerStatus = ingress#1:[LoadBalancerIngress]
LocalObjectReference = name#1
Namespace = metadata#1=:ObjectMeta spec#2=:NamespaceSpec status#3=:NamespaceStatus
NamespaceCondition = lastTransitionTime#4=:time message#6 reason#5 status#2! type#1!
NamespaceSpec = finalizers#1:[s]
NamespaceStatus = conditions#2:[NamespaceCondition]@type phase#1:s(Active|Terminating)
Node = metadata#1=:ObjectMeta spec#2=:NodeSpec status#3=:NodeStatus
NodeAddress = address#2! type#1!
NodeCondition = lastHeartbeatTime#3=:time lastTransitionTime#4=:time message#6 reason#5 status#2!
    type#1!
NodeConfigSource = configMap#2:ConfigMapNodeConfigSource
NodeConfigStatus = active#2:NodeConfigSource assigned#1:NodeConfigSource error#4
    lastKnownGood#3:NodeConfigSource
NodeDaemonEndpoints = kubeletEndpoint#1=:DaemonEndpoint
NodeFeatures = supplementalGroupsPolicy#1*:b
NodeRuntimeHandler = features#2:NodeRuntimeHandlerFeatures name#1=
NodeRuntimeHandlerFeatures = recursiveReadOnlyMounts#1*:b userNamespaces#2*:b
NodeSpec = configSource#6:NodeConfigSource externalID#2 podCIDR#1 podCIDRs#7:[s]@ providerID#3
    taints#5:[Taint] unschedulable#4:b
NodeStatus = addresses#5:[NodeAddress]@type allocatable#2:{q} capacity#1:{q}
    conditions#4:[NodeCondition]@type config#11:NodeConfigStatus
    daemonEndpoints#6=:NodeDaemonEndpoints declaredFeatures#14:[s] features#13:NodeFeatures
    images#8:[ContainerImage] nodeInfo#7=:NodeSystemInfo phase#3:s(Pending|Running|Terminated)
    runtimeHandlers#12:[NodeRuntimeHandler] volumesAttached#10:[AttachedVolume] volumesInUse#9:[s]
NodeSwapStatus = capacity#1*:l
NodeSystemInfo = architecture#10! bootID#3! containerRuntimeVersion#6! kernelVersion#4!
    kubeProxyVersion#8! kubeletVersion#7! machineID#1! operatingSystem#9! osImage#5!
    swap#11:NodeSwapStatus systemUUID#2!
ObjectReference = apiVersion#5 fieldPath#7 kind#1 name#3 namespace#2 resourceVersion#6 uid#4
PortStatus = error#3* port#1!:i protocol#2!:s(SCTP|TCP|UDP)
Secret = data#2:{bytes} immutable#5*:b metadata#1=:ObjectMeta stringData#4:{s} type#3
Service = metadata#1=:ObjectMeta spec#2=:ServiceSpec status#3=:ServiceStatus
ServiceAccount = automountServiceAccountToken#4*:b imagePullSecrets#3:[LocalObjectReference]
    metadata#1=:ObjectMeta secrets#2:[ObjectReference]@name
ServicePort = appProtocol#6* name#1 nodePort#5:i port#3!:i protocol#2:s(SCTP|TCP|UDP)
    targetPort#4:ios
ServiceSpec = allocateLoadBalancerNodePorts#20*:b clusterIP#3 clusterIPs#18:[s] externalIPs#5:[s]
    externalName#10 externalTrafficPolicy#11:s(Cluster|Local) healthCheckNodePort#12:i
    internalTrafficPolicy#22*:s(Cluster|Local) ipFamilies#19:[s]
    ipFamilyPolicy#17*:s(PreferDualStack|RequireDualStack|SingleStack) loadBalancerClass#21*
    loadBalancerIP#8 loadBalancerSourceRanges#9:[s] ports#1:[ServicePort]@port
    publishNotReadyAddresses#13:b selector#2:{s} sessionAffinity#7:s(ClientIP|None)
    sessionAffinityConfig#14:SessionAffinityConfig trafficDistribution#23*
    type#4:s(ClusterIP|ExternalName|LoadBalancer|NodePort)
ServiceStatus = conditions#2:[Condition]@type loadBalancer#1=:LoadBalancerStatus
SessionAffinityConfig = clientIP#1:ClientIPConfig
Taint = effect#3!:s(NoExecute|NoSchedule|PreferNoSchedule) key#1! timeAdded#4*:time value#2
"""
