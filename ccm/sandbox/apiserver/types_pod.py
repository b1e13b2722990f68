"""Shapes of core/v1 Pod and everything below it, as Kubernetes 1.36 serves them.

The notation is explained in `schema.py`.
"""

from __future__ import annotations

POD = """
AWSElasticBlockStoreVolumeSource = fsType partition:i readOnly:b volumeID!
Affinity = nodeAffinity:NodeAffinity podAffinity:PodAffinity podAntiAffinity:PodAntiAffinity
AppArmorProfile = localhostProfile* type!:s(Localhost|RuntimeDefault|Unconfined)
AzureDiskVolumeSource = cachingMode*:s(None|ReadOnly|ReadWrite) diskName! diskURI! fsType*
    kind*:s(Dedicated|Managed|Shared) readOnly*:b
AzureFileVolumeSource = readOnly:b secretName! shareName!
CSIVolumeSource = driver! fsType* nodePublishSecretRef:LocalObjectReference readOnly*:b
    volumeAttributes:{s}
Capabilities = add:[s] drop:[s]
CephFSVolumeSource = monitors!:[s] path readOnly:b secretFile secretRef:LocalObjectReference user
CinderVolumeSource = fsType readOnly:b secretRef:LocalObjectReference volumeID!
ClusterTrustBundleProjection = labelSelector:LabelSelector name* optional*:b path! signerName*
ConfigMapEnvSource = name optional*:b
ConfigMapKeySelector = key! name optional*:b
ConfigMapProjection = items:[KeyToPath] name optional*:b
ConfigMapVolumeSource = defaultMode*:i items:[KeyToPath] name optional*:b
Container = args:[s] command:[s] env:[EnvVar]@name envFrom:[EnvFromSource] image
    imagePullPolicy:s(Always|IfNotPresent|Never) lifecycle:Lifecycle livenessProbe:Probe name!
    ports:[ContainerPort]@containerPort readinessProbe:Probe resizePolicy:[ContainerResizePolicy]
    resources=:ResourceRequirements restartPolicy* restartPolicyRules:[ContainerRestartRule]
    securityContext:SecurityContext startupProbe:Probe stdin:b stdinOnce:b terminationMessagePath
    terminationMessagePolicy:s(FallbackToLogsOnError|File) tty:b
    volumeDevices:[VolumeDevice]@devicePath volumeMounts:[VolumeMount]@mountPath workingDir
ContainerExtendedResourceRequest = containerName! requestName! resourceName!
ContainerPort = containerPort!:i hostIP hostPort:i name protocol:s(SCTP|TCP|UDP)
ContainerResizePolicy = resourceName! restartPolicy!
ContainerRestartRule = action! exitCodes:ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes = operator! values:[i]
ContainerState = running:ContainerStateRunning terminated:ContainerStateTerminated
    waiting:ContainerStateWaiting
ContainerStateRunning = startedAt=:time
ContainerStateTerminated = containerID exitCode!:i finishedAt=:time message reason signal:i
    startedAt=:time
ContainerStateWaiting = message reason
ContainerStatus = allocatedResources:{q} allocatedResourcesStatus:[ResourceStatus]@name
    containerID image! imageID! lastState=:ContainerState name! ready!:b
    resources:ResourceRequirements restartCount!:i started*:b state=:ContainerState stopSignal*
    user:ContainerUser volumeMounts:[VolumeMountStatus]@mountPath
ContainerUser = linux:LinuxContainerUser
DownwardAPIProjection = items:[DownwardAPIVolumeFile]
DownwardAPIVolumeFile = fieldRef:ObjectFieldSelector mode*:i path!
    resourceFieldRef:ResourceFieldSelector
DownwardAPIVolumeSource = defaultMode*:i items:[DownwardAPIVolumeFile]
EmptyDirVolumeSource = medium sizeLimit*:q
EnvFromSource = configMapRef:ConfigMapEnvSource prefix secretRef:SecretEnvSource
EnvVar = name! value valueFrom:EnvVarSource
EnvVarSource = configMapKeyRef:ConfigMapKeySelector fieldRef:ObjectFieldSelector
    fileKeyRef:FileKeySelector resourceFieldRef:ResourceFieldSelector
    secretKeyRef:SecretKeySelector
EphemeralContainer = args:[s] command:[s] env:[EnvVar]@name envFrom:[EnvFromSource] image
    imagePullPolicy:s(Always|IfNotPresent|Never) lifecycle:Lifecycle livenessProbe:Probe name!
    ports:[ContainerPort]@containerPort readinessProbe:Probe resizePolicy:[ContainerResizePolicy]
    resources=:ResourceRequirements restartPolicy* restartPolicyRules:[ContainerRestartRule]
    securityContext:SecurityContext startupProbe:Probe stdin:b stdinOnce:b targetContainerName
    terminationMessagePath terminationMessagePolicy:s(FallbackToLogsOnError|File) tty:b
    volumeDevices:[VolumeDevice]@devicePath volumeMounts:[VolumeMount]@mountPath workingDir
EphemeralVolumeSource = volumeClaimTemplate:PersistentVolumeClaimTemplate
ExecAction = command:[s]
FCVolumeSource = fsType lun*:i readOnly:b targetWWNs:[s] wwids:[s]
FileKeySelector = key! optional*:b path! volumeName!
FlexVolumeSource = driver! fsType options:{s} readOnly:b secretRef:LocalObjectReference
FlockerVolumeSource = datasetName datasetUUID
GCEPersistentDiskVolumeSource = fsType partition:i pdName! readOnly:b
GRPCAction = port!:i service*
GitRepoVolumeSource = directory repository! revision
GlusterfsVolumeSource = endpoints! path! readOnly:b
HTTPGetAction = host httpHeaders:[HTTPHeader] path port!:ios scheme:s(HTTP|HTTPS)
HTTPHeader = name! value!
HostAlias = hostnames:[s] ip!
HostIP = ip!
HostPathVolumeSource = path!
    type*:s(|BlockDevice|CharDevice|Directory|DirectoryOrCreate|File|FileOrCreate|Socket)
ISCSIVolumeSource = chapAuthDiscovery:b chapAuthSession:b fsType initiatorName* iqn!
    iscsiInterface lun!:i portals:[s] readOnly:b secretRef:LocalObjectReference targetPortal!
ImageVolumeSource = pullPolicy:s(Always|IfNotPresent|Never) reference
ImageVolumeStatus = imageRef!
KeyToPath = key! mode*:i path!
Lifecycle = postStart:LifecycleHandler preStop:LifecycleHandler stopSignal*
LifecycleHandler = exec:ExecAction httpGet:HTTPGetAction sleep:SleepAction
    tcpSocket:TCPSocketAction
LinuxContainerUser = gid!:l supplementalGroups:[l] uid!:l
NFSVolumeSource = path! readOnly:b server!
NodeAffinity = preferredDuringSchedulingIgnoredDuringExecution:[PreferredSchedulingTerm]
    requiredDuringSchedulingIgnoredDuringExecution:NodeSelector
NodeAllocatableResourceClaimStatus = containers:[s] resourceClaimName! resources!:{q}
NodeSelector = nodeSelectorTerms!:[NodeSelectorTerm]
NodeSelectorRequirement = key! operator!:s(DoesNotExist|Exists|Gt|In|Lt|NotIn) values:[s]
NodeSelectorTerm = matchExpressions:[NodeSelectorRequirement]
    matchFields:[NodeSelectorRequirement]
ObjectFieldSelector = apiVersion fieldPath!
PersistentVolumeClaimSpec = accessModes:[s] dataSource:TypedLocalObjectReference
    dataSourceRef:TypedObjectReference resources=:VolumeResourceRequirements
    selector:LabelSelector storageClassName* volumeAttributesClassName*
    volumeMode*:s(Block|Filesystem) volumeName
PersistentVolumeClaimTemplate = metadata=:ObjectMeta spec!:PersistentVolumeClaimSpec
PersistentVolumeClaimVolumeSource = claimName! readOnly:b
PhotonPersistentDiskVolumeSource = fsType pdID!
Pod = metadata=:ObjectMeta spec=:PodSpec status=:PodStatus
PodAffinity = preferredDuringSchedulingIgnoredDuringExecution:[WeightedPodAffinityTerm]
    requiredDuringSchedulingIgnoredDuringExecution:[PodAffinityTerm]
PodAffinityTerm = labelSelector:LabelSelector matchLabelKeys:[s] mismatchLabelKeys:[s]
    namespaceSelector:LabelSelector namespaces:[s] topologyKey!
PodAntiAffinity = preferredDuringSchedulingIgnoredDuringExecution:[WeightedPodAffinityTerm]
    requiredDuringSchedulingIgnoredDuringExecution:[PodAffinityTerm]
PodCertificateProjection = certificateChainPath credentialBundlePath keyPath keyType!
    maxExpirationSeconds*:i signerName! userAnnotations:{s}
PodCondition = lastProbeTime=:time lastTransitionTime=:time message observedGeneration:l reason
    status! type!
PodDNSConfig = nameservers:[s] options:[PodDNSConfigOption] searches:[s]
PodDNSConfigOption = name value*
PodExtendedResourceClaimStatus = requestMappings!:[ContainerExtendedResourceRequest]
    resourceClaimName!
PodIP = ip!
PodOS = name!
PodReadinessGate = conditionType!
PodResourceClaim = name! resourceClaimName* resourceClaimTemplateName*
PodResourceClaimStatus = name! resourceClaimName*
PodSchedulingGate = name!
PodSchedulingGroup = podGroupName*
PodSecurityContext = appArmorProfile:AppArmorProfile fsGroup*:l
    fsGroupChangePolicy*:s(Always|OnRootMismatch) runAsGroup*:l runAsNonRoot*:b runAsUser*:l
    seLinuxChangePolicy* seLinuxOptions:SELinuxOptions seccompProfile:SeccompProfile
    supplementalGroups:[l] supplementalGroupsPolicy*:s(Merge|Strict) sysctls:[Sysctl]
    windowsOptions:WindowsSecurityContextOptions
PodSpec = activeDeadlineSeconds*:l affinity:Affinity automountServiceAccountToken*:b
    containers!:[Container]@name dnsConfig:PodDNSConfig
    dnsPolicy:s(ClusterFirst|ClusterFirstWithHostNet|Default|None) enableServiceLinks*:b
    ephemeralContainers:[EphemeralContainer]@name hostAliases:[HostAlias]@ip hostIPC:b
    hostNetwork:b hostPID:b hostUsers*:b hostname hostnameOverride*
    imagePullSecrets:[LocalObjectReference]@name initContainers:[Container]@name nodeName
    nodeSelector:{s} os:PodOS overhead:{q} preemptionPolicy*:s(Never|PreemptLowerPriority)
    priority*:i priorityClassName readinessGates:[PodReadinessGate]
    resourceClaims:[PodResourceClaim]@name+ resources:ResourceRequirements
    restartPolicy:s(Always|Never|OnFailure) runtimeClassName* schedulerName
    schedulingGates:[PodSchedulingGate]@name schedulingGroup:PodSchedulingGroup
    securityContext:PodSecurityContext serviceAccount serviceAccountName setHostnameAsFQDN*:b
    shareProcessNamespace*:b subdomain terminationGracePeriodSeconds*:l tolerations:[Toleration]
    topologySpreadConstraints:[TopologySpreadConstraint]@topologyKey volumes:[Volume]@name+
PodStatus = allocatedResources:{q} conditions:[PodCondition]@type
    containerStatuses:[ContainerStatus] ephemeralContainerStatuses:[ContainerStatus]
    extendedResourceClaimStatus:PodExtendedResourceClaimStatus hostIP hostIPs:[HostIP]@ip
    initContainerStatuses:[ContainerStatus] message
    nodeAllocatableResourceClaimStatuses:[NodeAllocatableResourceClaimStatus] nominatedNodeName
    observedGeneration:l phase:s(Failed|Pending|Running|Succeeded|Unknown) podIP podIPs:[PodIP]@ip
    qosClass:s(BestEffort|Burstable|Guaranteed) reason resize
    resourceClaimStatuses:[PodResourceClaimStatus]@name+ resources:ResourceRequirements
    startTime*:time
PortworxVolumeSource = fsType readOnly:b volumeID!
PreferredSchedulingTerm = preference!:NodeSelectorTerm weight!:i
Probe = exec:ExecAction failureThreshold:i grpc:GRPCAction httpGet:HTTPGetAction
    initialDelaySeconds:i periodSeconds:i successThreshold:i tcpSocket:TCPSocketAction
    terminationGracePeriodSeconds*:l timeoutSeconds:i
ProjectedVolumeSource = defaultMode*:i sources=:[VolumeProjection]
QuobyteVolumeSource = group readOnly:b registry! tenant user volume!
RBDVolumeSource = fsType image! keyring monitors!:[s] pool readOnly:b
    secretRef:LocalObjectReference user
ResourceClaim = name! request
ResourceFieldSelector = containerName divisor:q resource!
ResourceHealth = health message* resourceID!
ResourceRequirements = claims:[ResourceClaim] limits:{q} requests:{q}
ResourceStatus = name! resources:[ResourceHealth]
SELinuxOptions = level role type user
ScaleIOVolumeSource = fsType gateway! protectionDomain readOnly:b secretRef!:LocalObjectReference
    sslEnabled:b storageMode storagePool system! volumeName
SeccompProfile = localhostProfile* type!:s(Localhost|RuntimeDefault|Unconfined)
SecretEnvSource = name optional*:b
SecretKeySelector = key! name optional*:b
SecretProjection = items:[KeyToPath] name optional*:b
SecretVolumeSource = defaultMode*:i items:[KeyToPath] optional*:b secretName
SecurityContext = allowPrivilegeEscalation*:b appArmorProfile:AppArmorProfile
    capabilities:Capabilities privileged*:b procMount*:s(Default|Unmasked)
    readOnlyRootFilesystem*:b runAsGroup*:l runAsNonRoot*:b runAsUser*:l
    seLinuxOptions:SELinuxOptions seccompProfile:SeccompProfile
    windowsOptions:WindowsSecurityContextOptions
ServiceAccountTokenProjection = audience expirationSeconds*:l path!
SleepAction = seconds!:l
StorageOSVolumeSource = fsType readOnly:b secretRef:LocalObjectReference volumeName
    volumeNamespace
Sysctl = name! value!
TCPSocketAction = host port!:ios
Toleration = effect:s(NoExecute|NoSchedule|PreferNoSchedule) key operator:s(Equal|Exists|Gt|Lt)
    tolerationSeconds*:l value
TopologySpreadConstraint = labelSelector:LabelSelector matchLabelKeys:[s] maxSkew!:i minDomains*:i
    nodeAffinityPolicy*:s(Honor|Ignore) nodeTaintsPolicy*:s(Honor|Ignore) topologyKey!
    whenUnsatisfiable!:s(DoNotSchedule|ScheduleAnyway)
TypedLocalObjectReference = apiGroup* kind! name!
TypedObjectReference = apiGroup* kind! name! namespace*
Volume = awsElasticBlockStore:AWSElasticBlockStoreVolumeSource azureDisk:AzureDiskVolumeSource
    azureFile:AzureFileVolumeSource cephfs:CephFSVolumeSource cinder:CinderVolumeSource
    configMap:ConfigMapVolumeSource csi:CSIVolumeSource downwardAPI:DownwardAPIVolumeSource
    emptyDir:EmptyDirVolumeSource ephemeral:EphemeralVolumeSource fc:FCVolumeSource
    flexVolume:FlexVolumeSource flocker:FlockerVolumeSource
    gcePersistentDisk:GCEPersistentDiskVolumeSource gitRepo:GitRepoVolumeSource
    glusterfs:GlusterfsVolumeSource hostPath:HostPathVolumeSource image:ImageVolumeSource
    iscsi:ISCSIVolumeSource name! nfs:NFSVolumeSource
    persistentVolumeClaim:PersistentVolumeClaimVolumeSource
    photonPersistentDisk:PhotonPersistentDiskVolumeSource portworxVolume:PortworxVolumeSource
    projected:ProjectedVolumeSource quobyte:QuobyteVolumeSource rbd:RBDVolumeSource
    scaleIO:ScaleIOVolumeSource secret:SecretVolumeSource storageos:StorageOSVolumeSource
    vsphereVolume:VsphereVirtualDiskVolumeSource
VolumeDevice = devicePath! name!
VolumeMount = mountPath! mountPropagation*:s(Bidirectional|HostToContainer|None) name! readOnly:b
    recursiveReadOnly* subPath subPathExpr
VolumeMountStatus = mountPath! name! readOnly:b recursiveReadOnly* volumeStatus:VolumeStatus
VolumeProjection = clusterTrustBundle:ClusterTrustBundleProjection configMap:ConfigMapProjection
    downwardAPI:DownwardAPIProjection podCertificate:PodCertificateProjection
    secret:SecretProjection serviceAccountToken:ServiceAccountTokenProjection
VolumeResourceRequirements = limits:{q} requests:{q}
VolumeStatus = image:ImageVolumeStatus
VsphereVirtualDiskVolumeSource = fsType storagePolicyID storagePolicyName volumePath!
WeightedPodAffinityTerm = podAffinityTerm!:PodAffinityTerm weight!:i
WindowsSecurityContextOptions = gmsaCredentialSpec* gmsaCredentialSpecName* hostProcess*:b
    runAsUserName*
"""
