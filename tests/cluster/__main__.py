"""`python -m tests.cluster [COMMAND...]`: a cluster for as long as a command runs beside its nodes, or a shell."""

import os
import shlex
import signal
import subprocess
import sys
import time

from tests.cluster import guest_commands
from tests.cluster.ended import RUNNING
from tests.cluster.installation import install
from tests.cluster.machines import Cluster, ClusterError, missing
from tests.lab.vm.machine import MachineError

_WELCOME = """
A cluster of Kubernetes with two nodes and a control plane, and kroute on each node, by its Helm chart.
kubectl, helm, kroute and `kubectl kroute` are set up for it. This shell is on the wire, beside the nodes:

{places}

  kubectl get nodes --output wide
  kubectl kroute status
  on node1 ipvsadm -Ln        run a command as root in a machine; on control, too
  ls {logs}                   what each component says
  exit                        leave, and remove it all
"""

_RC = """
PS1='cluster# '
declare -A hosts=({hosts})
on() {{ {on} "${{hosts[$1]:?no such machine}}" "${{*:2}}"; }}
"""
_ON = shlex.join([sys.executable, guest_commands.__file__])


def main(command: list[str]) -> int:
    """Start a cluster with kroute, run the command, and end the cluster."""
    if (said := missing()) is not None:
        print(said, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    RUNNING.parent.mkdir(exist_ok=True)
    RUNNING.write_text(f"{os.getpid()}\n")
    try:
        print("making the images, which takes minutes at first ...", flush=True)
        made = Cluster()
        print("starting a cluster ...", flush=True)
        begun = time.monotonic()
        with made as cluster:
            print(f"the nodes are ready after {time.monotonic() - begun:.0f} s", flush=True)
            install(cluster)
            print(f"all of it is ready after {time.monotonic() - begun:.0f} s", flush=True)
            return _run(cluster, command)
    except (ClusterError, MachineError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        RUNNING.unlink(missing_ok=True)


def _run(cluster: Cluster, command: list[str]) -> int:
    if not command:
        places = "\n".join(f"  {host.name:<8} {'  '.join(host.place.addresses)}" for host in cluster.hosts)
        print(_WELCOME.format(places=places, logs=cluster.control.log("*")))
        startup = cluster.directory / "bashrc"
        startup.write_text(_RC.format(hosts=" ".join(f"[{it.name}]={it.address}" for it in cluster.hosts), on=_ON))
        command = ["bash", "--rcfile", str(startup), "-i"]
    with cluster.wire.inside():
        return subprocess.run(command, env=cluster.environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
