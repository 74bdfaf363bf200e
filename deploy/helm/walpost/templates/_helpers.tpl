{{- define "walpost.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "walpost.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "walpost.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "walpost.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "walpost.selector" -}}
app.kubernetes.io/name: {{ include "walpost.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "walpost.labels" -}}
{{ include "walpost.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "walpost.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "walpost.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "walpost.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "walpost.port" -}}
{{- regexFind "[0-9]+$" .Values.config.http.listen -}}
{{- end -}}

{{- define "walpost.scheme" -}}
{{- if .Values.config.http.tls -}}, scheme: HTTPS{{- end -}}
{{- end -}}

{{- /* A stop waits up to shutdown_grace for acknowledgements. Writing the last checkpoint, closing connections and sending the
       last spans may take another 20 s if servers don't answer. */ -}}
{{- define "walpost.grace" -}}
{{- if .Values.terminationGracePeriodSeconds -}}
{{- int .Values.terminationGracePeriodSeconds -}}
{{- else -}}
{{- $start := toDate "2006-01-02" "2000-01-01" -}}
{{- $end := mustDateModify (printf "+%s" (default "20s" .Values.config.shutdown_grace)) $start -}}
{{- add (sub (unixEpoch $end) (unixEpoch $start)) 25 -}}
{{- end -}}
{{- end -}}
