"""The variables that a kubelet puts into pods for a Service (pkg/kubelet/envvars/envvars.go)."""

from collections.abc import Mapping


def variables_of_a_service(name: str, address: str, ports: Mapping[str, int], protocol: str = "TCP") -> dict[str, str]:
    prefix = name.upper().replace("-", "_")
    first = next(iter(ports.values()))
    scheme = protocol.lower()
    found = {
        f"{prefix}_SERVICE_HOST": address,
        f"{prefix}_SERVICE_PORT": str(first),
        f"{prefix}_PORT": f"{scheme}://{address}:{first}",
    }
    for port_name, number in ports.items():
        found[f"{prefix}_SERVICE_PORT_{port_name.upper().replace('-', '_')}"] = str(number)
        key = f"{prefix}_PORT_{number}_{protocol}"
        found |= {
            key: f"{scheme}://{address}:{number}",
            f"{key}_PROTO": scheme,
            f"{key}_PORT": str(number),
            f"{key}_ADDR": address,
        }
    return found
