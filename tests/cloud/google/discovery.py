"""What the discovery documents say of an API: its methods, their parameters, the shape of their messages.

The documents are those that google-api-python-client brings. A request that does not fit is refused as
Google's servers do it: an unknown field, a wrong type, a required parameter that is missing.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from googleapiclient import discovery_cache

from .api_errors import ApiError

VERSIONS = {
    "artifactregistry": ("v1",),
    "cloudbilling": ("v1",),
    "cloudbuild": ("v1",),
    "cloudresourcemanager": ("v1", "v3"),
    "cloudscheduler": ("v1",),
    "compute": ("v1",),
    "container": ("v1",),
    "file": ("v1",),
    "iam": ("v1",),
    "logging": ("v2",),
    "serviceusage": ("v1",),
    "storage": ("v1",),
}
_TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
}


@dataclass(frozen=True)
class Route:
    """A method of an API.

    Attributes:
        id: ``compute.zones.list``.
        version: ``v1``.
        verb: Of HTTP.
        pattern: What its path matches, from the version on.
        parameters: Those of the method and of all methods, by name.
        request: The name of its body's schema; empty if it has none.
        response: The name of its answer's schema.
    """

    id: str
    version: str
    verb: str
    pattern: re.Pattern
    parameters: Mapping[str, dict]
    request: str
    response: str
    api: "Api"


class Api:
    """A version of an API."""

    def __init__(self, document: dict) -> None:
        self.title = document["title"]
        self.schemas = document["schemas"]
        base = document["servicePath"]
        # The version is part of the service's path (compute, storage), or of each method's
        self.prefix = base.split("/", 1)[1] if "/" in base else ""
        common = document.get("parameters", {})
        self.routes: dict[tuple[str, int], list[Route]] = {}
        for method in _methods(document):
            path = self.prefix + method.get("flatPath", method["path"])
            route = Route(
                method["id"],
                document["version"],
                method["httpMethod"],
                _pattern(path),
                {**common, **method.get("parameters", {})},
                method.get("request", {}).get("$ref", ""),
                method.get("response", {}).get("$ref", ""),
                self,
            )
            self.routes.setdefault((route.verb, path.count("/")), []).append(route)
        for routes in self.routes.values():  # those with more that is literal first
            routes.sort(key=lambda each: each.pattern.pattern.count("(?P"))

    def check(self, schema: str, body: object, where: str = "") -> None:
        """Refuse a message that is not of its schema.

        Raises:
            ApiError: It has a field that the schema has not, or a value of another type.
        """
        self._check({"$ref": schema}, body, where)

    def _check(self, schema: dict, value: object, where: str) -> None:
        schema = self.schemas[schema["$ref"]] if "$ref" in schema else schema
        kind = schema.get("type", "any")
        if value is None or kind == "any":
            return
        number = kind == "string" and schema.get("format") in ("int64", "uint64") and isinstance(value, int)
        fits = isinstance(value, _TYPES[kind]) and (not isinstance(value, bool) or kind == "boolean")
        if not fits and not number:
            raise _invalid(f"Invalid value at '{where}' ({_proto(schema)}), {json.dumps(value)}")
        if "enum" in schema and isinstance(value, str) and value not in schema["enum"]:
            raise _invalid(f"Invalid value at '{where}' ({_proto(schema)}), {json.dumps(value)}")
        if kind == "array":
            for position, each in enumerate(value):
                self._check(schema["items"], each, f"{where}[{position}]")
        elif kind == "object":
            self._check_fields(schema, value, where)

    def _check_fields(self, schema: dict, value: dict, where: str) -> None:
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for key, each in value.items():
            within = f"{where}.{key}" if where else key
            if key in known:
                self._check(known[key], each, within)
            elif others is not None:
                self._check(others, each, within)
            elif known:
                place = f" at '{where}'" if where else ""
                raise _invalid(
                    f'Invalid JSON payload received. Unknown name "{key}"{place}: Cannot find field.'
                )


@functools.cache
def api(service: str, version: str) -> Api:
    """Return a version of an API, read once."""
    folder = Path(discovery_cache.__file__).parent / "documents"
    return Api(json.loads((folder / f"{service}.{version}.json").read_text(encoding="utf-8")))


def find(service: str, verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """Return the method of a path such as ``v1/projects/p/zones``, and what stands in the path's braces."""
    for version in VERSIONS.get(service, ()):
        if not path.startswith(f"{version}/"):
            continue
        for route in api(service, version).routes.get((verb, path.count("/")), ()):
            if match := route.pattern.fullmatch(path):
                return route, {key: unquote(value) for key, value in match.groupdict().items()}
    return None


def check_query(route: Route, query: Mapping[str, list[str]], found: Mapping[str, str]) -> None:
    """Refuse parameters that the method does not have, and the lack of one that it needs.

    Raises:
        ApiError: That is so.
    """
    for key in query:
        if key not in route.parameters:
            raise _invalid(
                f'Invalid JSON payload received. Unknown name "{key}": Cannot bind query parameter. '
                f"Field '{key}' could not be found in request message."
            )
    for key, each in route.parameters.items():
        if each.get("required") and each["location"] == "query" and key not in query:
            raise _invalid(f"Required parameter is missing: {key}")
        if "enum" in each and any(value not in each["enum"] for value in query.get(key, ())):
            raise _invalid(f"Invalid value at '{key}': {query[key][0]}")


def _methods(node: dict):
    yield from node.get("methods", {}).values()
    for each in node.get("resources", {}).values():
        yield from _methods(each)


def _pattern(path: str) -> re.Pattern:
    seen: set[str] = set()

    def group(match: re.Match) -> str:
        name = re.sub(r"\W", "_", match[1].lstrip("+"))
        while name in seen:
            name += "_"
        seen.add(name)
        return f"(?P<{name}>(?:[^/:]|(?<=sha256):)+)"  # after any other colon comes a verb

    pieces = re.split(r"(\{[^}]*\})", path)
    made = [re.sub(r"\{(.*)\}", group, each) if each[:1] == "{" else re.escape(each) for each in pieces]
    return re.compile("".join(made))


def _proto(schema: dict) -> str:
    return "TYPE_" + schema.get("format", schema["type"]).upper()


def _invalid(message: str) -> ApiError:
    return ApiError("INVALID_ARGUMENT", message)
