"""Requests and limits that no user has chosen, made to fit the LimitRanges of a namespace. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kitlib.k8s.manifests import Object, rewrite, with_containers
from kitlib.k8s.quantities import parse_quantity

RESOURCES = ("cpu", "memory")
NOTHING: Mapping[str, str] = MappingProxyType({})


def fit(item: Mapping[str, Any], ranges: Sequence[Object], *, chosen: Mapping[str, str] = NOTHING) -> Object:
    """Fit the containers of all pod specs in an object between the least and the most of their namespace.

    Args:
        chosen: The user's own values, by resource. Containers that have one keep it, and the API server names
            it if it does not fit; the other containers are fitted.
    """
    bounds = [limit for entry in ranges for limit in entry["spec"]["limits"] if limit["type"] == "Container"]

    def change(part: Object) -> Object:
        if not isinstance(part.get("containers"), list):
            return part
        return with_containers(part, lambda container: _fit_container(container, bounds, chosen))

    return rewrite(item, change)


def _fit_container(container: Object, bounds: Sequence[Object], chosen: Mapping[str, str]) -> Object:
    own = container.get("resources") or {}
    requests, limits = dict(own.get("requests") or {}), dict(own.get("limits") or {})
    as_chosen = [
        {name for name, value in chosen.items() if kind.get(name) == value} for kind in (requests, limits)
    ]
    for bound in bounds:
        for name in RESOURCES:
            if name in limits and name not in as_chosen[1]:
                limits[name] = _within(limits[name], *_values(bound, name, "min", "max"))
            if name in requests and name not in as_chosen[0]:
                most = [limits[name]] if name in limits else _values(bound, name, "default")
                requests[name] = _within(requests[name], *_values(bound, name, "min", "max"))
                requests[name] = _within(requests[name], None, next(iter(most), None))
                requests[name] = _within(requests[name], _ratio_floor(bound, name, limits), None)
    fitted = {"requests": requests, "limits": limits}
    remaining = {key: value for key, value in fitted.items() if value or key in own}
    return container | ({"resources": own | remaining} if own else {})


def _values(bound: Object, name: str, *fields: str) -> Iterator[str | None]:
    return ((bound.get(field) or {}).get(name) for field in fields)


def _within(value: str, least: str | None, most: str | None) -> str:
    """Clamp a quantity between its bounds."""
    if least is not None and parse_quantity(value) < parse_quantity(least):
        return least
    return most if most is not None and parse_quantity(value) > parse_quantity(most) else value


def _ratio_floor(bound: Object, name: str, limits: Mapping[str, str]) -> str | None:
    """Compute the least request that a limit may have."""
    ratio = (bound.get("maxLimitRequestRatio") or {}).get(name)
    if ratio is None or name not in limits:
        return None
    least = parse_quantity(limits[name]) / parse_quantity(ratio)
    return f"{-int(-1000 * least // 1)}m" if name == "cpu" else str(-int(-least // 1))
