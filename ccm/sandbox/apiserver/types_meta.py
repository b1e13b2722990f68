"""Shapes of the metadata types and of the small API groups, as Kubernetes 1.36 serves them.

The notation is explained in `schema.py`.
"""

from __future__ import annotations

META = """
Condition = lastTransitionTime!:time message! observedGeneration:l reason! status! type!
DeleteOptions = dryRun:[s] gracePeriodSeconds*:l
    ignoreStoreReadErrorWithClusterBreakingPotential*:b orphanDependents*:b
    preconditions:Preconditions propagationPolicy*
FieldSelectorRequirement = key! operator! values:[s]
LabelSelector = matchExpressions:[LabelSelectorRequirement] matchLabels:{s}
LabelSelectorRequirement = key! operator! values:[s]
ListMeta = continue remainingItemCount*:l resourceVersion selfLink shardInfo:ShardInfo
ManagedFieldsEntry = apiVersion fieldsType fieldsV1*:any manager operation subresource time*:time
ObjectMeta = annotations:{s} creationTimestamp:time deletionGracePeriodSeconds*:l
    deletionTimestamp*:time finalizers:[s]@ generateName generation:l labels:{s}
    managedFields:[ManagedFieldsEntry] name namespace ownerReferences:[OwnerReference]@uid
    resourceVersion selfLink uid
OwnerReference = apiVersion! blockOwnerDeletion*:b controller*:b kind! name! uid!
Preconditions = resourceVersion* uid*
ShardInfo = selector!
Status = code:i details:StatusDetails message metadata=:ListMeta reason status
StatusCause = field message reason
StatusDetails = causes:[StatusCause] group kind name retryAfterSeconds:i uid
"""

COORDINATION = """
Lease = metadata=:ObjectMeta spec=:LeaseSpec
LeaseSpec = acquireTime*:micro holderIdentity* leaseDurationSeconds*:i leaseTransitions*:i
    preferredHolder* renewTime*:micro strategy*
"""

AUTHORIZATION = """
FieldSelectorAttributes = rawSelector requirements:[FieldSelectorRequirement]
LabelSelectorAttributes = rawSelector requirements:[LabelSelectorRequirement]
NonResourceAttributes = path verb
ResourceAttributes = fieldSelector:FieldSelectorAttributes group
    labelSelector:LabelSelectorAttributes name namespace resource subresource verb version
SelfSubjectAccessReview = metadata=:ObjectMeta spec!:SelfSubjectAccessReviewSpec
    status=:SubjectAccessReviewStatus
SelfSubjectAccessReviewSpec = nonResourceAttributes:NonResourceAttributes
    resourceAttributes:ResourceAttributes
SubjectAccessReviewStatus = allowed!:b denied:b evaluationError reason
"""
