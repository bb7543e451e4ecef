"""The checks of `kroute check` on the node. They change nothing, but load modules and tables as a start does."""

import socket
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from kroute.checks import preflight
from kroute.checks.bird_checks import check_bird
from kroute.checks.finding import Finding, Level, failed, ok, warning
from kroute.checks.neighbours import calico_traces, check_calico, check_host_firewall, check_marks, uses_of_marks
from kroute.checks.other_proxies import Trace, leftovers
from kroute.checks.policy_enforcers import POLICIES, Presence, check_enforcers, examples, present
from kroute.checks.preflight import Required
from kroute.controllers.ipvs.sysctls import Circumstances, Row, node_rows
from kroute.firewall.backend import BACKENDS, clients_of, firewall_of, settled_on
from kroute.firewall.protocol import Firewall
from kroute.kernel import modules
from kroute.kernel.clients import IpvsClient, LinkClient, SysctlClient
from kroute.kernel.cni import PLUGIN_DIRECTORIES, others_before
from kroute.kernel.mounts import VOLATILE, file_system_of
from kroute.kernel.net.policy_routing import PolicyRouting
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import NftChain
from kroute.kernel.node_kernel import ClientName, NodeKernel, open_kernel
from kroute.kernel.sysctl import Sysctls
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts, NodeInterfaces
from kroute.model.objects import Node
from kroute.reconcile.ledger import Ledger, LedgerError
from kroute.settings import DEFAULTS, OFF, Settings

BACKEND, SYSCTL, PROXIES, NODE, STATE = "backend", "sysctls", "proxies", "node", "state"


async def check_node(settings: Settings, *, ipv6: bool) -> list[Finding]:
    """Check everything on the node itself. `ipv6`: whether the node serves that family."""
    choice, failures = await preflight.look_at_node(settings)
    fulfilled = {
        preflight.CAPABILITIES: "the process has those that it needs",
        preflight.MODULES: "those that kroute needs are loaded or can be",
        **({BACKEND: str(choice)} if choice is not None else {}),
    }
    failing = {failure.check for failure in failures}
    findings = [*failures, *(ok(check, sentence) for check, sentence in fulfilled.items() if check not in failing)]
    findings += [*check_state_directory(settings.state_dir), *await check_scheduler(settings.usual_scheduler)]
    findings += [*await check_direct_return(settings, ipv6=ipv6), *await check_bird(settings)]
    findings += await check_pod_network(settings, ipv6=ipv6)
    circumstances = Circumstances(modules.kernel_version(), ipv6, settings.strict_arp)
    findings += check_sysctls(Sysctls(settings.proc_sys), circumstances, node_rows(settings))
    if failures or choice is None:
        return findings  # without capabilities and modules the kernel does not answer the other checks
    settings = settled_on(settings, choice.name)
    reads_legacy = preflight.has_capability("NET_RAW")
    async with open_kernel(only=_clients(settings)) as kernel, Nftables() as nftables:
        findings += await check_firewall(firewall_of(settings, kernel), ipv6=ipv6)
        findings += await check_policies(settings, Sysctls(settings.proc_sys), kernel.links, ipv6=ipv6)
        overrules = BACKENDS[choice.name].overrules
        nft_chains = await nftables.chains()
        findings += await check_host_firewall(nft_chains, overrules=overrules, reads_legacy=reads_legacy)
        async with PolicyRouting() as routing:
            uses = await uses_of_marks(
                nftables, await nftables.tables(), await routing.rules(), reads_legacy=reads_legacy
            )
        findings += check_marks(settings, uses)
        findings.append(await check_bridges(Sysctls(settings.proc_sys), kernel.links, ipv6=ipv6))
        findings += await check_other_programs(settings, kernel, nft_chains)
        if settings.network_policies:
            findings += check_enforcers(await other_enforcers(kernel, nft_chains))
    return findings


def _clients(settings: Settings) -> set[ClientName]:
    """Those of the firewall, and those that show what other programs have."""
    return {"ipvs", "links", "ipset", "xtables", *clients_of(settings)}


