"""The ValidatingAdmissionPolicy for annotations, made from kroute's own table of them.

Values are told by regular expressions that RE2 (CEL's `matches`) and Python read alike, so that a test without an API
server can hold them against the parser. They are a little stricter than the parser: a number has at most two zeros in
front, and a name in `kroute.io/weights` has only the characters that names of nodes and zones have.
"""

from collections.abc import Iterable

from kroute.base.schedulers import BY_SHARE, IGNORE_WEIGHTS, IN_STEPS, SCHEDULER_FLAGS, SCHEDULERS
from kroute.planning.features import ANNOTATIONS
from kroute.planning.features.ejection import AFTER, HOLD
from kroute.planning.features.slow_start import MAX_SLOW_START
from kroute.planning.features.weights.text import FULL, LONGEST_NAME
from kroute.planning.options import MAX_PERSISTENCE_TIMEOUT, PREFIX
from kroute.planning.weight_facts import MAX_WEIGHT
from tests.lab.manifests import KUSTOMIZE

MANIFEST = KUSTOMIZE / "components/admission/annotations.yaml"

OWN_NAMES = {row.name: tuple(name for name in row.names if name.startswith(PREFIX)) for row in ANNOTATIONS}
"""The names with kroute's own prefix of each annotation. Other prefixes belong to others, who may mean more by them."""


