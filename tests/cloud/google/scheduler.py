"""Cloud Scheduler: jobs that call Google's APIs when the simulated clock gets there, as a service account.

The call is made inside the fake and answered as any other: by the account's rights, the state of the cluster,
the faults. Retries are those of the job's retryConfig.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from google.rpc import code_pb2

from . import iam
from .api_errors import ApiError, LineCut
from .rest import Request, Rest, timestamp
from .store import Thing


@dataclass(frozen=True)
class Fired:
    """An attempt of a job: when, verb and address, the name of a google.rpc.Code, and an error's words."""

    job: str
    at: datetime
    call: str
    status: str
    words: str = ""


def next_after(schedule: str, after: datetime) -> datetime:
    """Find when a schedule of cron is due: a minute; hours, days and months as ``9``, ``4-23`` or ``*``."""
    words = schedule.split()
    try:
        when = after.replace(minute=int(words[0]), second=0, microsecond=0)
        hours, days, months = map(_values, words[1:4])
    except ValueError as error:
        raise ApiError("INVALID_ARGUMENT", f"Schedule is invalid: {schedule!r}") from error
    for _ in range(24 * 367):
        if when > after and when.hour in hours and when.day in days and when.month in months:
            return when
        when += timedelta(hours=1)
    raise ApiError("INVALID_ARGUMENT", f"Schedule is invalid: {schedule!r}")


def _values(word: str) -> range:
    first, _, last = ("0-31" if word == "*" else word).partition("-")
    return range(int(first), int(last or first) + 1)


class Scheduler:
    """The jobs, and every attempt so far."""

    def __init__(self, rest: Rest) -> None:
        self.rest = rest
        self.fired: list[Fired] = []
        rest.specials |= {
            "cloudscheduler.projects.locations.jobs.create": self._create,
            "cloudscheduler.projects.locations.jobs.patch": self._patch,
        }

    def _create(self, _, request: Request) -> dict:
        if not self.rest.store.has("cloudscheduler", place := request.path.removesuffix("/jobs")):
            raise ApiError("INVALID_ARGUMENT", f"Location '{place}' is not a valid location.")
        name = request.body.get("name", "")
        if not name.startswith(f"{request.path}/"):
            raise ApiError("INVALID_ARGUMENT", f"Job name must be within {request.path}.")
        self._check(request.body)
        body = {"timeZone": "Etc/UTC", "state": "ENABLED", **request.body}
        job = self.rest.create(request, name.rpartition("/")[2], body)
        self._plan(self.rest.store.get("cloudscheduler", job["name"]))
        return job

    def _patch(self, _, request: Request) -> dict:
        thing = self.rest.store.get("cloudscheduler", request.path)
        self._check({**thing.body, **request.body})
        self.rest._patch(request)
        self._plan(thing)
        return thing.body

    def _check(self, body: dict) -> None:
        target = body.get("httpTarget", {})
        at_google = urlsplit(target.get("uri", "")).netloc.endswith(".googleapis.com")
        if not at_google or target.get("body") or body.get("timeZone", "Etc/UTC") != "Etc/UTC":
            raise ApiError(
                "UNIMPLEMENTED", "The fake has jobs that call Google's APIs, without a body, in UTC."
            )
        iam.check_act_as(self.rest, target.get("oauthToken", {}).get("serviceAccountEmail", ""))
        next_after(body.get("schedule", ""), self.rest.world.clock.date())

    def _plan(self, thing: Thing) -> None:
        """Let a job happen when it is due next, and no earlier plan of it."""
        when = next_after(thing.body["schedule"], self.rest.world.clock.date())
        due = thing.body["scheduleTime"] = timestamp(when)

        def happen() -> None:
            if thing.body["scheduleTime"] == due and self._exists(thing):
                self._attempt(thing, 0)
                self._plan(thing)

        self.rest.world.clock.after(when.timestamp() - self.rest.world.clock.now() + 0.001, happen)

    def _exists(self, thing: Thing) -> bool:
        return any(item is thing for item in self.rest.store.every("cloudscheduler"))

    def _attempt(self, thing: Thing, attempt: int) -> None:
        if not self._exists(thing):
            return
        target, now = thing.body["httpTarget"], self.rest.world.clock.date()
        call, status, words = f"{target['httpMethod']} {target['uri']}", "OK", ""
        try:
            self._call(target)
        except ApiError as error:
            status, words = error.code, error.message
        except LineCut:
            status, words = "UNAVAILABLE", "URL_UNREACHABLE"
        self.fired.append(Fired(thing.path, now, call, status, words))
        thing.body["status"] = {"code": code_pb2.Code.Value(status), "message": words}
        retry = thing.body.get("retryConfig", {})
        if status != "OK" and attempt < retry.get("retryCount", 0):
            least, most = (float(retry[f"{end}BackoffDuration"].rstrip("s")) for end in ("min", "max"))
            wait = min(least * 2 ** min(attempt, retry.get("maxDoublings", 5)), most)
            self.rest.world.clock.after(wait, lambda: self._attempt(thing, attempt + 1))

    def _call(self, target: dict) -> None:
        url = urlsplit(target["uri"])
        account = target["oauthToken"]["serviceAccountEmail"]
        if not iam.knows(self.rest, account):
            raise ApiError("UNAUTHENTICATED", "Request had invalid authentication credentials.")
        service, path = url.netloc.partition(".")[0], url.path.lstrip("/")
        self.rest.handle(service, target["httpMethod"], path, {}, None, by=account)
