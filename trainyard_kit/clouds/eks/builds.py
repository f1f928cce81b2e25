"""Building an image with CodeBuild, by the project of the cluster's stack."""

import json
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kitlib.errors import CommandFailed, Interrupted, KitError, WaitTimeout
from trainyard_kit.clouds.clock import Clock
from trainyard_kit.clouds.eks.session import AwsSession
from trainyard_kit.container_images.registry import BuildRequest

POLL, LONGEST, LAST_LINES = 10.0, 4200.0, 15  # the project ends a build after an hour


def build(
    session: AwsSession, cluster: str, order: BuildRequest, *, report: Callable[[str], None], clock: Clock
) -> None:
    """Build an image and push it; returns when it is in its repository. No source stays behind."""
    about, token = f"image {order.image}", f"{time.time_ns()}"
    bucket = f"trainyard-{session.account}-{session.region}-{cluster}"
    where = {"Bucket": bucket, "Key": f"trainyard/builds/{token}.zip"}
    build_id = ""
    try:
        report("sending what it is built from")
        session.call("s3", "put_object", Body=order.archive.read_bytes(), **where)
        project: dict[str, Any] = {
            "projectName": f"trainyard-{cluster}-builds",
            "idempotencyToken": token,  # a request that is repeated begins no second build
            "sourceTypeOverride": "S3",
            "sourceLocationOverride": f"{bucket}/{where['Key']}",
            "buildspecOverride": _buildspec(order, session.region),
        }
        build_id = session.call("codebuild", "start_build", **project)["build"]["id"]
        ended = _wait(session, build_id, about=about, report=report, clock=clock)
    except BaseException as error:
        if build_id:
            with suppress(KitError):  # the project ends it after an hour
                session.find("codebuild", "stop_build", id=build_id)
        if isinstance(error, KeyboardInterrupt):
            words = "stopped, and so was the build"
            raise Interrupted(words, about=about, fix="call it again to build it") from error
        raise
    finally:
        session.find("s3", "delete_object", **where)
    if ended["buildStatus"] != "SUCCEEDED":
        words = _last_words(session, ended) or f"its status is {ended['buildStatus']}"
        fix = "fix the Dockerfile; its whole log: " + ended.get("logs", {}).get("deepLink", "in the console")
        raise CommandFailed(words, about=f"CodeBuild {build_id}, {about}", fix=fix)


def _wait(
    session: AwsSession, build_id: str, *, about: str, report: Callable[[str], None], clock: Clock
) -> dict[str, Any]:
    end = clock.now() + LONGEST
    while True:
        (now,) = session.call("codebuild", "batch_get_builds", ids=[build_id])["builds"]
        if now["buildStatus"] != "IN_PROGRESS":
            return now
        phase = now.get("currentPhase", "QUEUED").lower().replace("_", " ")
        if clock.now() > end:
            raise WaitTimeout(f"the build is still in its phase {phase}", about=about, fix="build it again")
        report(f"CodeBuild: {phase}")
        clock.sleep(POLL)


def _buildspec(order: BuildRequest, region: str) -> str:
    """Write a buildspec of CodeBuild; JSON is YAML."""
    host = order.image.partition("/")[0]
    login = (
        f"aws ecr get-login-password --region {region} | docker login --username AWS --password-stdin {host}"
    )
    commands = [login, shlex.join(["docker", *order.words]), shlex.join(["docker", "push", order.image])]
    return json.dumps({"version": 0.2, "phases": {"build": {"commands": commands}}})


def _last_words(session: AwsSession, ended: Mapping[str, Any]) -> str:
    """Read the last lines of a build's log, or why it never began."""
    phases = [
        phase for phase in ended.get("phases", []) if phase.get("phaseStatus") not in (None, "SUCCEEDED")
    ]
    contexts = [context for phase in phases for context in phase.get("contexts", [])]
    lines = [context["message"] for context in contexts if context.get("message")]
    logs = ended.get("logs", {})
    if logs.get("groupName") and logs.get("streamName"):
        stream = {"logGroupName": logs["groupName"], "logStreamName": logs["streamName"]}
        log_page = session.find("logs", "get_log_events", limit=LAST_LINES, **stream)
        lines += [event["message"].rstrip() for event in (log_page or {}).get("events", [])]
    return "\n".join(lines[-LAST_LINES:])