def check_state_directory(path: Path) -> list[Finding]:
    """Whether the ledger is lost with the kernel's state, as it must be."""
    kind = file_system_of(path)
    if not kind or kind in VOLATILE:
        return []
    lost = "its ledger would name what the kernel has lost"
    message = f"--state-dir {path} is on {kind}, which survives a reboot: {lost}"
    return [warning(STATE, message, f"use a directory on a tmpfs, such as {DEFAULTS.state_dir}")]


async def check_scheduler(name: str) -> list[Finding]:
    """Whether the kernel has the scheduler of Services without annotation."""
    if not await modules.load([f"ip_vs_{name}"]):
        return []
    message = f"kernel module ip_vs_{name} of the default scheduler is not loaded and cannot be loaded from here"
    step = f"run `modprobe ip_vs_{name}` on the node, or choose another one with --scheduler"
    return [warning(preflight.MODULES, message, step)]


def check_sysctls(sysctls: SysctlClient, circumstances: Circumstances, rows: Iterable[Row]) -> list[Finding]:
    """Whether each sysctl has the value that IPVS needs or a setting asks for, or can be set."""
    rows = [row for row in rows if row.when(circumstances)]
    failures = []
    for row in rows:
        value = sysctls.read(row.name)
        if value is None and not row.optional:
            failures.append(failed(SYSCTL, f"{row.name} does not exist", row.absent))
        elif value is not None and not row.is_met_by(value) and not sysctls.is_writable(row.name):
            least = "at least " if row.at_least else ""
            message = f"{row.name} is {value}, must be {least}{row.value} ({row.meaning}), and cannot be set from here"
            next_step = f"run `sysctl -w {row.name}={row.value}` on the node, or mount its /proc/sys/net writable"
            failures.append(failed(SYSCTL, message, next_step))
    return failures or [ok(SYSCTL, f"all {len(rows)} are as they should be, or kroute can set them")]


async def check_firewall(firewall: Firewall, *, ipv6: bool) -> list[Finding]:
    """Whether the kernel has what the firewall needs. A family that is not served only causes a warning."""
    name, missing, fulfilled = await firewall.prerequisites()
    found = []
    for family, sentences in missing.items():
        level = Level.FAIL if family is Family.IPV4 or ipv6 else Level.WARNING
        for sentence in sentences:
            message, _, next_step = sentence.rpartition("; ")
            found.append(Finding(name, level, message or sentence, next_step))
    return found or [ok(name, fulfilled)]


def check_proxies(found: Iterable[Trace]) -> list[Finding]:
    """Whether another service proxy runs, or ran, on the node."""
    findings = []
    for proxy, traces in groupby(sorted(found), key=lambda trace: trace.proxy):
        message = f"{proxy} is or was at work here: {', '.join(trace.what for trace in traces)}"
        stop = f"stop {proxy} here, then run `kroute migrate --from {proxy}`"
        findings.append(warning(PROXIES, message, f"two proxies answer for the same addresses: {stop}"))
    return findings or [ok(PROXIES, "no trace of kube-proxy or kube-router")]


async def check_other_programs(settings: Settings, kernel: NodeKernel, nft_chains: Sequence[NftChain]) -> list[Finding]:
    """Whether other service proxies and what they made are here, and whether neighbours find what they expect."""
    try:
        ledger = Ledger.open(settings.state_dir)
    except LedgerError as error:
        return [failed(PROXIES, str(error), "run kroute as the user that the agent runs as")]
    findings = check_proxies(await leftovers(kernel, nft_chains, ledger.links))
    findings.append(await check_virtual_servers(ledger, kernel.ipvs))
    findings.append(check_calico(await calico_traces(kernel, nft_chains), settings.dummy_interface))
    return findings