def numbers(first: int, last: int) -> str:
    """A regular expression for the whole numbers from `first` to `last`, with up to two zeros in front."""
    parts = ["0"] if first == 0 else []
    first = max(first, 1)
    while first <= last:
        size = 1
        while first % (10 * size) == 0 and first + 10 * size - 1 <= last:
            size *= 10
        head, digit = divmod(first // size, 10)
        end = digit
        while end < 9 and first + (end - digit + 2) * size - 1 <= last:
            end += 1
        zeros = len(str(size)) - 1
        digits = f"[{digit}-{end}]" if end > digit else str(digit)
        parts.append(
            (str(head) if head else "") + digits + ("[0-9]" if zeros == 1 else f"[0-9]{{{zeros}}}" if zeros else "")
        )
        first += (end - digit + 1) * size
    return f"0{{0,2}}(?:{'|'.join(parts)})"


def _words(words: Iterable[str]) -> str:
    return "|".join(words)


def _seconds(first: int, last: int) -> str:
    """Times from `first` to `last` seconds, as `times.read_seconds` reads them."""
    parts = [f"{numbers(first, last)}s?", f"{numbers(-(-first // 60), last // 60)}m"]
    if last >= 3600 or first == 0:
        parts.append(f"{numbers(-(-first // 3600), last // 3600)}h")
    return f"(?:{'|'.join(parts)})"


def _flags(scheduler: str) -> str:
    """Flags that a scheduler has, in any number, separated by commas or white space."""
    words = _words(word for word, flag in SCHEDULER_FLAGS.items() if flag.scheduler in {None, scheduler})
    return rf"[\s,]*(?:(?:{words})(?:[\s,]+(?:{words}))*[\s,]*)?"


_SWITCH = "(?i:on|off|true|false)"
_OCTET = "(?:128|192|224|240|248|252|254|255)"
_MASK = rf"{_OCTET}\.0\.0\.0|255\.{_OCTET}\.0\.0|255\.255\.{_OCTET}\.0|255\.255\.255\.{_OCTET}"
_IPV4 = f"(?:{numbers(1, 32)}|{_MASK})"
_WEIGHT = rf"(?:zone|node)/[A-Za-z0-9._-]{{1,{LONGEST_NAME}}}\s*=\s*{numbers(0, MAX_WEIGHT)}"
_AFTER = rf"after \s*{_seconds(AFTER.start, AFTER.stop - 1)}"
_HOLD = rf"hold \s*{_seconds(HOLD.start, HOLD.stop - 1)}"

_OCTET_OF_ADDRESS = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_ADDRESS4 = rf"{_OCTET_OF_ADDRESS}(?:\.{_OCTET_OF_ADDRESS}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_SHORTENED = "|".join(f"(?:{_GROUP}:){{1,{before}}}(?::{_GROUP}){{1,{7 - before}}}" for before in range(1, 7))
_ADDRESS6 = f"(?:(?:{_GROUP}:){{7}}{_GROUP}|{_SHORTENED}|(?:{_GROUP}:){{1,7}}:|:(?::{_GROUP}){{1,7}}|::)"

VALUES = {
    "scheduler": _words(SCHEDULERS),
    "scheduler-flags": f"{_flags('sh')}|{_flags('mh')}",
    "persistence-timeout": numbers(0, MAX_PERSISTENCE_TIMEOUT),
    "persistence-netmask": rf"{_IPV4}|{numbers(33, 128)}|{_IPV4}\s*,\s*{numbers(1, 128)}",
    "hairpin": f"{_SWITCH}|",
    "skip-load-balancer-ips": f"{_SWITCH}|",
    "local": _SWITCH,
    "slow-start": _seconds(0, MAX_SLOW_START),
    "weights": rf"{_WEIGHT}(?:\s*,\s*{_WEIGHT})*",
    "locality": rf"prefer-(?:node|zone)(?:\s*,\s*spill\s+{numbers(1, FULL)}%)?",
    "ejection": "|".join((_SWITCH, _AFTER, _HOLD, rf"{_AFTER}\s*,\s*{_HOLD}", rf"{_HOLD}\s*,\s*{_AFTER}")),
    "direct-return": "tunnel",
    "advertise-cluster-ip": _SWITCH,
    "advertise-external-ip": _SWITCH,
    "advertise-loadbalancer-ip": _SWITCH,
    "load-balancer-ips": rf"{_ADDRESS4}(?:\s*,\s*{_ADDRESS6})?|{_ADDRESS6}(?:\s*,\s*{_ADDRESS4})?",
    "share-load-balancer-ip": "[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    "director-weight": "endpoints|equal",
}
"""What a value of each annotation may be, without the white space around it."""

FITTING = {
    "slow-start": IN_STEPS,
    "weights": tuple(it for it in SCHEDULERS if it not in IGNORE_WEIGHTS),
    "locality": BY_SHARE,
}
"""The schedulers with which an annotation has an effect."""


def pattern(name: str) -> str:
    """The regular expression for the values of `kroute.io/…`."""
    return rf"^\s*(?:{VALUES[name.removeprefix(PREFIX)]})\s*$"


def text() -> str:
    """The content of the manifest."""
    names = _map((alias, f"'{row.name}'") for row in ANNOTATIONS for alias in OWN_NAMES[row.name])
    values = _map((row.name, f"r'{pattern(row.name)}'") for row in ANNOTATIONS)
    allowed = _map((row.name, f'"{row.allowed}"') for row in ANNOTATIONS)
    fitting = _map((PREFIX + word, f"[{', '.join(map(repr, them))}]") for word, them in FITTING.items())
    [by_name] = [row.names for row in ANNOTATIONS if row.name == f"{PREFIX}scheduler"]
    own = ", ".join(map(repr, OWN_NAMES[f"{PREFIX}scheduler-flags"]))
    return _TEMPLATE.format(
        prefix=PREFIX,
        known=", ".join(row.name for row in ANNOTATIONS),
        names=names,
        values=values,
        allowed=allowed,
        fitting=fitting,
        schedulers=", ".join(map(repr, by_name)),
        flags=own,
    )


def _map(items: Iterable[tuple[str, str]]) -> str:
    """The inside of a map in CEL."""
    return ",\n".join(f"        '{key}': {value}" for key, value in items)


_TEMPLATE = """\
# Refuses annotations of Services that begin with {prefix} if kroute does not know them or their values
# (docs/annotations.md#admission). Made from kroute's table of annotations by tests/admission/policy.py.
# Only what a request adds or changes counts, so that nothing written before blocks other changes of a Service.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: annotations.kroute.io
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE, UPDATE]
      resources: [services]
  variables:
  - name: annotations
    expression: object.metadata.?annotations.orValue({{}})
  - name: before
    expression: "oldObject == null ? {{}} : oldObject.metadata.?annotations.orValue({{}})"
  - name: changed
    expression: >-
      variables.annotations.filter(k, k.lowerAscii().startsWith('{prefix}') &&
      (!(k in variables.before) || variables.before[k] != variables.annotations[k]))
  - name: names
    expression: |-
      {{
{names}
      }}
  - name: values
    expression: |-
      {{
{values}
      }}
  - name: allowed
    expression: |-
      {{
{allowed}
      }}
  - name: fitting
    expression: |-
      {{
{fitting}
      }}
  - name: unknown
    expression: variables.changed.filter(k, !(k in variables.names))
  - name: wrong
    expression: >-
      variables.changed.filter(k, k in variables.names &&
      !variables.annotations[k].matches(variables.values[variables.names[k]]))
  - name: schedulers
    expression: "[{schedulers}].filter(k, k in variables.annotations)"
  - name: scheduler
    expression: >-
      variables.schedulers.size() == 0 ||
      !variables.annotations[variables.schedulers[0]].matches(variables.values['{prefix}scheduler']) ? '' :
      variables.annotations[variables.schedulers[0]].trim()
  - name: unfit
    expression: >-
      variables.scheduler == '' || variables.changed.size() == 0 ? [] :
      variables.fitting.filter(k, k in variables.annotations && !(variables.scheduler in variables.fitting[k]) &&
      !variables.annotations[k].matches(r'^\\s*0+[smh]?\\s*$'))
  - name: flags
    expression: >-
      variables.scheduler == '' || variables.changed.size() == 0 ? [] :
      [{flags}].filter(k, k in variables.annotations &&
      ['sh', 'mh'].exists(s, variables.scheduler != s &&
      variables.annotations[k].matches('(^|[^a-z])' + s + '-')))
  validations:
  - expression: variables.unknown.size() == 0
    messageExpression: >-
      'annotation ' + variables.unknown.join(', ') + ' is not known to kroute. Known: {known}'
  - expression: variables.wrong.size() == 0
    messageExpression: >-
      'annotation ' + variables.wrong[0] + ' has a value that kroute does not know. Allowed: ' +
      variables.allowed[variables.names[variables.wrong[0]]]
  - expression: variables.unfit.size() == 0
    messageExpression: >-
      'annotation ' + variables.unfit[0] + ' has no effect with the scheduler ' + variables.scheduler +
      '. Choose one of ' + variables.fitting[variables.unfit[0]].join(', ')
  - expression: variables.flags.size() == 0
    messageExpression: >-
      'annotation ' + variables.flags[0] + ' has a flag of another scheduler than ' + variables.scheduler
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: annotations.kroute.io
spec:
  policyName: annotations.kroute.io
  validationActions: [Deny]
"""
