"""The end of a cluster, brought about by Google Cloud itself: schedules that call the container API.

They need neither the laptop nor the cluster: at the hour of its expiry one deletes the training pool, a
quarter of an hour later another one the cluster, as a service account that may do nothing else (`accounts`).
What the container API refuses while it is at something else is tried again, five times in the next hours.
"""

from datetime import UTC, datetime, timedelta

from clouds.google.accounts import ANCHOR, email
from clouds.google.cluster import TRAINING
from clouds.google.owned import GcpResource, description_of, lasts
from clouds.google.session import SCOPES, GcpSession, find
from clouds.reconciler.resource import ResourceState, ResourceStatus
from clouds.tags import Tags

CONTAINER = "https://container.googleapis.com/v1"
TIMES = {"training": timedelta(0), "cluster": timedelta(minutes=15)}  # after the expiry
_RETRY = {"retryCount": 5, "minBackoffDuration": "300s", "maxBackoffDuration": "3600s"}


class DeletionJob(GcpResource):
    """A schedule that deletes the cluster, or its training pool.

    Args:
        session: The way into its project.
        tags: Whose it is, and when it ends.
        what: ``cluster`` or ``training``.
        exact: Whether it shall be at the tags' end; else a later one, of somebody else's, is fine as well.
    """

    kind = "cloudscheduler.googleapis.com/Job"
    depends_on = (ANCHOR, "rights expiry")
    expected, expected_gone, poll = 2.0, 2.0, 5.0

    def __init__(self, session: GcpSession, tags: Tags, what: str, *, exact: bool = False) -> None:
        super().__init__(session, tags)
        self.what, self.exact = what, exact
        self.name = f"end of the {'training pool' if what == 'training' else what}"

    @property
    def id(self) -> str:
        place = f"projects/{self.session.project}/locations/{self.session.region}"
        return f"{place}/jobs/trainyard-{self.tags.cluster}-{self.what}"

    def found(self):
        return find(self.session.rest, "cloudscheduler", "projects.locations.jobs.get", name=self.id)

    def seen(self, found) -> ResourceStatus:
        if self.tags.expires is None:
            return ResourceStatus(ResourceState.READY, self.id)
        same = found.get("schedule") == self.schedule
        fits = same or (not self.exact and lasts(found.get("description", ""), self.tags))
        due = fits and found.get("state", "ENABLED") == "ENABLED"
        return ResourceStatus(ResourceState.READY if due else ResourceState.PARTIAL, self.id)

    @property
    def schedule(self) -> str:
        """When: minute, hour, day and month, of every year; the account's rights end with the first."""
        return cron(self.tags.expires + TIMES[self.what])

    def create(self) -> None:
        found, body = self.found(), self.body()
        if found is None:
            parent = self.id.rpartition("/jobs/")[0]
            self.send_create(
                lambda: self.session.rest(
                    "cloudscheduler", "projects.locations.jobs.create", parent=parent, body=body
                )
            )
            return
        self.session.rest("cloudscheduler", "projects.locations.jobs.patch", name=self.id, body=body)
        if found.get("state") == "PAUSED":
            self.session.rest("cloudscheduler", "projects.locations.jobs.resume", name=self.id, body={})

    def remove(self) -> None:
        self.session.rest("cloudscheduler", "projects.locations.jobs.delete", name=self.id)

    def body(self) -> dict:
        """Build the body of the request."""
        target = f"{CONTAINER}/{self.session.place}/clusters/{self.tags.cluster}"
        if self.what == "training":
            target += f"/nodePools/{TRAINING}"
        account = email(self.session, "expiry", self.tags.cluster)
        return {
            "name": self.id,
            "description": description_of(self.tags, self.session.zone),
            "schedule": self.schedule,
            "timeZone": "Etc/UTC",
            "retryConfig": _RETRY,
            "httpTarget": {
                "uri": target,
                "httpMethod": "DELETE",
                "oauthToken": {"serviceAccountEmail": account, "scope": SCOPES[0]},
            },
        }


def cron(when: datetime) -> str:
    """Return a moment as a schedule, rounded up to the minute.

    Example:
        >>> cron(datetime(2026, 11, 22, 13, 0, 30, tzinfo=UTC))
        '1 13 22 11 *'
    """
    full = when.astimezone(UTC) + timedelta(seconds=59)
    return f"{full.minute} {full.hour} {full.day} {full.month} *"
