"""Values of each annotation, right and wrong ones. What kroute thinks of them is the parser's to say."""

from collections.abc import Mapping

from kroute.base.schedulers import SCHEDULER_FLAGS, SCHEDULERS
from kroute.model.plan import Problem
from kroute.planning.features import ANNOTATION_NAMES
from kroute.planning.options import PREFIX
from tests.builders import facts, plan_service, service, settings

_SWITCHES = ("on", "off", "true", "FALSE", "On", "yes", "1", " on ", "", "onn")
_NUMBERS = ("", "0", "00", "000", "1", "01", "24", "-1", "1.5", "1_0", "+1", "0x10", "\u0663", "9" * 30)

VALUES = {
    "scheduler": (*SCHEDULERS, " lc\n", "fastest", "", "RR", "wrr,rr", "rr2"),
    "scheduler-flags": (
        *SCHEDULER_FLAGS,
        *("", "flag-1,flag-2", " mh-fallback , mh-port,", "flag-1 flag-2", "sh-port,none", ",", "flag-4"),
        *("mh-port;mh-fallback", "flag-1flag-2", "mh-port,sh-port"),
    ),
    "persistence-timeout": (*_NUMBERS, "600", "10m", "2678399", "2678400", "2678401", "2700000", "10000000"),
    "persistence-netmask": (
        *_NUMBERS,
        *("32", "33", "64", "128", "129", "255.255.255.0", "255.255.240.0", "128.0.0.0", "255.255.255.255"),
        *("255.0.255.0", "255.255.255.256", "0.0.0.0", "/24", "24,64", "24 , 64", "255.255.255.0, 56", "32,16"),
        *("33,64", "24,129", "24,", ",64", "64,24,1", "24,0", "ffff::"),
    ),
    "hairpin": _SWITCHES,
    "skip-load-balancer-ips": _SWITCHES,
    "local": _SWITCHES,
    "slow-start": (*_NUMBERS, "30", "30s", "5m", "60m", "61m", "1h", "2h", "0h", "0s", "3600", "3601", "30 s", "1d"),
    "weights": (
        *("zone/a=3", "node/n1.example=0", "zone/a=3,node/n1=2", " zone/a = 3 , zone/b=65535", "zone/a=007"),
        *("", "zone/a", "zone/a=65536", "zone/a=-1", "zone/=1", "rack/a=1", "zone/a=3,", "zone/a=3 zone/b=1", "a=1"),
        *("zone/a=3;zone/b=2", "zone/a==3", "zone/a=1,?"),
    ),
    "locality": (
        *("prefer-node", "prefer-zone", "prefer-node, spill 80%", "prefer-zone,spill  1%", "prefer-node , spill 100%"),
        *("", "near", "prefer-node,", "prefer-node spill 80%", "prefer-node, spill 0%", "prefer-node, spill 101%"),
        *("prefer-node, spill 80", "prefer-node, spill", "prefer-node, spill 80%, spill 90%", "prefer-nodes"),
    ),
    "ejection": (
        *("on", "off", "ON", "after 5s", "after 300", "after 5m", "hold 1h", "after 10s, hold 1m", "hold 5 , after 5s"),
        *("", "yes", "after", "after 4s", "after 301s", "after 6m", "hold 2h", "after 5s, after 5s", "5s", "until 5s"),
        *("after 5s hold 30s", ",,", "hold 61m", "hold 3601", "after 1h"),
    ),
    "direct-return": ("tunnel", " tunnel", "", "on", "Tunnel", "tunnels"),
    "advertise-cluster-ip": _SWITCHES,
    "advertise-external-ip": _SWITCHES,
    "advertise-loadbalancer-ip": _SWITCHES,
    "load-balancer-ips": (
        *("192.0.2.1", "2001:db8::1", "192.0.2.1,2001:db8::1", " 2001:DB8::1 , 192.0.2.1 ", "::", "1::", "::1"),
        *("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::3:4:5:6:7:8", "1:2:3::6:7:8", "0.0.0.0"),
        *("", "192.0.2", "192.0.2.256", "192.0.2.01", "192.0.2.1/32", "192.0.2.1,192.0.2.2", "192.0.2.1 2001:db8::1"),
        *("2001:db8::1,2001:db8::2", "192.0.2.1,", ",192.0.2.1", "192.0.2.1,2001:db8::1,192.0.2.2", "fe80::1%eth0"),
        *("1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1::2::3", ":1", "12345::", "1:2:3:4:5:6:7:8::", "any", "g::"),
    ),
    "share-load-balancer-ip": (
        *("web", "a", "A.b-c_d", "x" * 63, " web "),
        *("", "x" * 64, "-web", "web.", "a b", "a/b", "web,dns"),
    ),
    "director-weight": ("endpoints", "equal", "", "heavy", "Equal"),
}
"""The values, by the name without the prefix."""

TOGETHER = (
    {"scheduler": "rr", "slow-start": "30s"},
    {"scheduler": "rr", "slow-start": "0"},
    {"scheduler": "wlc", "slow-start": "30s"},
    {"scheduler": "sh", "slow-start": "30s"},
    {"scheduler": "lc", "weights": "zone/a=3"},
    {"scheduler": "fo", "weights": "zone/a=3"},
    {"scheduler": "fo", "locality": "prefer-node"},
    {"scheduler": "sh", "locality": "prefer-node"},
    {"scheduler": "sh", "scheduler-flags": "sh-port,flag-1"},
    {"scheduler": "mh", "scheduler-flags": "sh-port"},
    {"scheduler": "rr", "scheduler-flags": "mh-port"},
    {"scheduler": "rr", "scheduler-flags": "flag-1,none"},
    {"slow-start": "30s", "weights": "zone/a=3", "locality": "prefer-zone"},
)
"""Annotations of which one may prevent another, by their names without the prefix."""

ANNOTATIONS: tuple[dict[str, str], ...] = (
    *({PREFIX + name: value} for name, values in VALUES.items() for value in values),
    *({PREFIX + name: value for name, value in each.items()} for each in TOGETHER),
    *({name: "\\?"} for name in sorted(ANNOTATION_NAMES) if name.startswith(PREFIX)),
    {"service.scheduler": "rr", "kroute.io/slow-start": "30s"},
    {"kube-router.io/service.scheduler": "mh", "service.scheduler": "rr", "kroute.io/slow-start": "30s"},
    {"kroute.io/service.scheduler": "wrr", "kroute.io/scheduler": "rr", "kroute.io/slow-start": "30s"},
    {"kroute.io/schedular": "rr"},
    {"kroute.io/weight": "3"},
    {"kube-router.io/service.scheduler": "fastest", "kroute.io/slow-start": "30s"},
    {"Kroute.IO/scheduler": "rr"},
    {"kroute.io/Scheduler": "rr"},
    {"kroute.io/service.weights": "zone/a=3"},
    {"kroute.example/schedular": "rr", "example.org/kroute.io": "x", "schedular": "rr"},
    {"kube-router.io/service.advertise.clusterip": "true"},
    {},
)


def complaints(annotations: Mapping[str, str]) -> list[Problem]:
    """What kroute complains of in these annotations of a Service, whatever `--scheduler` is."""
    plans = (
        plan_service(service(annotations=annotations), (), facts(), settings(scheduler=scheduler))
        for scheduler in ("auto", "sh", "mh")
    )
    return min(([it for it in plan.problems if it.reason != "NoDirectReturn"] for plan in plans), key=len)
