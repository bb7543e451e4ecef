{{/* The labels by which pods are selected. They never change. */}}
{{- define "kroute.selector" -}}
app.kubernetes.io/name: {{ . }}
{{- end }}

{{/* The labels of every object. Its argument: the root, the name. */}}
{{- define "kroute.labels" -}}
{{- $root := index . 0 -}}
{{ include "kroute.selector" (index . 1) }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "kroute.account" -}}
{{ .Values.serviceAccount.name | default "kroute" }}
{{- end }}

{{/* The variables of the settings. YAML takes `on` and `off` for true and false. */}}
{{- define "kroute.settings" -}}
{{- $words := list "strict-arp" "hairpin" "ipvs-estimation" "healthz-bind-address" "metrics-bind-address"
  "own-bind-address" -}}
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

{{/* The port of an address, or nothing if it is `off`. */}}
{{- define "kroute.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end }}

{{/* `host: ADDRESS, ` for a probe of one address of the node, which the kubelet would not ask by itself; nothing for
every address. */}}
{{- define "kroute.host" -}}
{{- $host := regexFind "^.*:" . | trimSuffix ":" | trimAll "[]" -}}
{{- if and $host (not (has $host (list "0.0.0.0" "::"))) }}host: {{ $host | quote }}, {{ end -}}
{{- end }}

{{/* Which nodes have kroute's pod, and BIRD's. */}}
{{- define "kroute.nodes" -}}
{{- $own := .Values.migration.byLabel | ternary (dict "kroute.io/service-proxy" "kroute") dict -}}
{{- merge $own .Values.nodeSelector | toYaml -}}
{{- end }}

{{/* What the pods of all DaemonSets have. Where the reasons are: deploy/kustomize/base/daemonset.yaml. Its argument: the
root, node selector, affinity. */}}
{{- define "kroute.pod" -}}
{{- $root := index . 0 -}}
priorityClassName: {{ $root.Values.priorityClassName }}
hostNetwork: true
dnsPolicy: Default
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with index . 1 }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with index . 2 }}
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
{{- end }}

{{/* Its argument: the root, `serve` or the mode in its place. */}}
{{- define "kroute.init-containers" -}}
{{- $root := index . 0 -}}
{{- $serves := eq (index . 1) "serve" -}}
{{- $further := $serves | ternary $root.Values.extraInitContainers list }}
{{- if or $root.Values.loadModules $further }}
initContainers:
{{- if $root.Values.loadModules }}
- name: load-modules
  {{- include "kroute.container" $root | nindent 2 }}
  command: [modprobe, --all, ip_vs, dummy{{ if and $root.Values.iptables $serves }}, ip_set{{ end }}]
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
{{- with $further }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "kroute.container" -}}
{{- include "kroute.image" (merge (dict "tag" (.Values.image.tag | default .Chart.AppVersion)) .Values.image) }}
{{- end }}

{{/* Its argument: an image as in the values. */}}
{{- define "kroute.image" -}}
image: {{ .repository }}{{ ternary (printf "@%s" .digest) (printf ":%s" .tag) (ne .digest "") }}
{{- with .pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- define "kroute.cni" -}}
{{- get .Values.settings "cni-directory" | default "/etc/cni/net.d" }}
{{- end }}

{{- define "kroute.env" -}}
- name: KROUTE_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: KROUTE_PROC_SYS
  value: /host/proc/sys
{{- end }}
