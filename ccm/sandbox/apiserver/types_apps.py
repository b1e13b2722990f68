"""Shapes of the one kind of apps/v1 that is served, as Kubernetes 1.36 serves it.

The notation is explained in `schema.py`.
"""

from __future__ import annotations

APPS = """
Deployment = metadata#1=:ObjectMeta spec#2=:DeploymentSpec status#3=:DeploymentStatus
DeploymentCondition = lastTransitionTime#7=:time lastUpdateTime#6=:time message#5 reason#4
    status#2! type#1!
DeploymentSpec = minReadySeconds#5:i paused#7:b progressDeadlineSeconds#9*:i replicas#1*:i
    revisionHistoryLimit#6*:i selector#2!:LabelSelector strategy#4=:DeploymentStrategy
    template#3!:PodTemplateSpec
DeploymentStatus = availableReplicas#4:i collisionCount#8*:i conditions#6:[DeploymentCondition]@type
    observedGeneration#1:l readyReplicas#7:i replicas#2:i terminatingReplicas#9*:i
    unavailableReplicas#5:i updatedReplicas#3:i
DeploymentStrategy = rollingUpdate#2:RollingUpdateDeployment type#1:s(Recreate|RollingUpdate)
RollingUpdateDeployment = maxSurge#2*:ios maxUnavailable#1*:ios
"""
