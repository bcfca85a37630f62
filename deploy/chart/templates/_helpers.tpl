{{- define "weir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "weir.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "weir.uninstaller" -}}
{{ include "weir.fullname" . }}-uninstall
{{- end }}

{{- /* The ConfigMap that exists while the agents are installed. */}}
{{- define "weir.installed" -}}
{{ include "weir.fullname" . }}-installed
{{- end }}

{{- define "weir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* The labels by which objects find the pods of a component. They never change: selectors cannot. */}}
{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: {{ include "weir.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: weir
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "weir.podLabels" -}}
{{ include "weir.selectorLabels" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- with .root.Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "weir.image" -}}
{{- with .Values.image }}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end }}
{{- end }}
{{- end }}

{{- define "weir.containerImage" -}}
image: {{ include "weir.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- /* The security context of a container; `capabilities` are those that it adds. `root` is given if it uses the host. */}}
{{- define "weir.securityContext" -}}
securityContext:
  runAsUser: 0
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  seccompProfile:
    type: RuntimeDefault
{{- with .root }}
{{- if and .Values.appArmorProfile (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) }}
  appArmorProfile:
    {{- toYaml .Values.appArmorProfile | nindent 4 }}
{{- end }}
{{- with .Values.seLinuxOptions }}
  seLinuxOptions:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}
  capabilities:
    drop: [ALL]
{{- with .capabilities }}
    # SYS_ADMIN: to look into the pods' network namespaces, and to open programs by their numbers.
    add: [{{ join ", " . }}]
{{- end }}
{{- end }}

{{- /* Before Kubernetes 1.30, a container's AppArmor profile is an annotation of its pod. */}}
{{- define "weir.appArmorAnnotations" -}}
{{- $given := default dict .root.Values.podAnnotations }}
{{- $containers := .containers }}
{{- if semverCompare "<1.30-0" .root.Capabilities.KubeVersion.Version }}
{{- with .root.Values.appArmorProfile }}
{{- $local := printf "localhost/%s" (toString .localhostProfile) }}
{{- $profile := get (dict "Unconfined" "unconfined" "RuntimeDefault" "runtime/default" "Localhost" $local) .type }}
{{- range $containers }}
{{- $key := printf "container.apparmor.security.beta.kubernetes.io/%s" . }}
{{- if not (hasKey $given $key) }}
{{ $key }}: {{ $profile }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The parts of a pod's spec that the agents and the pods that uninstall have in common. */}}
{{- define "weir.podPlacement" -}}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "weir.tolerations" -}}
{{- with . }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- define "weir.hostPath" -}}
- name: {{ .name }}
  hostPath:
    path: {{ .path }}
    type: {{ default "DirectoryOrCreate" .type }}
{{- end }}

{{- define "weir.cniMounts" -}}
- name: cni-bin
  mountPath: /host/bin
- name: cni-conf
  mountPath: /host/conf
{{- end }}

{{- /* Whether /metrics can be read without credentials from outside of the node. */}}
{{- define "weir.metricsAreOpen" -}}
{{- with .Values.metrics }}
{{- if and .enabled (eq .listen "node") (not .proxy.enabled) }}true{{ end }}
{{- end }}
{{- end }}

{{- define "weir.metricsAddress" -}}
{{- with .Values.metrics }}
{{- if .proxy.enabled -}}
127.0.0.1:{{ .proxy.upstreamPort }}
{{- else if eq .listen "loopback" -}}
127.0.0.1:{{ .port }}
{{- else -}}
0.0.0.0:{{ .port }}
{{- end }}
{{- end }}
{{- end }}

{{- define "weir.probe" -}}
{{- if eq .root.Values.health.probe "exec" -}}
exec:
  command: [/weir, watch, --probe, {{ .page }}, --health-addr={{ include "weir.healthAddress" .root }}]
{{- else -}}
httpGet:
  # The host's loopback: pods cannot connect to it.
  host: 127.0.0.1
  path: /{{ .page }}
  port: {{ .root.Values.health.port }}
{{- end }}
{{- end }}

{{- define "weir.healthAddress" -}}
{{- if eq .Values.health.probe "exec" -}}
unix:/run/weir/health.sock
{{- else -}}
127.0.0.1:{{ .Values.health.port }}
{{- end }}
{{- end }}

{{- define "weir.uninstallContainer" -}}
{{- $values := .root.Values -}}
- name: {{ .name }}
  {{- include "weir.containerImage" .root | nindent 2 }}
  args:
  - watch
  - --uninstall
{{- range .arguments }}
  - {{ . }}
{{- end }}
  - --bpffs={{ $values.paths.bpffs }}/weir
  - --cni-socket=/run/weir/cni.sock
  # The socket of agents with health.probe=exec: an earlier revision of the release may have had it.
  - --health-addr=unix:/run/weir/health.sock
  - --cni-bin-dir=/host/bin
  - --cni-conf-dir=/host/conf
  # Exists while the agents are installed: nothing is removed then.
  - --installed-file=/installed/agents
{{- if $values.uninstall.keepCniPlugin }}
  - --keep-cni-plugin
{{- end }}
  - --log-format={{ $values.logFormat }}
  {{- include "weir.securityContext" (dict "root" .root "capabilities" (list "BPF" "NET_ADMIN" "SYS_ADMIN")) | nindent 2 }}
  volumeMounts:
  - name: bpffs
    mountPath: {{ $values.paths.bpffs }}
  - name: run
    mountPath: /run/weir
  - name: cni-bin
    mountPath: /host/bin
  - name: cni-conf
    mountPath: /host/conf
  - name: installed
    mountPath: /installed
    readOnly: true
{{- end }}