async def check_virtual_servers(ledger: Ledger, ipvs: IpvsClient) -> Finding:
    """Whether there are virtual servers that kroute has not made and will not change."""
    foreign = sorted(key for key in await ipvs.read() if key not in ledger.virtual_servers)
    if not foreign:
        return ok(PROXIES, "every virtual server in IPVS is kroute's own")
    _, address, port = foreign[0]
    example = f"one is on {address} port {port}"
    message = f"{len(foreign)} virtual servers are not kroute's own ({example}) and stay as they are"
    return warning(PROXIES, message, "delete them with `ipvsadm -D` if nobody needs them, else keep Services off them")


def check_node_addresses(
    node: Node | None, facts: NodeFacts, interfaces: NodeInterfaces, unknown: str = ""
) -> list[Finding]:
    """Whether the Node object exists and its addresses are on the node.

    `unknown` is why it is not known whether the Node exists, empty if it is known.
    """
    findings = []
    if unknown:
        message = f"whether there is a Node {facts.name} is not known: {unknown}"
        findings.append(warning(NODE, message, "first correct what failed"))
    elif node is None:
        message = f"there is no Node {facts.name}: zone and podCIDRs are not known"
        next_step = "give the Node's name with --node-name, or wait until the kubelet made it"
        findings.append(failed(NODE, message, next_step))
    own = [address for address in (facts.ipv4, facts.ipv6) if address is not None]
    if not own and not unknown:
        message = "no address of this node is known: its own calls to Services will have a VIP as their source"
        findings.append(failed(NODE, message, "give --node-ip, or an address to an interface"))
    for address in own:
        if address in interfaces.own:
            findings.append(ok(NODE, f"{address} is the node's own address, and on an interface"))
        else:
            message = f"{address} is said to be the node's own, and is on no interface"
            findings.append(failed(NODE, message, "correct --node-ip or the Node's InternalIP, or add the address"))
    return findings


async def other_enforcers(kernel: NodeKernel, nft_chains: Sequence[NftChain]) -> list[Presence]:
    """Who else enforces network policies here, by chains of whatever variant of iptables, tables and links."""
    legacy = [client for variant, client in kernel.xtables.items() if variant.name == "legacy"]
    chains = {name for client in legacy for name in await client.chains("filter")}
    chains |= {chain.name for chain in nft_chains}
    return list(present(examples(chains, {chain.table for chain in nft_chains})))


BRIDGES = "bridges"
CALLED4, CALLED = "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"
"""br_netfilter's switches for IPv4 and IPv6; they exist while the module is loaded."""


async def check_bridges(sysctls: SysctlClient, links: LinkClient, *, ipv6: bool) -> Finding:
    """Look whether the kernel loses large IPv6 datagrams of pods on a bridge.

    With br_netfilter the fragments are put together on the bridge, before the node's own IPv6. What that notes of their
    size is cleared on the way (ip6_rcv_core), and IPVS takes the whole for one packet above the MTU: it answers "packet
    too big" instead of sending it in fragments again. IPv4 has no such note and fragments again.
    """
    if not ipv6 or sysctls.read(CALLED) != "1":
        return ok(BRIDGES, "large IPv6 datagrams of pods reach Services")
    if not (bridges := await _bridges(links)):
        return ok(BRIDGES, "this node has no bridge, so large IPv6 datagrams of pods reach Services")
    where = f"from pods on {bridges} to Services"
    return warning(
        BRIDGES,
        f"IPv6 datagrams above the MTU {where} are lost ({CALLED} is 1)",
        f"keep datagrams small (DNS: EDNS 1232), or without network policies set {CALLED} to 0 where pods of one "
        "bridge need no Service of each other's, or with --masquerade-all (docs/troubleshooting.md)",
    )


async def _bridges(links: LinkClient) -> str:
    """The names of this node's bridges."""
    names = [name for _, name in socket.if_nameindex()]
    return ", ".join(
        sorted([name for name in names if (link := await links.read(name)) is not None and link.kind == "bridge"])
    )


