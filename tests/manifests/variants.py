"""Values that the chart is rendered with in tests, by what they are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

Values = Mapping[str, Any]

EVERYTHING: Values = {
    "name": "blue",
    "image": {"repository": "registry.example/kube-ccm", "digest": f"sha256:{'0' * 64}"},
    "imagePullSecrets": ["pull"],
    "replicas": 3,
    "cloud": {"provider": "acme", "config": {"content": "url: http://cloud\ntoken: secret\n"}},
    "credentials": {"data": {"CLOUD_TOKEN": "secret"}},
    "extraArgs": {"cluster-name": "blue", "v": 4, "allow-untagged-cloud": True},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "cloud-ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/cloud-ca"}],
    "serviceAccountCredentials": True,
    "extraLeases": ["shared"],
    "serviceAccount": {"annotations": {"example.com/role": "ccm"}},
    "securePort": 20258,
    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    "podAnnotations": {"example.com/a": "b"},
    "podLabels": {"example.com/team": "cloud"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "extraTolerations": [{"key": "example.com/dedicated", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "webhook": {
        "enabled": True,
        "tlsSecret": "webhook-tls",
        "caCertificate": CERTIFICATE,
        "clientCaConfigMap": "api-server-ca",
    },
    "machines": {"enabled": True, "namespace": "kube-public"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
    "persistence": {
        "config": {
            "instances": [{"file": {"root": "/var/lib/kube-ccm/store"}}],
            "secrets": {"kubernetes": None},
        },
        "existingClaim": "store",
        "existingSecret": "store-keys",
    },
}

VARIANTS: Mapping[str, Values] = {
    "defaults": {},
    "everything": EVERYTHING,
    "pod-network": {
        "hostNetwork": False,
        "replicas": 1,
        "priorityClassName": "",
        "networkPolicy": {"enabled": True, "from": [{"ipBlock": {"cidr": "10.0.0.0/24"}}]},
        "machines": {"enabled": True, "bootstrapTokens": True},
    },
    "no-cloud-config": {"cloud": {"provider": "env", "config": {"existingSecret": ""}}},
    "given-secrets": {
        "cloud": {"provider": "env", "config": {"existingSecret": "mine", "key": "cloud.conf"}},
        "credentials": {"existingSecret": "token"},
    },
    "webhook-with-an-injector": {
        "webhook": {
            "enabled": True,
            "tlsSecret": "webhook-tls",
            "annotations": {"cert-manager.io/inject-ca-from": "kube-system/webhook"},
        }
    },
    "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}
