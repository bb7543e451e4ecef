{{- define "kroute.labels" -}}
app.kubernetes.io/name: {{ . }}
{{- end }}

{{- define "kroute.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The variables of the settings. YAML takes `on` and `off` for true and false. */}}
{{- define "kroute.settings" -}}
{{- $words := list "strict-arp" "hairpin" "ipvs-estimation" "healthz-bind-address" "metrics-bind-address" -}}
{{- range $name, $value := .Values.settings }}
{{- if kindIs "slice" $value }}{{ $value = join "," $value }}{{ end }}
{{- if and (kindIs "bool" $value) (has $name $words) }}{{ $value = ternary "on" "off" $value }}{{ end }}
{{- if kindIs "float64" $value }}{{ $value = int64 $value }}{{ end }}
KROUTE_{{ $name | replace "-" "_" | upper }}: {{ toString $value | quote }}
{{- end }}
{{- end }}

{{/* The URLs of several API servers. Each is HOST, HOST:PORT or an IPv6 address, which has brackets if a port follows.
Its argument: apiServer. */}}
{{- define "kroute.apiServers" -}}
{{- $urls := list -}}
{{- range .hosts -}}
{{- $host := ternary (printf "[%s]" .) . (regexMatch "^[^\\[]*:[^\\[]*:" .) -}}
{{- $urls = append $urls (printf "https://%s%s" $host (ternary "" (printf ":%v" $.port) (regexMatch "[^:\\[]:[0-9]+$|\\]:[0-9]+$" $host))) -}}
{{- end -}}
{{- join "," $urls -}}
{{- end }}

{{/* The port of an address setting, or nothing if it is off. Its argument: settings, name, default. */}}
{{- define "kroute.port" -}}
{{- $value := index . 2 -}}
{{- if hasKey (index . 0) (index . 1) }}{{ $value = get (index . 0) (index . 1) }}{{ end -}}
{{- regexFind "[0-9]+$" (toString $value) -}}
{{- end }}

{{/* `host: ADDRESS, ` for a probe where an address setting is one address of the node, which the kubelet would not ask
by itself; nothing where it is every address. Its argument: settings, name. */}}
{{- define "kroute.host" -}}
{{- $host := get (index . 0) (index . 1) | toString | regexFind "^.*:" | trimSuffix ":" | trimAll "[]" -}}
{{- if and $host (not (has $host (list "0.0.0.0" "::"))) }}host: {{ $host | quote }}, {{ end -}}
{{- end }}

{{/* What both DaemonSets' pods have. Where the reasons are: deploy/kustomize/base/daemonset.yaml. */}}
{{- define "kroute.pod" -}}
priorityClassName: system-node-critical
hostNetwork: true
dnsPolicy: Default
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  seccompProfile:
    type: RuntimeDefault
  seLinuxOptions:
    type: spc_t
{{- if .Values.loadModules }}
initContainers:
- name: load-modules
  {{- include "kroute.container" . | nindent 2 }}
  command: [modprobe, --all, ip_vs, dummy{{ if and .Values.iptables (eq .Values.mode "serve") }}, ip_set{{ end }}]
  resources:
    requests: {cpu: 10m, memory: 16Mi}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
      add: [SYS_MODULE]
  volumeMounts:
  - {name: modules, mountPath: /lib/modules, readOnly: true}
{{- end }}
{{- end }}

{{- define "kroute.container" -}}
image: {{ include "kroute.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- define "kroute.env" -}}
- name: KROUTE_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: KROUTE_PROC_SYS
  value: /host/proc/sys
{{- end }}
