"""Check the manifests of exercises by a server-side dry run, and explain its errors."""

import copy
import re
from typing import Any

from kitlib.clusters import Cluster
from kitlib.errors import KitError
from trainyard_kit.exercises.checklist import Exercise, NotYet, describe, field

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


def add_manifest_checks(exercise: Exercise, *, kind: str, version: str) -> None:
    """Add the checks of a manifest, the first answer: its kind, and that the API server accepts it."""
    manifest = exercise.answers[0]

    @exercise.check(f"it is a {kind}", essential=True)
    def is_kind(**answers: Any) -> None:
        check_kind(answers[manifest], kind=kind, version=version)

    @exercise.check("the API server accepts it (a dry run)", essential=True)
    def accepted(**answers: Any) -> None:
        dry_run(answers["cluster"], answers[manifest])


def check_kind(manifest: object, *, kind: str, version: str) -> None:
    """Check that a manifest is a dict with a kind and an API version."""
    if not isinstance(manifest, dict):
        raise NotYet(f"it is {describe(manifest)}: write the manifest as a dict")
    for name, value in (("kind", kind), ("apiVersion", version)):
        if (actual := field(manifest, name)) != value:
            raise NotYet(f"{name} is {describe(actual)}, and should be {value!r}")


def dry_run(cluster: Cluster, manifest: dict[str, Any]) -> dict[str, Any]:
    """Send a manifest to the API server without storing it; return it as it would be stored.

    It is sent with another name, so that it does not conflict with an existing object.
    """
    item = copy.deepcopy(manifest)
    name = field(item, "metadata.name")
    if isinstance(name, str):  # the API server rejects all others
        item["metadata"]["name"] = f"{name}-dry-run"
    try:
        return cluster.kube.create(item, dry_run=True)
    except KitError as error:
        reason = error.what.replace(f"{name}-dry-run", f"{name}")
        raise NotYet(f"the API server rejects it: {_explain_type(reason)}") from error


def _explain_type(reason: str) -> str:
    """Name a field with a wrong type, and both types in Python's terms."""
    if (match := re.search(OTHER_TYPE, reason)) is None:
        return reason
    actual, name, type_name = match.groups()
    needed = "a list" if type_name.startswith("[]") else FIELDS.get(type_name, "a dict")
    return f"{name.removeprefix('spec.')} is {TYPES.get(actual, actual)}, and should be {needed}"


def check_label(manifest: dict[str, Any], notebook: str) -> None:
    """Check that a manifest has the label by which its notebook deletes objects."""
    labels = (manifest.get("metadata") or {}).get("labels") or {}
    if labels.get("trainyard/notebook") != notebook:
        raise NotYet(f'add trainyard/notebook: "{notebook}" to metadata.labels')


def expect(actual: object, expected: object, name: str) -> None:
    """Compare a field."""
    if actual != expected:
        raise NotYet(f"{name} is {describe(actual)}, and should be {expected!r}")
