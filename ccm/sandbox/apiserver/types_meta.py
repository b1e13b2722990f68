"""Shapes of the metadata types and of the small API groups, as Kubernetes 1.36 serves them.

The notation is explained in `schema.py`.
"""

from __future__ import annotations

META = """
Condition = lastTransitionTime#4!:time message#6! observedGeneration#3:l reason#5! status#2!
    type#1!
DeleteOptions = dryRun#5:[s] gracePeriodSeconds#1*:l
    ignoreStoreReadErrorWithClusterBreakingPotential#6*:b orphanDependents#3*:b
    preconditions#2:Preconditions propagationPolicy#4*
FieldSelectorRequirement = key#1! operator#2! values#3:[s]
LabelSelector = matchExpressions#2:[LabelSelectorRequirement] matchLabels#1:{s}
LabelSelectorRequirement = key#1! operator#2! values#3:[s]
ListMeta = continue#3 remainingItemCount#4*:l resourceVersion#2 selfLink#1 shardInfo#5:ShardInfo
ManagedFieldsEntry = apiVersion#3 fieldsType#6 fieldsV1#7*:fields manager#1 operation#2
    subresource#8 time#4*:time
ObjectMeta = annotations#12:{s} creationTimestamp#8:time deletionGracePeriodSeconds#10*:l
    deletionTimestamp#9*:time finalizers#14:[s]@ generateName#2 generation#7:l labels#11:{s}
    managedFields#17:[ManagedFieldsEntry] name#1 namespace#3
    ownerReferences#13:[OwnerReference]@uid resourceVersion#6 selfLink#4 uid#5
OwnerReference = apiVersion#5! blockOwnerDeletion#7*:b controller#6*:b kind#1! name#3! uid#4!
Preconditions = resourceVersion#2* uid#1*
ShardInfo = selector#1!
Status = code#6:i details#5:StatusDetails message#3 metadata#1=:ListMeta reason#4 status#2
StatusCause = field#3 message#2 reason#1
StatusDetails = causes#4:[StatusCause] group#2 kind#3 name#1 retryAfterSeconds#5:i uid#6
"""

COORDINATION = """
Lease = metadata#1=:ObjectMeta spec#2=:LeaseSpec
LeaseSpec = acquireTime#3*:micro holderIdentity#1* leaseDurationSeconds#2*:i leaseTransitions#5*:i
    preferredHolder#7* renewTime#4*:micro strategy#6*
"""

AUTHORIZATION = """
FieldSelectorAttributes = rawSelector#1 requirements#2:[FieldSelectorRequirement]
LabelSelectorAttributes = rawSelector#1 requirements#2:[LabelSelectorRequirement]
NonResourceAttributes = path#1 verb#2
ResourceAttributes = fieldSelector#8:FieldSelectorAttributes group#3
    labelSelector#9:LabelSelectorAttributes name#7 namespace#1 resource#5 subresource#6 verb#2
    version#4
SelfSubjectAccessReview = metadata#1=:ObjectMeta spec#2!:SelfSubjectAccessReviewSpec
    status#3=:SubjectAccessReviewStatus
SelfSubjectAccessReviewSpec = nonResourceAttributes#2:NonResourceAttributes
    resourceAttributes#1:ResourceAttributes
SubjectAccessReviewStatus = allowed#1!:b denied#4:b evaluationError#3 reason#2
"""
