"""What exists in EKS: plain data by region, in the place where moto's own tagging service looks for it."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from moto.core.base_backend import BackendDict, BaseBackend
from moto.core.resource_tagging import TaggableResourcesMixin, TaggedResource

from .calls import Refused
from .identities import ACCOUNT

MOST = 100  # things on a page


@dataclass
class Cluster:
    """A cluster and what is in it; the dicts have the shapes of the API.

    ``network`` are the ids of what EKS itself made in the account's network: interfaces and a group.
    """

    data: dict[str, Any]
    nodegroups: dict[str, dict[str, Any]] = field(default_factory=dict)
    addons: dict[str, dict[str, Any]] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    policies: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    associations: dict[str, dict[str, Any]] = field(default_factory=dict)
    updates: dict[str, dict[str, Any]] = field(default_factory=dict)
    interfaces: dict[str, list[str]] = field(default_factory=dict)
    hidden: int = 0  # for so many looks it seems not to exist

    @property
    def name(self) -> str:
        """Its name."""
        return self.data["name"]

    @property
    def status(self) -> str:
        """``CREATING`` and so on."""
        return self.data["status"]

    def things(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Give (type of resource, ARN, data) of it and all that is in it."""
        yield "eks:cluster", self.data["arn"], self.data
        for each in self.nodegroups.values():
            yield "eks:nodegroup", each["nodegroupArn"], each
        for each in self.addons.values():
            yield "eks:addon", each["addonArn"], each
        for each in self.entries.values():
            yield "eks:access-entry", each["accessEntryArn"], each
        for each in self.associations.values():
            yield "eks:podidentityassociation", each["associationArn"], each


class EksBackend(BaseBackend, TaggableResourcesMixin):
    """The clusters of a region."""

    SERVICE_NAMESPACE = "eks"

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.clusters: dict[str, Cluster] = {}

    def reset(self) -> None:
        """Forget all."""
        self.clusters = {}

    def iter_tagged_resources(self) -> Iterator[TaggedResource]:
        """Give all for the tagging service."""
        for cluster in self.clusters.values():
            for kind, arn, data in cluster.things():
                yield TaggedResource(arn, dict(data.get("tags", {})), kind)

    def by_arn(self, arn: str) -> dict[str, Any]:
        """Return what has an ARN.

        Raises:
            AwsError: Nothing has.
        """
        for cluster in self.clusters.values():
            for _, its, data in cluster.things():
                if its == arn:
                    return data
        raise Refused("NotFoundException", f"Resource not found for ARN: {arn}")

    def tag_resource(self, arn: str, tags: dict[str, str]) -> None:
        """Tag it, for the tagging service."""
        self.by_arn(arn).setdefault("tags", {}).update(tags)

    def untag_resource(self, arn: str, tag_keys: list[str]) -> None:
        """Take tags away, for the tagging service."""
        for key in tag_keys:
            self.by_arn(arn).get("tags", {}).pop(key, None)


eks_backends = BackendDict(EksBackend, "eks")


def region(name: str) -> EksBackend:
    """Return what there is in a region."""
    return eks_backends[ACCOUNT][name]


def page(items: list[Any], parameters: dict[str, Any], most: int | None) -> tuple[list[Any], str | None]:
    """Return the part of a list that was asked for, and the token of the next one."""
    try:
        start = int(base64.b64decode(parameters.get("nextToken") or "MA==").decode())
    except ValueError as error:
        raise Refused("InvalidParameterException", "Invalid token") from error
    size = min(parameters.get("maxResults") or MOST, most or MOST)
    end = start + size
    token = base64.b64encode(str(end).encode()).decode() if end < len(items) else None
    return items[start:end], token
