"""Kubernetes objects as dicts: read from YAML, patched, written; and the lines of their fields.

The YAML itself is in ``manifests/``.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kitlib.display.tables import Text
from kitlib.errors import BadInput

Object = dict[str, Any]  # a Kubernetes object, as JSON has it


class Manifest(Text):
    """YAML that a notebook shows in colours."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return f"~~~~yaml\n{self!r}\n~~~~"


# Numbers and booleans to kubectl's parser of YAML, and not to PyYAML: 08, 1e3, y.
_PLAIN = re.compile(r"[-+]?[.\d][\w.+-]*|[yYnN]", re.ASCII)


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text as a block, and indents lists under their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else '"' if _PLAIN.fullmatch(text) else None
    if any(
        character in text for character in "\x85\u2028\u2029"
    ):  # line breaks to PyYAML: lost if not escaped
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def title(item: Object) -> str:
    """Name an object for people: ``Job "digits"``."""
    return f'{item["kind"]} "{item["metadata"].get("name", "")}"'


def write(objects: Sequence[Object]) -> Manifest:
    """Write objects as YAML for ``kubectl``, one document each."""
    return Manifest(
        "---\n".join(
            yaml.dump(item, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
            for item in objects
        )
    )


def read(path: Path) -> list[Object]:
    """Read the objects of a YAML file."""
    return parse(read_text(path), about=str(path))


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = "give the path of a YAML file"
        raise BadInput("the manifest cannot be read", about=f"{path}: {error}", fix=fix) from error


def parse(text: str, *, about: str) -> list[Object]:
    try:
        objects = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise BadInput("this is not valid YAML", about=about, fix=f"correct it: {error}") from error
    for item in objects:
        typed = isinstance(item, dict) and item.get("apiVersion") and item.get("kind")
        if not typed or not isinstance(item.get("metadata"), dict):
            what = "a Kubernetes object needs apiVersion, kind and metadata"
            raise BadInput(what, about=about, fix="add them, or give another file")
    return objects


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """Merge ``patch`` into a copy of ``base``.

    Dicts merge; None removes; lists whose members have a ``name`` merge by it, other lists are replaced.

    Example:
        >>> merge({"a": 1, "b": [{"name": "x", "c": 1}]}, {"a": None, "b": [{"name": "x", "d": 2}]})
        {'b': [{'name': 'x', 'c': 1, 'd': 2}]}
    """
    merged = {key: _merge(value, patch[key]) if key in patch else value for key, value in base.items()}
    merged |= {key: value for key, value in patch.items() if key not in base}
    return {key: value for key, value in merged.items() if value is not None}


def _merge(base: Any, patch: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        return merge(base, patch)
    if _named(base) and _named(patch):
        over = {entry["name"]: entry for entry in patch}
        entries = [
            merge(entry, over.pop(entry["name"])) if entry["name"] in over else entry for entry in base
        ]
        return entries + list(over.values())
    return patch


def rewrite(item: Mapping[str, Any], change: Callable[[Object], Object]) -> Object:
    """Copy an object, or a part of it, with each of its dicts changed, the innermost first."""

    def copied(part: object) -> object:
        if isinstance(part, list):
            return [copied(entry) for entry in part]
        return rewrite(part, change) if isinstance(part, Mapping) else part

    return change({key: copied(value) for key, value in item.items()})


def with_containers(spec: Object, change: Callable[[Object], Object]) -> Object:
    """Copy the spec of a pod with each of its containers changed."""
    lists = [key for key in ("initContainers", "containers") if key in spec]
    return spec | {key: [change(container) for container in spec[key]] for key in lists}


def line_of(text: str, path: str, *, document: int = 0) -> int | None:
    """Find the line, from 1, of a field in YAML; None if it has no such field.

    Args:
        path: As the API server writes it: ``spec.template.spec.containers[0].comand``.
        document: Which of the documents, from 0.
    """
    nodes = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    node, line = nodes[document] if document < len(nodes) else None, None
    for step in _steps(path):
        child = _child(node, step)
        if child is None:
            return None
        line, node = child
    return line


def _child(node: yaml.Node | None, step: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(step, int):
        if isinstance(node, yaml.SequenceNode) and step < len(node.value):
            return node.value[step].start_mark.line + 1, node.value[step]
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark.line + 1, value
    return None


def _steps(path: str) -> Iterator[str | int]:
    for index, bracketed, name in re.findall(r'\[(\d{1,9})\]|\["?([^\[\]"]{1,400})"?\]|([^.\[\]]+)', path):
        yield int(index) if index else bracketed or name


def _named(value: object) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(isinstance(x, Mapping) and "name" in x for x in value)
    )
