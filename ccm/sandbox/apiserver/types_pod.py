"""Shapes of core/v1 Pod and everything below it, as Kubernetes 1.36 serves them.

The notation is explained in `schema.py`.
"""

from __future__ import annotations

POD = """
AWSElasticBlockStoreVolumeSource = fsType#2 partition#3:i readOnly#4:b volumeID#1!
Affinity = nodeAffinity#1:NodeAffinity podAffinity#2:PodAffinity podAntiAffinity#3:PodAntiAffinity
AppArmorProfile = localhostProfile#2* type#1!:s(Localhost|RuntimeDefault|Unconfined)
AzureDiskVolumeSource = cachingMode#3*:s(None|ReadOnly|ReadWrite) diskName#1! diskURI#2! fsType#4*
    kind#6*:s(Dedicated|Managed|Shared) readOnly#5*:b
AzureFileVolumeSource = readOnly#3:b secretName#1! shareName#2!
CSIVolumeSource = driver#1! fsType#3* nodePublishSecretRef#5:LocalObjectReference readOnly#2*:b
    volumeAttributes#4:{s}
Capabilities = add#1:[s] drop#2:[s]
CephFSVolumeSource = monitors#1!:[s] path#2 readOnly#6:b secretFile#4
    secretRef#5:LocalObjectReference user#3
CinderVolumeSource = fsType#2 readOnly#3:b secretRef#4:LocalObjectReference volumeID#1!
ClusterTrustBundleProjection = labelSelector#3:LabelSelector name#1* optional#5*:b path#4!
    signerName#2*
ConfigMapEnvSource = name#1.1 optional#2*:b
ConfigMapKeySelector = key#2! name#1.1 optional#3*:b
ConfigMapProjection = items#2:[KeyToPath] name#1.1 optional#4*:b
ConfigMapVolumeSource = defaultMode#3*:i items#2:[KeyToPath] name#1.1 optional#4*:b
Container = args#4:[s] command#3:[s] env#7:[EnvVar]@name envFrom#19:[EnvFromSource] image#2
    imagePullPolicy#14:s(Always|IfNotPresent|Never) lifecycle#12:Lifecycle livenessProbe#10:Probe
    name#1! ports#6:[ContainerPort]@containerPort readinessProbe#11:Probe
    resizePolicy#23:[ContainerResizePolicy] resources#8=:ResourceRequirements restartPolicy#24*
    restartPolicyRules#25:[ContainerRestartRule] securityContext#15:SecurityContext
    startupProbe#22:Probe stdin#16:b stdinOnce#17:b terminationMessagePath#13
    terminationMessagePolicy#20:s(FallbackToLogsOnError|File) tty#18:b
    volumeDevices#21:[VolumeDevice]@devicePath volumeMounts#9:[VolumeMount]@mountPath workingDir#5
ContainerExtendedResourceRequest = containerName#1! requestName#3! resourceName#2!
ContainerPort = containerPort#3!:i hostIP#5 hostPort#2:i name#1 protocol#4:s(SCTP|TCP|UDP)
ContainerResizePolicy = resourceName#1! restartPolicy#2!
ContainerRestartRule = action#1! exitCodes#2:ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes = operator#1! values#2:[i]
ContainerState = running#2:ContainerStateRunning terminated#3:ContainerStateTerminated
    waiting#1:ContainerStateWaiting
ContainerStateRunning = startedAt#1=:time
ContainerStateTerminated = containerID#7 exitCode#1!:i finishedAt#6=:time message#4 reason#3
    signal#2:i startedAt#5=:time
ContainerStateWaiting = message#2 reason#1
ContainerStatus = allocatedResources#10:{q} allocatedResourcesStatus#14:[ResourceStatus]@name
    containerID#8 image#6! imageID#7! lastState#3=:ContainerState name#1! ready#4!:b
    resources#11:ResourceRequirements restartCount#5!:i started#9*:b state#2=:ContainerState
    stopSignal#15* user#13:ContainerUser volumeMounts#12:[VolumeMountStatus]@mountPath
ContainerUser = linux#1:LinuxContainerUser
DownwardAPIProjection = items#1:[DownwardAPIVolumeFile]
DownwardAPIVolumeFile = fieldRef#2:ObjectFieldSelector mode#4*:i path#1!
    resourceFieldRef#3:ResourceFieldSelector
DownwardAPIVolumeSource = defaultMode#2*:i items#1:[DownwardAPIVolumeFile]
EmptyDirVolumeSource = medium#1 sizeLimit#2*:q
EnvFromSource = configMapRef#2:ConfigMapEnvSource prefix#1 secretRef#3:SecretEnvSource
EnvVar = name#1! value#2 valueFrom#3:EnvVarSource
EnvVarSource = configMapKeyRef#3:ConfigMapKeySelector fieldRef#1:ObjectFieldSelector
    fileKeyRef#5:FileKeySelector resourceFieldRef#2:ResourceFieldSelector
    secretKeyRef#4:SecretKeySelector
EphemeralContainer = args#1.4:[s] command#1.3:[s] env#1.7:[EnvVar]@name
    envFrom#1.19:[EnvFromSource] image#1.2 imagePullPolicy#1.14:s(Always|IfNotPresent|Never)
    lifecycle#1.12:Lifecycle livenessProbe#1.10:Probe name#1.1!
    ports#1.6:[ContainerPort]@containerPort readinessProbe#1.11:Probe
    resizePolicy#1.23:[ContainerResizePolicy] resources#1.8=:ResourceRequirements
    restartPolicy#1.24* restartPolicyRules#1.25:[ContainerRestartRule]
    securityContext#1.15:SecurityContext startupProbe#1.22:Probe stdin#1.16:b stdinOnce#1.17:b
    targetContainerName#2 terminationMessagePath#1.13
    terminationMessagePolicy#1.20:s(FallbackToLogsOnError|File) tty#1.18:b
    volumeDevices#1.21:[VolumeDevice]@devicePath volumeMounts#1.9:[VolumeMount]@mountPath
    workingDir#1.5
EphemeralVolumeSource = volumeClaimTemplate#1:PersistentVolumeClaimTemplate
ExecAction = command#1:[s]
FCVolumeSource = fsType#3 lun#2*:i readOnly#4:b targetWWNs#1:[s] wwids#5:[s]
FileKeySelector = key#3! optional#4*:b path#2! volumeName#1!
FlexVolumeSource = driver#1! fsType#2 options#5:{s} readOnly#4:b secretRef#3:LocalObjectReference
FlockerVolumeSource = datasetName#1 datasetUUID#2
GCEPersistentDiskVolumeSource = fsType#2 partition#3:i pdName#1! readOnly#4:b
GRPCAction = port#1!:i service#2*
GitRepoVolumeSource = directory#3 repository#1! revision#2
GlusterfsVolumeSource = endpoints#1! path#2! readOnly#3:b
HTTPGetAction = host#3 httpHeaders#5:[HTTPHeader] path#1 port#2!:ios scheme#4:s(HTTP|HTTPS)
HTTPHeader = name#1! value#2!
HostAlias = hostnames#2:[s] ip#1!
HostIP = ip#1!
HostPathVolumeSource = path#1!
    type#2*:s(|BlockDevice|CharDevice|Directory|DirectoryOrCreate|File|FileOrCreate|Socket)
ISCSIVolumeSource = chapAuthDiscovery#8:b chapAuthSession#11:b fsType#5 initiatorName#12* iqn#2!
    iscsiInterface#4 lun#3!:i portals#7:[s] readOnly#6:b secretRef#10:LocalObjectReference
    targetPortal#1!
ImageVolumeSource = pullPolicy#2:s(Always|IfNotPresent|Never) reference#1
ImageVolumeStatus = imageRef#1!
KeyToPath = key#1! mode#3*:i path#2!
Lifecycle = postStart#1:LifecycleHandler preStop#2:LifecycleHandler stopSignal#3*
LifecycleHandler = exec#1:ExecAction httpGet#2:HTTPGetAction sleep#4:SleepAction
    tcpSocket#3:TCPSocketAction
LinuxContainerUser = gid#2!:l supplementalGroups#3:[l] uid#1!:l
NFSVolumeSource = path#2! readOnly#3:b server#1!
NodeAffinity = preferredDuringSchedulingIgnoredDuringExecution#2:[PreferredSchedulingTerm]
    requiredDuringSchedulingIgnoredDuringExecution#1:NodeSelector
NodeAllocatableResourceClaimStatus = containers#2:[s] resourceClaimName#1! resources#3!:{q}
NodeSelector = nodeSelectorTerms#1!:[NodeSelectorTerm]
NodeSelectorRequirement = key#1! operator#2!:s(DoesNotExist|Exists|Gt|In|Lt|NotIn) values#3:[s]
NodeSelectorTerm = matchExpressions#1:[NodeSelectorRequirement]
    matchFields#2:[NodeSelectorRequirement]
ObjectFieldSelector = apiVersion#1 fieldPath#2!
PersistentVolumeClaimSpec = accessModes#1:[s] dataSource#7:TypedLocalObjectReference
    dataSourceRef#8:TypedObjectReference resources#2=:VolumeResourceRequirements
    selector#4:LabelSelector storageClassName#5* volumeAttributesClassName#9*
    volumeMode#6*:s(Block|Filesystem) volumeName#3
PersistentVolumeClaimTemplate = metadata#1=:ObjectMeta spec#2!:PersistentVolumeClaimSpec
PersistentVolumeClaimVolumeSource = claimName#1! readOnly#2:b
PhotonPersistentDiskVolumeSource = fsType#2 pdID#1!
Pod = metadata#1=:ObjectMeta spec#2=:PodSpec status#3=:PodStatus
PodAffinity = preferredDuringSchedulingIgnoredDuringExecution#2:[WeightedPodAffinityTerm]
    requiredDuringSchedulingIgnoredDuringExecution#1:[PodAffinityTerm]
PodAffinityTerm = labelSelector#1:LabelSelector matchLabelKeys#5:[s] mismatchLabelKeys#6:[s]
    namespaceSelector#4:LabelSelector namespaces#2:[s] topologyKey#3!
PodAntiAffinity = preferredDuringSchedulingIgnoredDuringExecution#2:[WeightedPodAffinityTerm]
    requiredDuringSchedulingIgnoredDuringExecution#1:[PodAffinityTerm]
PodCertificateProjection = certificateChainPath#6 credentialBundlePath#4 keyPath#5 keyType#2!
    maxExpirationSeconds#3*:i signerName#1! userAnnotations#7:{s}
PodCondition = lastProbeTime#3=:time lastTransitionTime#4=:time message#6 observedGeneration#7:l
    reason#5 status#2! type#1!
PodDNSConfig = nameservers#1:[s] options#3:[PodDNSConfigOption] searches#2:[s]
PodDNSConfigOption = name#1 value#2*
PodExtendedResourceClaimStatus = requestMappings#1!:[ContainerExtendedResourceRequest]
    resourceClaimName#2!
PodIP = ip#1!
PodOS = name#1!
PodReadinessGate = conditionType#1!
PodResourceClaim = name#1! resourceClaimName#3* resourceClaimTemplateName#4*
PodResourceClaimStatus = name#1! resourceClaimName#2*
PodSchedulingGate = name#1!
PodSchedulingGroup = podGroupName#1*
PodSecurityContext = appArmorProfile#11:AppArmorProfile fsGroup#5*:l
    fsGroupChangePolicy#9*:s(Always|OnRootMismatch) runAsGroup#6*:l runAsNonRoot#3*:b
    runAsUser#2*:l seLinuxChangePolicy#13* seLinuxOptions#1:SELinuxOptions
    seccompProfile#10:SeccompProfile supplementalGroups#4:[l]
    supplementalGroupsPolicy#12*:s(Merge|Strict) sysctls#7:[Sysctl]
    windowsOptions#8:WindowsSecurityContextOptions
PodSpec = activeDeadlineSeconds#5*:l affinity#18:Affinity automountServiceAccountToken#21*:b
    containers#2!:[Container]@name dnsConfig#26:PodDNSConfig
    dnsPolicy#6:s(ClusterFirst|ClusterFirstWithHostNet|Default|None) enableServiceLinks#30*:b
    ephemeralContainers#34:[EphemeralContainer]@name hostAliases#23:[HostAlias]@ip hostIPC#13:b
    hostNetwork#11:b hostPID#12:b hostUsers#37*:b hostname#16 hostnameOverride#41*
    imagePullSecrets#15:[LocalObjectReference]@name initContainers#20:[Container]@name nodeName#10
    nodeSelector#7:{s} os#36:PodOS overhead#32:{q}
    preemptionPolicy#31*:s(Never|PreemptLowerPriority) priority#25*:i priorityClassName#24
    readinessGates#28:[PodReadinessGate] resourceClaims#39:[PodResourceClaim]@name+
    resources#40:ResourceRequirements restartPolicy#3:s(Always|Never|OnFailure)
    runtimeClassName#29* schedulerName#19 schedulingGates#38:[PodSchedulingGate]@name
    schedulingGroup#43:PodSchedulingGroup securityContext#14:PodSecurityContext serviceAccount#9
    serviceAccountName#8 setHostnameAsFQDN#35*:b shareProcessNamespace#27*:b subdomain#17
    terminationGracePeriodSeconds#4*:l tolerations#22:[Toleration]
    topologySpreadConstraints#33:[TopologySpreadConstraint]@topologyKey volumes#1:[Volume]@name+
PodStatus = allocatedResources#19:{q} conditions#2:[PodCondition]@type
    containerStatuses#8:[ContainerStatus] ephemeralContainerStatuses#13:[ContainerStatus]
    extendedResourceClaimStatus#18:PodExtendedResourceClaimStatus hostIP#5 hostIPs#16:[HostIP]@ip
    initContainerStatuses#10:[ContainerStatus] message#3
    nodeAllocatableResourceClaimStatuses#21:[NodeAllocatableResourceClaimStatus]
    nominatedNodeName#11 observedGeneration#17:l
    phase#1:s(Failed|Pending|Running|Succeeded|Unknown) podIP#6 podIPs#12:[PodIP]@ip
    qosClass#9:s(BestEffort|Burstable|Guaranteed) reason#4 resize#14
    resourceClaimStatuses#15:[PodResourceClaimStatus]@name+ resources#20:ResourceRequirements
    startTime#7*:time
PodTemplateSpec = metadata#1=:ObjectMeta spec#2=:PodSpec
PortworxVolumeSource = fsType#2 readOnly#3:b volumeID#1!
PreferredSchedulingTerm = preference#2!:NodeSelectorTerm weight#1!:i
Probe = exec#1.1:ExecAction failureThreshold#6:i grpc#1.4:GRPCAction httpGet#1.2:HTTPGetAction
    initialDelaySeconds#2:i periodSeconds#4:i successThreshold#5:i tcpSocket#1.3:TCPSocketAction
    terminationGracePeriodSeconds#7*:l timeoutSeconds#3:i
ProjectedVolumeSource = defaultMode#2*:i sources#1=:[VolumeProjection]
QuobyteVolumeSource = group#5 readOnly#3:b registry#1! tenant#6 user#4 volume#2!
RBDVolumeSource = fsType#3 image#2! keyring#6 monitors#1!:[s] pool#4 readOnly#8:b
    secretRef#7:LocalObjectReference user#5
ResourceClaim = name#1! request#2
ResourceFieldSelector = containerName#1 divisor#3:q resource#2!
ResourceHealth = health#2 message#6* resourceID#1!
ResourceRequirements = claims#3:[ResourceClaim] limits#1:{q} requests#2:{q}
ResourceStatus = name#1! resources#2:[ResourceHealth]
SELinuxOptions = level#4 role#2 type#3 user#1
ScaleIOVolumeSource = fsType#9 gateway#1! protectionDomain#5 readOnly#10:b
    secretRef#3!:LocalObjectReference sslEnabled#4:b storageMode#7 storagePool#6 system#2!
    volumeName#8
SeccompProfile = localhostProfile#2* type#1!:s(Localhost|RuntimeDefault|Unconfined)
SecretEnvSource = name#1.1 optional#2*:b
SecretKeySelector = key#2! name#1.1 optional#3*:b
SecretProjection = items#2:[KeyToPath] name#1.1 optional#4*:b
SecretVolumeSource = defaultMode#3*:i items#2:[KeyToPath] optional#4*:b secretName#1
SecurityContext = allowPrivilegeEscalation#7*:b appArmorProfile#12:AppArmorProfile
    capabilities#1:Capabilities privileged#2*:b procMount#9*:s(Default|Unmasked)
    readOnlyRootFilesystem#6*:b runAsGroup#8*:l runAsNonRoot#5*:b runAsUser#4*:l
    seLinuxOptions#3:SELinuxOptions seccompProfile#11:SeccompProfile
    windowsOptions#10:WindowsSecurityContextOptions
ServiceAccountTokenProjection = audience#1 expirationSeconds#2*:l path#3!
SleepAction = seconds#1!:l
StorageOSVolumeSource = fsType#3 readOnly#4:b secretRef#5:LocalObjectReference volumeName#1
    volumeNamespace#2
Sysctl = name#1! value#2!
TCPSocketAction = host#2 port#1!:ios
Toleration = effect#4:s(NoExecute|NoSchedule|PreferNoSchedule) key#1
    operator#2:s(Equal|Exists|Gt|Lt) tolerationSeconds#5*:l value#3
TopologySpreadConstraint = labelSelector#4:LabelSelector matchLabelKeys#8:[s] maxSkew#1!:i
    minDomains#5*:i nodeAffinityPolicy#6*:s(Honor|Ignore) nodeTaintsPolicy#7*:s(Honor|Ignore)
    topologyKey#2! whenUnsatisfiable#3!:s(DoNotSchedule|ScheduleAnyway)
TypedLocalObjectReference = apiGroup#1* kind#2! name#3!
TypedObjectReference = apiGroup#1* kind#2! name#3! namespace#4*
Volume = awsElasticBlockStore#2.4:AWSElasticBlockStoreVolumeSource
    azureDisk#2.22:AzureDiskVolumeSource azureFile#2.18:AzureFileVolumeSource
    cephfs#2.14:CephFSVolumeSource cinder#2.13:CinderVolumeSource
    configMap#2.19:ConfigMapVolumeSource csi#2.28:CSIVolumeSource
    downwardAPI#2.16:DownwardAPIVolumeSource emptyDir#2.2:EmptyDirVolumeSource
    ephemeral#2.29:EphemeralVolumeSource fc#2.17:FCVolumeSource flexVolume#2.12:FlexVolumeSource
    flocker#2.15:FlockerVolumeSource gcePersistentDisk#2.3:GCEPersistentDiskVolumeSource
    gitRepo#2.5:GitRepoVolumeSource glusterfs#2.9:GlusterfsVolumeSource
    hostPath#2.1:HostPathVolumeSource image#2.30:ImageVolumeSource iscsi#2.8:ISCSIVolumeSource
    name#1! nfs#2.7:NFSVolumeSource persistentVolumeClaim#2.10:PersistentVolumeClaimVolumeSource
    photonPersistentDisk#2.23:PhotonPersistentDiskVolumeSource
    portworxVolume#2.24:PortworxVolumeSource projected#2.26:ProjectedVolumeSource
    quobyte#2.21:QuobyteVolumeSource rbd#2.11:RBDVolumeSource scaleIO#2.25:ScaleIOVolumeSource
    secret#2.6:SecretVolumeSource storageos#2.27:StorageOSVolumeSource
    vsphereVolume#2.20:VsphereVirtualDiskVolumeSource
VolumeDevice = devicePath#2! name#1!
VolumeMount = mountPath#3! mountPropagation#5*:s(Bidirectional|HostToContainer|None) name#1!
    readOnly#2:b recursiveReadOnly#7* subPath#4 subPathExpr#6
VolumeMountStatus = mountPath#2! name#1! readOnly#3:b recursiveReadOnly#4*
    volumeStatus#5:VolumeStatus
VolumeProjection = clusterTrustBundle#5:ClusterTrustBundleProjection
    configMap#3:ConfigMapProjection downwardAPI#2:DownwardAPIProjection
    podCertificate#6:PodCertificateProjection secret#1:SecretProjection
    serviceAccountToken#4:ServiceAccountTokenProjection
VolumeResourceRequirements = limits#1:{q} requests#2:{q}
VolumeStatus = image#1:ImageVolumeStatus
VsphereVirtualDiskVolumeSource = fsType#2 storagePolicyID#4 storagePolicyName#3 volumePath#1!
WeightedPodAffinityTerm = podAffinityTerm#2!:PodAffinityTerm weight#1!:i
WindowsSecurityContextOptions = gmsaCredentialSpec#2* gmsaCredentialSpecName#1* hostProcess#4*:b
    runAsUserName#3*
"""
