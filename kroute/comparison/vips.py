"""VIPs on the dummy interface. An address is bound or not; the source towards it is the source route's matter."""

from kroute.model.plan import Vip


def agrees(_applied: Vip, _desired: Vip) -> bool:
    """Whether the address is as desired: it is, since it is bound."""
    return True


def differences(desired: Vip | None, *, is_bound: bool) -> list[str]:
    """What is not as desired of an address. One that is bound and that no plan names may be excluded: no word of it."""
    return [f"address {desired.address} is not bound"] if desired is not None and not is_bound else []


def describe_drift(address: str, applied: Vip | None) -> str:
    """What a resync has found."""
    return f"address {address} is not wanted" if applied else f"address {address} was missing"