async def check_policies(settings: Settings, sysctls: SysctlClient, links: LinkClient, *, ipv6: bool) -> list[Finding]:
    """Whether network policies hold on this node, if they are asked for: also between two pods of one bridge."""
    if not settings.network_policies:
        return []
    off = [name for name in (CALLED4, *([CALLED] if ipv6 else [])) if sysctls.read(name) != "1"]
    if not off or not (bridges := await _bridges(links)):
        return [ok(POLICIES, "all packets to and from the node's pods meet them")]
    message = f"packets between two pods of one bridge ({bridges}) do not meet them: {' and '.join(off)} must be 1"
    return [warning(POLICIES, message, "load br_netfilter and set this on the node (docs/network-policies.md)")]


DIRECT_RETURN = "direct return"
DIRECT_RETURN_CAPABILITIES = {
    "SYS_PTRACE": "to see the network namespaces of other processes",
    "SYS_ADMIN": "to enter them",
}
"""What direct return needs in addition, and the purpose."""
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The same on every machine (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""
_PAGE = "see docs/direct-return.md"


async def check_direct_return(settings: Settings, *, ipv6: bool, proc: Path = Path("/proc")) -> list[Finding]:
    """Whether this process may prepare the node's pods for direct return, and the kernel has the tunnels.

    Nothing is looked at without `--direct-return`. `ipv6`: as in `check_node`. What is missing is only a warning:
    without direct return, Services are served by address translation.
    """
    if not settings.direct_return:
        return []
    tunnels = ("ipip", "ip6_tunnel") if ipv6 else ("ipip",)
    required = Required(DIRECT_RETURN_CAPABILITIES, dict.fromkeys(tunnels, "the end of a tunnel in a pod"))
    missing = await preflight.findings(required, proc)
    consequence = f"without, pods here are not prepared ({_PAGE})"
    found = [warning(DIRECT_RETURN, each.message, f"{each.next_step}; {consequence}") for each in missing]
    if str((proc / "self/ns/pid").readlink()) != INITIAL_PID_NAMESPACE:
        message = "the processes of the node's pods cannot be seen from this PID namespace"
        found.append(warning(DIRECT_RETURN, message, f"set hostPID in the pod, {_PAGE}"))
    return found or [ok(DIRECT_RETURN, "pods here can be prepared")]


POD_NETWORK = "pod network"
PLUGINS = ("bridge", "host-local", "portmap")
"""The CNI plugins that kroute's configuration names."""


async def check_pod_network(
    settings: Settings, *, ipv6: bool, plugin_directories: Iterable[Path] = PLUGIN_DIRECTORIES
) -> list[Finding]:
    """Whether container runtimes can give pods kroute's network, and the kernel has the tunnels.

    Nothing is looked at without `--pod-network`. `ipv6`: as in `check_node`.
    """
    if not settings.pod_network:
        return []
    page, found = "see docs/pod-network.md", []
    directories = list(plugin_directories)
    missing = [name for name in PLUGINS if not any((directory / name).exists() for directory in directories)]
    if missing:
        message = f"the CNI plugins {', '.join(missing)} are in none of {', '.join(map(str, directories))}"
        found.append(warning(POD_NETWORK, message, f"install them where the container runtime looks for them; {page}"))
    try:
        before = others_before(settings.cni_file)
    except FileNotFoundError:
        before = []
    except OSError as error:
        message = f"{settings.cni_directory} cannot be read: {error.strerror}"
        found.append(warning(POD_NETWORK, message, f"correct --cni-directory; {page}"))
    else:
        if before:
            message = f"container runtimes read {before[0]} in {settings.cni_directory}, and not kroute's configuration"
            found.append(warning(POD_NETWORK, message, f"delete it once its network plugin has ended; {page}"))
    tunnels = [] if settings.overlay == OFF else ["ipip", *(["ip6_tunnel"] if ipv6 else [])]
    tunnels += ["fou", *(["fou6"] if ipv6 else [])] if settings.tunnel_port else []
    lacking = await preflight.findings(Required({}, dict.fromkeys(tunnels, "tunnels to other nodes")))
    found += [warning(POD_NETWORK, it.message, f"{it.next_step}; or --overlay off, {page}") for it in lacking]
    return found or [ok(POD_NETWORK, "container runtimes have what they need to give pods kroute's network")]
