"""Cloud Scheduler: jobs that call Google's APIs when the simulated clock gets there, as a service account.

The call is made inside the fake and answered as any other: by the account's rights, the state of the cluster,
the faults. Retries are those of the job's retryConfig. Targets other than Google's APIs are not reached.
"""

import base64
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import parse_qs, urlsplit

from google.rpc import code_pb2

from . import cron
from .api_errors import ApiError, LineCut
from .operations import timestamp
from .rest import Request, Rest
from .store import Thing


@dataclass(frozen=True)
class Fired:
    """An attempt of a job.

    Attributes:
        job: Its path.
        at: When.
        call: Verb and address.
        status: The name of a google.rpc.Code: ``OK``.
        words: What was answered, if that was no.
    """

    job: str
    at: datetime
    call: str
    status: str
    words: str = ""


class Scheduler:
    """The jobs of all projects.

    Attributes:
        fired: Every attempt so far.
    """

    def __init__(self, rest: Rest) -> None:
        self.rest = rest
        self.fired: list[Fired] = []
        self._due: dict[str, int] = {}  # a job's present plan: earlier ones are void
        self.specials = {
            f"cloudscheduler.projects.locations.jobs.{verb}": getattr(self, f"_{verb}")
            for verb in ("create", "patch", "pause", "resume", "run")
        }

    def _create(self, _, request: Request) -> dict:
        name = request.body.get("name", "").rsplit("/", 1)[-1]
        if request.body.get("name") and not request.body["name"].startswith(f"{request.path}/"):
            raise ApiError("INVALID_ARGUMENT", f"Job name must be within {request.path}.")
        self._check(request.body)
        made = self.rest.create(request, name, {"timeZone": "Etc/UTC", "state": "ENABLED", **request.body})
        for key in ("createTime", "updateTime"):
            made.pop(key)
        made["userUpdateTime"] = timestamp(self.rest.world.clock.now)
        self._plan(self.rest.store.get("cloudscheduler", made["name"]))
        return made

    def _patch(self, _, request: Request) -> dict:
        self._check({**self.rest.store.get("cloudscheduler", request.path).body, **request.body})
        self.rest._patch(request)
        return self._plan(self.rest.store.get("cloudscheduler", request.path)).body

    def _pause(self, _, request: Request) -> dict:
        return self._switch(request, "PAUSED")

    def _resume(self, _, request: Request) -> dict:
        return self._switch(request, "ENABLED")

    def _run(self, _, request: Request) -> dict:
        thing = self._job(request)
        self.rest.world.clock.after(0, lambda: self._attempt(thing, 0))
        return thing.body

    def _job(self, request: Request) -> Thing:
        return self.rest.store.get("cloudscheduler", request.path.partition(":")[0])

    def _switch(self, request: Request, state: str) -> dict:
        thing = self._job(request)
        thing.body["state"] = state
        return self._plan(thing).body

    def _check(self, body: dict) -> None:
        if "httpTarget" not in body:
            raise ApiError("INVALID_ARGUMENT", "The fake has jobs with an httpTarget only.")
        try:
            cron.next_after(
                body.get("schedule", ""), self.rest.world.clock.now, body.get("timeZone", "Etc/UTC")
            )
        except (ValueError, KeyError) as error:
            raise ApiError("INVALID_ARGUMENT", f"Schedule or time zone is invalid: {error}") from error

    def _plan(self, thing: Thing) -> Thing:
        """Let a job happen when it is due next, and no earlier plan of it."""
        plan = self._due[thing.path] = self._due.get(thing.path, 0) + 1
        thing.body.pop("scheduleTime", None)
        if thing.body["state"] == "ENABLED":
            now, zone = self.rest.world.clock.now, thing.body["timeZone"]
            when = cron.next_after(thing.body["schedule"], now, zone)
            thing.body["scheduleTime"] = timestamp(when)
            self.rest.world.clock.at(when, lambda: self._happen(thing, plan))
        return thing

    def _happen(self, thing: Thing, plan: int) -> None:
        if self._due[thing.path] == plan and self._is_there(thing):
            self._attempt(thing, 0)
            self._plan(thing)

    def _is_there(self, thing: Thing) -> bool:
        has = self.rest.store.has("cloudscheduler", thing.path)
        return has and self.rest.store.get("cloudscheduler", thing.path) is thing

    def _attempt(self, thing: Thing, attempt: int) -> None:
        if not self._is_there(thing):
            return
        target, now = thing.body["httpTarget"], self.rest.world.clock.now
        call = f"{target.get('httpMethod', 'POST')} {target['uri']}"
        try:
            self._call(target)
        except ApiError as error:
            fired = Fired(thing.path, now, call, error.code, error.message)
        except LineCut:
            fired = Fired(thing.path, now, call, "UNAVAILABLE", "URL_UNREACHABLE")
        else:
            fired = Fired(thing.path, now, call, "OK")
        self.fired.append(fired)
        thing.body["lastAttemptTime"] = timestamp(now)
        thing.body["status"] = {"code": code_pb2.Code.Value(fired.status), "message": fired.words}
        retry = thing.body.get("retryConfig", {})
        if fired.status != "OK" and attempt < retry.get("retryCount", 0):
            wait = _seconds(retry, "minBackoffDuration", 5) * 2 ** min(attempt, retry.get("maxDoublings", 5))
            wait = min(wait, _seconds(retry, "maxBackoffDuration", 3600))
            when = now + timedelta(seconds=wait)
            self.rest.world.clock.at(when, lambda: self._attempt(thing, attempt + 1))

    def _call(self, target: dict) -> None:
        url = urlsplit(target["uri"])
        service, _, domain = (url.hostname or "").partition(".")
        if domain != "googleapis.com":
            raise ApiError("UNAVAILABLE", f"URL_UNREACHABLE: {target['uri']}")
        account = target.get("oauthToken", {}).get("serviceAccountEmail", "")
        project = account.partition("@")[2].partition(".")[0]
        if not self.rest.store.has("iam", f"projects/{project}/serviceAccounts/{account}"):
            raise ApiError("UNAUTHENTICATED", "Request had invalid authentication credentials.")
        body = json.loads(base64.b64decode(target["body"])) if target.get("body") else None
        verb, path = target.get("httpMethod", "POST"), url.path.lstrip("/")
        self.rest.handle(service, verb, path, parse_qs(url.query), body, by=account)


def _seconds(retry: dict, key: str, usual: float) -> float:
    return float(str(retry.get(key, usual)).removesuffix("s"))
