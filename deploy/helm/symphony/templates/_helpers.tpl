{{- define "symphony.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "symphony.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- define "symphony.probe" -}}
path: {{ .path }}
port: http
scheme: {{ ternary "HTTPS" "HTTP" (ne .root.Values.tlsSecret "") }}
{{- end }}
