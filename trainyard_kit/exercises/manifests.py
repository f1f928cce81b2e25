"""What exercises with manifests have in common: a server-side dry run, and what its answer tells."""

import copy
import re
from typing import Any

from kitlib.clusters import Cluster
from kitlib.errors import KitError
from trainyard_kit.exercises.checklist import NotYet, describe, field

TYPES = {
    "string": "text",
    "number": "a number",
    "bool": "True or False",
    "object": "a dict",
    "array": "a list",
}
FIELDS = {"string": "text", "int32": "a whole number", "int64": "a whole number", "bool": "True or False"}

OTHER_TYPE = (
    r"json: cannot unmarshal (\w{1,20})(?: \S{1,99})? "
    r"into Go struct field \w{1,99}\.(\S{1,199}) of type (\S{1,99})"
)


def check_kind(written: object, *, kind: str, version: str) -> None:
    """Check that a manifest is a dict of a kind."""
    if not isinstance(written, dict):
        raise NotYet(f"it is {describe(written)}: write the manifest as a dict")
    for name, value in (("kind", kind), ("apiVersion", version)):
        if (value_found := field(written, name)) != value:
            raise NotYet(f"{name} is {describe(value_found)}, and should be {value!r}")


def dry_run(cluster: Cluster, written: dict[str, Any]) -> dict[str, Any]:
    """Send a manifest to the API server without storing it; return it as it would be stored.

    The name is replaced, so that an object that exists is not in the way.
    """
    item = copy.deepcopy(written)
    field(item, "metadata.name")
    item["metadata"]["name"] = f"{item['metadata']['name']}-dry-run"
    try:
        return cluster.kube.create(item, dry_run=True)
    except KitError as error:
        reason = error.what.replace(item["metadata"]["name"], written["metadata"]["name"])
        raise NotYet(f"the API server rejects it: {_explain_type(reason)}") from error


def _explain_type(reason: str) -> str:
    """Name a field that has another type than its own, as Python calls both."""
    if (match := re.search(OTHER_TYPE, reason)) is None:
        return reason
    written, name, type_name = match.groups()
    needed = "a list" if type_name.startswith("[]") else FIELDS.get(type_name, "a dict")
    return f"{name.removeprefix('spec.')} is {TYPES.get(written, written)}, and should be {needed}"


def check_label(written: dict[str, Any], notebook: str) -> None:
    """Check that a manifest has the label by which its notebook deletes it."""
    labels = (written.get("metadata") or {}).get("labels") or {}
    if labels.get("trainyard/notebook") != notebook:
        raise NotYet(f'put trainyard/notebook: "{notebook}" into metadata.labels')


def expect(actual: object, expected: object, name: str) -> None:
    """Compare a field."""
    if actual != expected:
        raise NotYet(f"{name} is {describe(actual)}, and should be {expected!r}")
