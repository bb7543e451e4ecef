"""VIPs on the dummy interface. An address is bound or not. A VIP's source belongs to its source route."""

from collections.abc import Collection

from kroute.model.plan import Vip


def agrees(_applied: Vip, _desired: Vip) -> bool:
    """Whether the address is as desired: a bound address always is."""
    return True


def differences(desired: Vip | None, *, is_bound: bool) -> list[str]:
    """What is not as desired of an address. An address that is bound and in no plan is left out."""
    return [f"address {desired.address} is not bound"] if desired is not None and not is_bound else []


def delivery_differences(address: str, direct: Collection[str], *, is_steered: bool) -> list[str]:
    """What is not as desired of the delivery of packets to an address. `direct` are the addresses on no link."""
    if address in direct and not is_steered:
        return [f"packets to {address} are not delivered to this node, as direct return needs"]
    if is_steered and address not in direct:
        return [f"packets to {address} are delivered by direct return, which is not planned"]
    return []


def describe_drift(address: str, applied: Vip | None) -> str:
    """The drift of an address in one sentence."""
    return f"address {address} is not wanted" if applied else f"address {address} was missing"
