{{- /* The names are those of nvc/kube/names.py; tests/packaging/test_chart.py compares them. */ -}}
{{- define "nvc.driver" -}}gpu.nvc.dev{{- end -}}
{{- /* In the driver's container: there once its kubelet has registered it. */ -}}
{{- define "nvc.registered" -}}/registered{{- end -}}
{{- define "nvc.labels" -}}
app.kubernetes.io/name: nvc-py
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}
{{- /* An object of before the policy can lose its finalizers: else it could not end. */ -}}
{{- define "nvc.changed" -}}
matchConditions:
  - name: is-changed
    expression: oldObject == null || object.spec != oldObject.spec
{{- end -}}
{{- define "nvc.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
