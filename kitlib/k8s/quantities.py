"""Kubernetes quantities, ``500m`` and ``2Gi``: parsed, checked, and formatted for tables. Pure."""

import re

from kitlib.errors import BadInput
from kitlib.k8s.manifests import Object

GPU = "nvidia.com/gpu"
_SUFFIXES = {"": 1, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SUFFIXES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(n|u|m|k|M|G|T|Ki|Mi|Gi|Ti)?")


def parse_quantity(quantity: str | int | float) -> float:
    """Convert a quantity to a number.

    Example:
        >>> parse_quantity("500m"), parse_quantity("2Gi")
        (0.5, 2147483648.0)
    """
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"not a Kubernetes quantity: {quantity!r}")
    return float(match[1]) * _SUFFIXES[match[2] or ""]


def allocatable(node: Object, kind: str) -> float:
    """Read how much of ``cpu``, ``memory`` or GPUs, a DRA driver's too, a node's pods may have together."""
    status = node.get("status") or {}
    return parse_quantity(((status.get("capacity") or {}) | (status.get("allocatable") or {})).get(kind, "0"))


def requested(spec: Object, kind: str, part: str = "requests") -> float:
    """Compute the request of a pod's spec for a resource, or its ``limits``; a lone limit is the request.

    Its containers run together, and its initial ones before them, each alone.
    """

    def of(container: Object) -> float:
        own = container.get("resources") or {}
        amounts = (own.get("limits") or {}) | ((own.get("requests") or {}) if part == "requests" else {})
        return parse_quantity(amounts.get(kind, 0))

    together = sum(of(container) for container in spec.get("containers") or ())
    return max([together, *(of(container) for container in spec.get("initContainers") or ())])


def check_quantity(value: object, *, what: str, example: str) -> str | None:
    """Check that a quantity is valid and above 0; None is none."""
    if value is None:
        return None
    usable = isinstance(value, str | int | float) and not isinstance(value, bool)
    match = _QUANTITY.fullmatch(str(value)) if usable else None
    if match is None or parse_quantity(str(value)) <= 0:
        raise BadInput(
            f"{what} is a Kubernetes quantity above 0", about=f"{what}={value!r}", fix=f"`{what}={example}`"
        )
    return str(value)


def check_count(value: object, *, what: str, least: int, most: int) -> int:
    """Check that a value is a whole number in range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        fix = f"`{what}={max(least, min(4, most))}`"
        raise BadInput(f"{what} is a whole number from {least} to {most}", about=f"{what}={value!r}", fix=fix)
    return value


def format_bytes(bytes_: str | int | float | None) -> str:
    """Format an amount of memory: ``7.8 GiB``."""
    if bytes_ is None:
        return "-"
    size = parse_quantity(bytes_)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 999.5:  # three digits
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def format_cores(quantity: str | int | float | None) -> str:
    """Format an amount of CPU as a number of cores: ``0.5``."""
    return "-" if quantity is None else f"{parse_quantity(quantity):g}"
