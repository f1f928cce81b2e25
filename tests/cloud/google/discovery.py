"""The APIs by their discovery documents, which google-api-python-client brings.

A request that does not fit is refused as Google's servers do it: an unknown field, a wrong type or value, a
required parameter that is missing.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import jsonschema
from googleapiclient import discovery_cache

from .api_errors import ApiError

VERSIONS = {"cloudresourcemanager": "v3"}  # of the others: v1


@dataclass(frozen=True)
class Route:
    """A method of an API: ``compute.zones.list``; ``request`` and ``response`` name schemas, or are empty."""

    id: str
    verb: str
    pattern: re.Pattern
    parameters: Mapping[str, dict]
    request: str
    response: str
    api: "Api"


class Api:
    """An API."""

    def __init__(self, document: dict) -> None:
        self.title, self.schemas = document["title"], document["schemas"]
        self._strict = {"schemas": {name: _strict(schema) for name, schema in self.schemas.items()}}
        base = document["servicePath"]
        prefix = base.split("/", 1)[1] if "/" in base else ""  # the version is there, or in each path
        common = document.get("parameters", {})
        self.routes: dict[tuple[str, int], list[Route]] = {}
        for method in _methods(document):
            path = prefix + method.get("flatPath", method["path"])
            bodies = (method.get(side, {}).get("$ref", "") for side in ("request", "response"))
            parameters = {**common, **method.get("parameters", {})}
            route = Route(method["id"], method["httpMethod"], _pattern(path), parameters, *bodies, self)
            self.routes.setdefault((route.verb, path.count("/")), []).append(route)
        for routes in self.routes.values():  # those with more literal words first
            routes.sort(key=lambda entry: entry.pattern.groups)

    def check(self, schema: str, body: dict, code: str = "INVALID_ARGUMENT") -> None:
        """Refuse a message that is not of its schema, for an unknown field or a value of another type."""
        validator = jsonschema.Draft4Validator({**self._strict, "$ref": f"#/schemas/{schema}"})
        for error in validator.iter_errors(body):
            where = ".".join(str(part) for part in error.absolute_path)
            words = f"Invalid JSON payload received. Invalid value at '{where}': {error.message}"
            raise ApiError(code, words)


@functools.cache
def api(service: str) -> Api:
    """Read an API's document."""
    folder = Path(discovery_cache.__file__).parent / "documents"
    file = folder / f"{service}.{VERSIONS.get(service, 'v1')}.json"
    return Api(json.loads(file.read_text(encoding="utf-8")))


def find(service: str, verb: str, path: str) -> Route:
    """Find the method of a path such as ``v1/projects/p/zones``.

    Raises:
        ApiError: There is none.
    """
    for route in api(service).routes.get((verb, path.count("/")), ()):
        if route.pattern.fullmatch(path):
            return route
    raise ApiError("NOT_FOUND", f"The requested URL /{path} was not found on this server.")


def check_query(route: Route, query: Mapping[str, list[str]]) -> None:
    """Refuse parameters that the method does not have, and the lack of one that it needs.

    Raises:
        ApiError: That is so.
    """
    known = route.parameters
    wrong = [f'Unknown name "{key}": Cannot bind query parameter.' for key in query if key not in known]
    for key, value in known.items():
        if value.get("required") and value["location"] == "query" and key not in query:
            wrong.append(f"Required parameter is missing: {key}")
        if "enum" in value and not set(query.get(key, ())) <= set(value["enum"]):
            wrong.append(f"Invalid value at '{key}': {query[key][0]}")
    if wrong:
        raise ApiError("INVALID_ARGUMENT", wrong[0])


def _strict(schema: dict) -> dict:
    """Convert a schema of a discovery document to one of JSON Schema that refuses unknown fields."""
    if "$ref" in schema:
        return {"$ref": f"#/schemas/{schema['$ref']}"}
    strict = {key: schema[key] for key in ("type", "enum") if key in schema and schema[key] != "any"}
    if schema.get("format") in ("int64", "uint64"):
        strict["type"] = ["string", "integer"]
    if "items" in schema:
        strict["items"] = _strict(schema["items"])
    if "properties" in schema:
        strict["properties"] = {name: _strict(path) for name, path in schema["properties"].items()}
    if schema.get("type") == "object":
        additional = schema.get("additionalProperties")
        strict["additionalProperties"] = _strict(additional) if additional else "properties" not in schema
    return strict


def _methods(node: dict) -> Iterator[dict]:
    yield from node.get("methods", {}).values()
    for resource in node.get("resources", {}).values():
        yield from _methods(resource)


def _pattern(path: str) -> re.Pattern:
    pieces = re.split(r"(\{[^}]*\})", path)
    value = "((?:[^/:]|(?<=sha256):)+)"  # after any other colon comes a verb
    return re.compile("".join(value if piece[:1] == "{" else re.escape(piece) for piece in pieces))
