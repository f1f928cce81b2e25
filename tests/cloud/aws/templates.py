"""Templates of CloudFormation: parsed, parameters judged, functions resolved, as far as the kit's need it."""

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from .faults import ACCOUNT, Refused

NO_VALUE = object()
SIZE = 51_200  # bytes of a template in a request
INNER = re.compile(r"\$\{([^!}][^}]*)\}")


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short tags; aliases, which CloudFormation does not support, are refused."""

    yaml_implicit_resolvers = {
        key: [rule for rule in rules if rule[0] != "tag:yaml.org,2002:timestamp"]
        for key, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent, index):
        if self.check_event(yaml.events.AliasEvent):
            raise invalid("Template error: YAML aliases are not allowed in CloudFormation templates")
        return super().compose_node(parent, index)


def _tag(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    kind = {"scalar": loader.construct_scalar, "sequence": loader.construct_sequence}
    value = kind.get(node.id, loader.construct_mapping)(
        node, **({} if node.id == "scalar" else {"deep": True})
    )
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _tag)


def invalid(words: str) -> Refused:
    """Return CloudFormation's refusal of what is wrong with a request."""
    return Refused("ValidationError", words, status=400)


def parse(text: str) -> dict[str, Any]:
    """Return a template, in YAML or JSON, with functions in their long form."""
    if len(text.encode()) > SIZE:
        raise invalid(f"'templateBody' failed to satisfy constraint: length less than or equal to {SIZE}")
    try:
        return yaml.load(text, _Loader)  # noqa: S506 a subclass of SafeLoader
    except yaml.YAMLError as error:
        raise invalid(f"Template format error: YAML not well-formed. {error}") from error


def parameters(template: dict[str, Any], values_by_name: dict[str, str]) -> dict[str, str]:
    """Return the value of every parameter, as text."""
    declared = template.get("Parameters") or {}
    if unknown := sorted(set(values_by_name) - set(declared)):
        raise invalid(f"Parameters: [{', '.join(unknown)}] do not exist in the template")
    values = {key: item["Default"] for key, item in declared.items() if "Default" in item} | values_by_name
    if missing := sorted(set(declared) - set(values)):
        raise invalid(f"Parameters: [{', '.join(missing)}] must have values")
    for key, rule in declared.items():
        value = values[key] = str(values[key])
        if value not in [str(allowed) for allowed in rule.get("AllowedValues") or [value]]:
            raise invalid(f"Parameter '{key}' must be one of AllowedValues")
        if not re.fullmatch(rule.get("AllowedPattern", "(?s:.*)"), value):
            raise invalid(f"Parameter '{key}' must match pattern {rule['AllowedPattern']}")
    return values


@dataclass
class Scope:
    """What functions of one stack are resolved with: ids, attributes and others' exports are asked for."""

    template: dict[str, Any]
    values: dict[str, str]
    pseudo: dict[str, Any]
    ref: Callable[[str], Any]
    attribute: Callable[[str, str], Any]
    exported: Callable[[str], str]

    def resources(self) -> dict[str, dict[str, Any]]:
        """Return the resources whose condition holds."""
        declared = self.template["Resources"]
        return {key: item for key, item in declared.items() if self.holds(item.get("Condition"))}

    def holds(self, name: str | None) -> bool:
        """Return whether a condition is true."""
        return name is None or bool(self.resolve(self.template["Conditions"][name]))

    def resolve(self, value: Any) -> Any:
        """Return a value without functions; what is ``AWS::NoValue`` is left out."""
        if isinstance(value, list):
            return [item for item in map(self.resolve, value) if item is not NO_VALUE]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((name, given),) = value.items()
            if name in ("Ref", "Condition") or name.startswith("Fn::"):
                return self._call(name.removeprefix("Fn::"), given)
        found = {key: self.resolve(item) for key, item in value.items()}
        return {key: item for key, item in found.items() if item is not NO_VALUE}

    def _call(self, name: str, given: Any) -> Any:
        if name == "Condition":
            return self.holds(given)
        if name == "If":
            return self.resolve(given[1] if self.holds(given[0]) else given[2])
        if name == "Ref":
            return self._ref(given)
        if name == "GetAtt":
            return self.attribute(*(given.split(".", 1) if isinstance(given, str) else given))
        if name == "Sub":
            return INNER.sub(lambda each: str(self._ref(each[1])), given)
        given = self.resolve(given)
        simple: dict[str, Callable[[], Any]] = {
            "Equals": lambda: str(given[0]) == str(given[1]),
            "Not": lambda: not given[0],
            "And": lambda: all(given),
            "Or": lambda: any(given),
            "Base64": lambda: base64.b64encode(given.encode()).decode(),
            "Join": lambda: given[0].join(given[1]),
            "Select": lambda: given[1][int(given[0])],
            "ImportValue": lambda: self.exported(given),
        }
        return simple[name]()

    def _ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return NO_VALUE
        if name in self.pseudo:
            return self.pseudo[name]
        if name in self.values:
            kind, value = self.template["Parameters"][name]["Type"], self.values[name]
            return value.split(",") if "List" in kind else int(value) if kind == "Number" else value
        return self.attribute(*name.split(".", 1)) if "." in name else self.ref(name)


def pseudo(region: str, name: str, stack: str) -> dict[str, Any]:
    """Return the pseudo parameters of a stack."""
    values = {"Region": region, "AccountId": ACCOUNT, "Partition": "aws", "URLSuffix": "amazonaws.com"}
    return {f"AWS::{key}": item for key, item in (values | {"StackName": name, "StackId": stack}).items()}


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in ("Ref", "Fn::GetAtt"):
                yield item.split(".")[0] if isinstance(item, str) else item[0]  # in JSON a list
            elif key == "Fn::Sub":
                yield from (reference.split(".")[0] for reference in INNER.findall(item))
            else:
                yield from _references(item)


def dependencies(scope: Scope) -> dict[str, set[str]]:
    """Return which resources each resource comes after."""
    declared, needs = scope.resources(), {}
    for name, item in declared.items():
        explicit = item.get("DependsOn") or []
        after = {explicit} if isinstance(explicit, str) else set(explicit)
        needs[name] = (after | set(_references(item.get("Properties") or {}))) & set(declared)
    return needs
