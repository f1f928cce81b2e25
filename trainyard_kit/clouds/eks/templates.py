"""Build the stacks' templates, with the user's patch and fabric adapters."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kitlib.k8s.manifests import merge


class _Template(yaml.SafeLoader):
    """Converts CloudFormation's short functions, ``!Ref``, to their long forms, which JSON needs."""

    def function(self, name: str, node: yaml.Node) -> dict[str, Any]:
        """Construct ``{"Fn::Sub": …}`` for a node with the tag ``!Sub``."""
        if isinstance(node, yaml.ScalarNode):
            value = self.construct_scalar(node)
            value = value.split(".", 1) if name == "GetAtt" else value
        elif isinstance(node, yaml.SequenceNode):
            value = self.construct_sequence(node, deep=True)
        else:
            value = self.construct_mapping(node, deep=True)
        return {name if name in ("Ref", "Condition") else f"Fn::{name}": value}


_Template.add_multi_constructor("!", _Template.function)


def policies() -> dict[str, Any]:
    """Read the IAM policies: of ``user``, and of ``stack``, the role that CloudFormation assumes."""
    documents: dict[str, Any] = json.loads(
        Path(__file__).with_name("policy.json").read_text(encoding="utf-8")
    )
    return documents


def template(name: str, patch: Mapping[str, Any] | None = None, network_cards: range = range(0)) -> str:
    """Build a template, ``cluster``, ``nodes`` or ``end``: the file's text, or JSON if it is modified.

    Args:
        name: Of the file.
        patch: A JSON merge patch.
        network_cards: Indices of the network cards that have a fabric adapter.
            https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
    """
    text = Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    if not patch and network_cards.stop <= 1:
        return text
    parsed: dict[str, Any] = yaml.load(text, _Template)  # noqa: S506  (a SafeLoader)
    if network_cards.stop > 1:
        data = parsed["Resources"]["LaunchTemplate"]["Properties"]["LaunchTemplateData"]
        _, (interface,), default = data["NetworkInterfaces"]["Fn::If"]
        cards = [interface if 0 in network_cards else interface | {"InterfaceType": "interface"}]
        cards += [interface | {"NetworkCardIndex": card, "DeviceIndex": 1} for card in network_cards if card]
        data["NetworkInterfaces"]["Fn::If"] = ["Fabric", cards, default]
    return json.dumps(merge(parsed, patch or {}))
