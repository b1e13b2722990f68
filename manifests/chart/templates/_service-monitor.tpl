{{/*
Service and ServiceMonitor of the metrics of a Deployment.
root: the chart; name: of the Deployment; labels: of its Pods, as YAML; port: its port; scheme: http or https,
also the name of the port.
*/}}
{{- define "kube-ccm.serviceMonitor" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}-metrics
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- .labels | nindent 4 }}
    app.kubernetes.io/component: metrics
spec:
  # Headless: Prometheus scrapes each replica, because standbys have metrics too.
  clusterIP: None
  selector: {{- .labels | nindent 4 }}
  ports:
    - name: {{ .scheme }}
      port: {{ .port }}
      targetPort: {{ .scheme }}
      protocol: TCP
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- .labels | nindent 4 }}
    {{- with .root.Values.serviceMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- .labels | nindent 6 }}
      app.kubernetes.io/component: metrics
  namespaceSelector:
    matchNames: [{{ .root.Release.Namespace }}]
  endpoints:
    - port: {{ .scheme }}
      scheme: {{ .scheme }}
      path: /metrics
      interval: {{ .root.Values.serviceMonitor.interval }}
      {{- if eq .scheme "https" }}
      # Service account of Prometheus; it needs `get` on the path /metrics.
      bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
      tlsConfig:
        # Without a configured certificate the daemon's is self-signed.
        insecureSkipVerify: true
      {{- end }}
{{- end -}}
