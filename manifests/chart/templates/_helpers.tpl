{{- define "kube-ccm.labels" -}}
app.kubernetes.io/name: cloud-controller-manager
app.kubernetes.io/instance: {{ .Values.name }}
{{- end -}}

{{- define "kube-ccm.machineLabels" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/instance: {{ . }}
{{- end -}}

{{- define "kube-ccm.subject" -}}
- kind: ServiceAccount
  name: {{ .Values.name }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{/* Account of the machine controllers if each controller has its own. */}}
{{- define "kube-ccm.machineAccount" -}}
{{- if .Values.serviceAccountCredentials -}}
- kind: ServiceAccount
  name: machine-controller
  namespace: kube-system
{{- end -}}
{{- end -}}

{{/* Names of the daemon and of the machine commands that the chart installs, separated by |. */}}
{{- define "kube-ccm.programs" -}}
{{- $names := list .Values.name -}}
{{- if .Values.machineController.enabled }}{{ $names = append $names "machine-controller" }}{{ end -}}
{{- if .Values.machineControllerManager.enabled }}{{ $names = append $names "machine-controller-manager" }}{{ end -}}
{{- join "|" $names -}}
{{- end -}}

{{/* Accounts of the daemon and of the machine commands, in a FlowSchema. */}}
{{- define "kube-ccm.flowSubjects" -}}
{{- range splitList "|" (include "kube-ccm.programs" .) }}
- kind: ServiceAccount
  serviceAccount:
    name: {{ . }}
    namespace: {{ $.Release.Namespace }}
{{- end -}}
{{- end -}}

{{- define "kube-ccm.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Names of the Secrets: existing ones, or those that the chart creates. */}}
{{- define "kube-ccm.cloudConfigSecret" -}}
{{- with .Values.cloud.config -}}
{{ .content | empty | ternary .existingSecret (printf "%s-cloud-config" $.Values.name) }}
{{- end -}}
{{- end -}}

{{- define "kube-ccm.credentialsSecret" -}}
{{- with .Values.credentials -}}
{{ .data | empty | ternary .existingSecret (printf "%s-credentials" $.Values.name) }}
{{- end -}}
{{- end -}}

{{/* Probe a loopback bind-address directly: the kubelet is on the same network. */}}
{{- define "kube-ccm.probeHost" -}}
{{- with index .Values.extraArgs "bind-address" -}}
{{- if or (hasPrefix "127." .) (eq "::1" .) -}}
host: {{ . | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kube-ccm.lease" -}}
{{ index .Values.extraArgs "leader-elect-resource-name" | default .Values.name }}
{{- end -}}

{{- define "kube-ccm.leaseNamespace" -}}
{{ index .Values.extraArgs "leader-elect-resource-namespace" | default "kube-system" }}
{{- end -}}

{{/* Namespace of the Lease of a machine command, whose values are the argument. */}}
{{- define "kube-ccm.machineLeaseNamespace" -}}
{{ index .extraArgs "leader-elect-resource-namespace" | default .namespace }}
{{- end -}}

{{/* All flags, one per line. Releases with different names must not share a Lease. */}}
{{- define "kube-ccm.args" -}}
- --cloud-provider={{ .Values.cloud.provider }}
{{- if include "kube-ccm.cloudConfigSecret" . }}
- --cloud-config=/etc/ccm/{{ .Values.cloud.config.key }}
{{- end }}
{{- if and (ne .Values.name "cloud-controller-manager") (not (hasKey .Values.extraArgs "leader-elect-resource-name")) }}
- --leader-elect-resource-name={{ include "kube-ccm.lease" . }}
{{- end }}
{{- if .Values.persistence.config }}
- --persistence-config=/etc/ccm-persistence/config.yaml
{{- end }}
{{- if ne (int .Values.securePort) 10258 }}
- --secure-port={{ .Values.securePort }}
{{- end }}
{{- if .Values.serviceAccountCredentials }}
- --use-service-account-credentials=true
{{- end }}
{{- if .Values.webhook.enabled }}
- --feature-gates=CloudControllerManagerWebhook=true
- --webhooks={{ join "," .Values.webhook.names }}
- --webhook-secure-port={{ .Values.webhook.port }}
- --webhook-tls-cert-file=/etc/ccm-webhook/tls.crt
- --webhook-tls-private-key-file=/etc/ccm-webhook/tls.key
{{- if .Values.webhook.clientCaConfigMap }}
- --webhook-client-ca-file=/etc/ccm-webhook-clients/ca.crt
{{- end }}
{{- end }}
{{- if and (or .Values.machines.enabled .Values.kubermatic.enabled) (not (hasKey .Values.extraArgs "controllers")) }}
- --controllers=*
{{- if .Values.machines.enabled }},machine,machineclass,machinesafety,machineset,machinedeployment,machineovershoot{{ end }}
{{- if .Values.kubermatic.enabled }},kubermaticmachine,kubermaticmachineset,kubermaticmachinedeployment,nodecsrapprover{{ end }}
{{- end }}
{{- if .Values.machines.enabled }}
- --namespace={{ .Values.machines.namespace }}
{{- end }}
{{- if .Values.kubermatic.enabled }}
{{- if ne .Values.kubermatic.namespace "kube-system" }}
- --kubermatic-namespace={{ .Values.kubermatic.namespace }}
{{- end }}
{{- with .Values.kubermatic.name }}
- --kubermatic-name={{ . }}
{{- end }}
{{- if ne .Values.kubermatic.leaseNamespace "kube-system" }}
- --kubermatic-leader-election-namespace={{ .Values.kubermatic.leaseNamespace }}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.extraArgs }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end -}}

{{/* Checks that a schema cannot express. */}}
{{- define "kube-ccm.check" -}}
{{- $missing := list -}}
{{- if not .Values.image.repository -}}
{{- $missing = append $missing "image.repository: required, there is no public image; --set image.repository=REGISTRY/kube-ccm" -}}
{{- else if not (contains "/" .Values.image.repository) -}}
{{- $missing = append $missing (printf "image.repository: %s has no registry; --set image.repository=REGISTRY/kube-ccm" .Values.image.repository) -}}
{{- end -}}
{{- if not .Values.cloud.provider -}}
{{- $missing = append $missing "cloud.provider: required; --set cloud.provider=NAME" -}}
{{- else if eq .Values.cloud.provider "sim" -}}
{{- $missing = append $missing "cloud.provider: sim is a simulated cloud; use the provider in your image: --set cloud.provider=NAME" -}}
{{- end -}}
{{- with $missing -}}
{{- fail (join "\n" .) -}}
{{- end -}}
{{- with .Values.webhook -}}
{{- if and .enabled (not .tlsSecret) -}}
{{- fail "webhook.tlsSecret: required by webhook.enabled; name a Secret with the server certificate" -}}
{{- end -}}
{{- if and .enabled (not .caCertificate) (not .annotations) -}}
{{- fail "webhook.caCertificate: required by webhook.enabled; or set webhook.annotations for a component that injects it" -}}
{{- end -}}
{{- if and .enabled (eq (int .port) (int $.Values.securePort)) -}}
{{- fail "webhook.port: must differ from securePort" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled .Values.hostNetwork -}}
{{- fail "networkPolicy.enabled: network plugins ignore Pods on the host network; set hostNetwork=false, or disable networkPolicy" -}}
{{- end -}}
{{- if and .Values.machines.enabled .Values.machineController.enabled -}}
{{- fail "machineController.enabled: machines.enabled runs the same controllers in the daemon; enable only one" -}}
{{- end -}}
{{- if and .Values.machines.enabled .Values.machineControllerManager.enabled -}}
{{- fail "machineControllerManager.enabled: machines.enabled runs the same controllers in the daemon; enable only one" -}}
{{- end -}}
{{- with .Values.machineController -}}
{{- if and $.Values.kubermatic.enabled .enabled (eq (include "kube-ccm.machineLeaseNamespace" .) $.Values.kubermatic.leaseNamespace) (eq (index .extraArgs "leader-elect-resource-name" | default "machine-controller") "machine-controller") -}}
{{- fail (printf "kubermatic.leaseNamespace: machineController has the Lease machine-controller in %s too; set another namespace, or machineController.extraArgs.leader-elect-resource-name" $.Values.kubermatic.leaseNamespace) -}}
{{- end -}}
{{- end -}}
{{- range list "cloud-provider" "cloud-config" "persistence-config" "secure-port" "use-service-account-credentials" "kubermatic-namespace" "kubermatic-name" "kubermatic-leader-election-namespace" -}}
{{- if hasKey $.Values.extraArgs . -}}
{{- fail (printf "extraArgs.%s: the chart sets this flag; use its value in values.yaml" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.webhook.enabled (hasKey .Values.extraArgs "feature-gates") -}}
{{- fail "extraArgs.feature-gates: webhook.enabled sets this flag" -}}
{{- end -}}
{{- if and .Values.webhook.clientCaConfigMap (hasKey .Values.extraArgs "webhook-client-ca-file") -}}
{{- fail "extraArgs.webhook-client-ca-file: webhook.clientCaConfigMap sets this flag" -}}
{{- end -}}
{{- end -}}
