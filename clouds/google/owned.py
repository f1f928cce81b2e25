"""What all things at Google Cloud share: whose they are, and operations that are followed to their end.

Whose a thing is stands in its labels. Networks, service accounts and schedules have none: there it stands in
the description, in the same words.
"""

from abc import abstractmethod
from collections.abc import Mapping

from clouds import tags as tags_
from clouds.google.client_errors import ErrorReason, ErrorReply, GcpError, to_error
from clouds.google.session import GcpSession, find
from clouds.price_table import HOURS_A_MONTH, price_table
from clouds.reconciler.resource import ABSENT, Resource, ResourceState, ResourceStatus
from clouds.tags import Tags
from kitlib.k8s import names

ZONE = "trainyard-zone"
_LONGEST_WORD = 40  # of an owner in a description: a service account's has 256 bytes in all


class GcpResource(Resource):
    """A thing at Google Cloud that the kit made, or would make.

    Args:
        session: The way into its project.
        tags: Whose it is.

    Attributes:
        operation: The request that was taken last and may not have ended …
        meanwhile: … and how the thing is until then.
    """

    def __init__(self, session: GcpSession, tags: Tags) -> None:
        self.session, self.tags = session, tags
        self.where = session.zone or session.project
        self.operation = ""
        self.meanwhile = ResourceState.PENDING

    def bill(self, key: str, count: float = 1) -> str:
        """Describe the cost by the kit's table of prices."""
        price = price_table("google").price(key, count=count)
        monthly = price.together * HOURS_A_MONTH
        return (
            f"about {monthly:.2f} dollars a month"
            if monthly < 30
            else f"about {price.together:.2f} dollars an hour"
        )

    @property
    @abstractmethod
    def id(self) -> str:
        """How Google Cloud calls it."""

    @abstractmethod
    def found(self):
        """Return it as the API shows it, or None."""

    @abstractmethod
    def remove(self) -> None:
        """Ask for its deletion; it is there, and the kit's."""

    def labels(self, found) -> Mapping[str, str]:
        """Labels that prove the owner."""
        return found.get("labels") or read(found.get("description", ""))

    def seen(self, found) -> ResourceStatus:
        """Build the status, and keep id and tags."""
        return ResourceStatus(ResourceState.READY, self.id)

    def owns(self, found) -> bool:
        """Check whether it is the kit's, and this cluster's."""
        whose = tags_.read(self.labels(found))
        return whose is not None and whose.cluster == self.tags.cluster

    def under_way(self) -> bool:
        """Check whether what was asked for last has not ended; raise what it ended with."""
        return False

    def describe(self) -> ResourceStatus:
        """Describe its current status.

        Raises:
            GcpError: It is somebody else's.
        """
        if self.under_way():
            return ResourceStatus(self.meanwhile, self.id)
        found = self.found()
        if found is None:
            return ABSENT
        if not self.owns(found):
            raise GcpError(
                f"{self.name} of this name is there, and not the kit's: it is left alone",
                about=self.id,
                fix="take another name for the cluster",
                why=ErrorReason.TAKEN,
            )
        return self.seen(found)

    def delete(self) -> None:
        """Ask for its deletion, if it is there and the kit's."""
        found = self.found()
        if found is not None and self.owns(found):
            self.meanwhile = ResourceState.DELETING
            find(self.remove)

    def send_create(self, request) -> None:
        """Send what makes it; that somebody else was first is fine: a look tells whose it is."""
        self.meanwhile = ResourceState.PENDING
        try:
            request()
        except GcpError as error:
            if error.why is ErrorReason.BUSY and self.found() is not None:
                return  # somebody else makes it, and that is what the cloud is at
            if error.why is not ErrorReason.TAKEN:
                raise


def labels_of(tags: Tags, zone: str | None) -> dict[str, str]:
    """Return the labels of a thing: the kit's tags, and the zone of the cluster whose it is.

    By the zone the rest of a cluster is found when the cluster itself is gone.
    """
    return {**tags.google(), **({ZONE: zone} if zone else {})}


def description_of(tags: Tags, zone: str | None) -> str:
    """Return the same as words of a description.

    Example:
        >>> written(Tags("lab", "ada", "spring"), "us-east1-b").split()[1:3]
        ['trainyard-cluster=lab', 'trainyard-owner=ada']
    """
    return " ".join(f"{key}={value[:_LONGEST_WORD]}" for key, value in labels_of(tags, zone).items())


def read(description: str) -> dict[str, str]:
    """Return the labels that a description holds; none if the kit did not write it."""
    return dict(word.split("=", 1) for word in description.split() if "=" in word)


def lasts(description: str, tags: Tags) -> bool:
    """Check whether what a description says ends no sooner than the tags: of two ends, the later counts."""
    told = tags_.read(read(description))
    if told is None or tags.expires is None:
        return told is not None
    return told.expires is not None and told.expires >= tags.expires


def sound(name: str) -> bool:
    """Check whether a cluster's or a zone's name, as a label holds it, is one: anybody may write labels."""
    return bool(name) and names.slug(name) == name


def raise_failure(error: Mapping | None, about: str, project: str) -> None:
    """Raise what an operation ended with, if that is an error.

    Args:
        error: As google.rpc.Status, or as Compute Engine writes it.
        about: The operation's target.
        project: Its project.
    """
    if not error:
        return
    first = error["errors"][0] if error.get("errors") else error
    code = first.get("code", "")
    words = first.get("message", "") or str(code)
    raise to_error(ErrorReply(400, str(code), words), about, project)
