{{/*
ServiceAccount, Deployment and ServiceMonitor of a machine command.
root: the chart; name: the command; values: its values; port: its default port; cloud: it creates VMs.
*/}}
{{- define "kube-ccm.machineCommand" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "kube-ccm.machineLabels" .name | nindent 4 }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "kube-ccm.machineLabels" .name | nindent 4 }}
spec:
  replicas: {{ .values.replicas }}
  revisionHistoryLimit: 2
  selector:
    matchLabels: {{- include "kube-ccm.machineLabels" .name | nindent 6 }}
  template:
    metadata:
      labels: {{- include "kube-ccm.machineLabels" .name | nindent 8 }}
      {{- if and .cloud .root.Values.credentials.data }}
      annotations:
        checksum/credentials: {{ toJson .root.Values.credentials.data | sha256sum }}
      {{- end }}
    spec:
      serviceAccountName: {{ .name }}
      {{- with .root.Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      terminationGracePeriodSeconds: 30
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels: {{- include "kube-ccm.machineLabels" .name | nindent 20 }}
      tolerations:
        - key: node-role.kubernetes.io/control-plane
          operator: Exists
          effect: NoSchedule
        - key: CriticalAddonsOnly
          operator: Exists
        {{- with .root.Values.extraTolerations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: {{ .name }}
          image: {{ include "kube-ccm.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: [/opt/ccm/bin/{{ .name }}]
          args:
            - --control-kubeconfig=inClusterConfig
            {{- if .values.targetKubeconfigSecret }}
            - --target-kubeconfig=/etc/ccm-target/kubeconfig
            {{- end }}
            {{- if .cloud }}
            - --cloud-provider={{ .root.Values.cloud.provider }}
            {{- end }}
            {{- if and .cloud (include "kube-ccm.cloudConfigSecret" .root) }}
            - --cloud-config=/etc/ccm/{{ .root.Values.cloud.config.key }}
            {{- end }}
            - --namespace={{ .values.namespace }}
            {{- range $name, $value := .values.extraArgs }}
            - {{ printf "--%s=%v" $name $value | quote }}
            {{- end }}
          {{- if and .cloud (include "kube-ccm.credentialsSecret" .root) }}
          envFrom:
            - secretRef:
                name: {{ include "kube-ccm.credentialsSecret" .root }}
          {{- end }}
          {{- with .root.Values.extraEnv }}
          env: {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            - name: http
              containerPort: {{ .values.extraArgs.port | default .port }}
              protocol: TCP
          startupProbe:
            httpGet:
              path: /livez
              port: http
            periodSeconds: 2
            failureThreshold: 60
            timeoutSeconds: 5
          livenessProbe:
            httpGet:
              path: /livez
              port: http
            periodSeconds: 10
            failureThreshold: 6
            timeoutSeconds: 5
          readinessProbe:
            httpGet:
              path: /readyz
              port: http
            periodSeconds: 10
            failureThreshold: 3
            timeoutSeconds: 5
          resources: {{- toYaml .root.Values.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          volumeMounts:
            {{- if and .cloud (include "kube-ccm.cloudConfigSecret" .root) }}
            - name: cloud-config
              mountPath: /etc/ccm
              readOnly: true
            {{- end }}
            {{- if .values.targetKubeconfigSecret }}
            - name: target
              mountPath: /etc/ccm-target
              readOnly: true
            {{- end }}
            - name: tmp
              mountPath: /tmp
            {{- with .root.Values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        {{- if and .cloud (include "kube-ccm.cloudConfigSecret" .root) }}
        - name: cloud-config
          secret:
            secretName: {{ include "kube-ccm.cloudConfigSecret" .root }}
        {{- end }}
        {{- with .values.targetKubeconfigSecret }}
        - name: target
          secret:
            secretName: {{ . }}
        {{- end }}
        - name: tmp
          emptyDir:
            medium: Memory
            sizeLimit: 8Mi
        {{- with .root.Values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- if .root.Values.serviceMonitor.enabled }}
---
{{ include "kube-ccm.serviceMonitor" (dict "root" .root "name" .name "labels" (include "kube-ccm.machineLabels" .name) "port" .port "scheme" "http") }}
{{- end }}
{{- end -}}
