"""Building images with CodeBuild, for machines without a container engine: the project, its role, one build.

Project and role are made when they are first needed, carry the cluster's tags, and go with it. What a build
writes is in the log group of the cluster.
"""

import json
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import PurePath

from clouds.aws.client_errors import AwsError
from clouds.aws.plan import AwsResource, EksPlan
from clouds.aws.registry import LogGroup, Repositories
from clouds.aws.roles import Role, trusts
from clouds.image_builds import BuildSource, follow
from clouds.reconciler.clock import Clock
from clouds.reconciler.resource import ABSENT, ResourceState, ResourceStatus
from kitlib.clusters.image_registry import BuildRequest
from kitlib.errors import CommandFailed

MACHINE = "BUILD_GENERAL1_MEDIUM"  # 4 vCPUs and 8 GB: about a cent a minute
IMAGE = "aws/codebuild/amazonlinux2-x86_64-standard:5.0"
FOLDER = "trainyard/builds"  # of the bucket
LAST_LINES = 15


def build_role(plan: EksPlan) -> Role:
    """Return the role of builds: it reads the bucket, pushes to the repositories, and writes the log."""
    repositories = plan.arn("ecr", f"repository/{Repositories(plan).resource_name('*')}")
    push = (
        "BatchCheckLayerAvailability CompleteLayerUpload InitiateLayerUpload PutImage UploadLayerPart "
        "BatchGetImage GetDownloadUrlForLayer"
    )
    statements = (
        {"Action": "ecr:GetAuthorizationToken", "Resource": "*"},
        {"Action": [f"ecr:{each}" for each in push.split()], "Resource": repositories},
        {
            "Action": ["s3:GetObject", "s3:GetObjectVersion"],
            "Resource": f"arn:{plan.session.partition}:s3:::{plan.bucket}/{FOLDER}/*",
        },
        {"Action": ["logs:CreateLogStream", "logs:PutLogEvents"], "Resource": f"{LogGroup(plan).arn}:*"},
    )
    return Role(plan, "builds", trusts("codebuild"), statements=statements)


class CodeBuildProject(AwsResource):
    """The CodeBuild project of a cluster; it costs nothing but the minutes of its builds."""

    kind, expected = "AWS::CodeBuild::Project", 3.0

    def __init__(self, plan: EksPlan) -> None:
        self.role = build_role(plan)
        super().__init__(plan, "image builds", (self.role.name,))
        self.project = plan.resource_name("builds")

    def describe(self) -> ResourceStatus:
        found = self.session.call("codebuild", "batch_get_projects", names=[self.project])["projects"]
        if not found:
            return ABSENT
        tags = {each["key"]: each["value"] for each in found[0].get("tags", [])}
        if not self.is_ours(tags):
            return ABSENT
        return self.seen(ResourceState.READY, found[0]["arn"], tags=tags)

    def create(self) -> None:
        logs = {"status": "ENABLED", "groupName": LogGroup(self.plan).group, "streamName": "builds"}
        wanted = {
            "name": self.project,
            "source": {
                "type": "S3",
                "location": f"{self.plan.bucket}/{FOLDER}/none.zip",
                "buildspec": buildspec("true"),
            },
            "artifacts": {"type": "NO_ARTIFACTS"},
            "environment": {
                "type": "LINUX_CONTAINER",
                "image": IMAGE,
                "computeType": MACHINE,
                "privilegedMode": True,  # Docker runs in it
            },
            "serviceRole": self.role.arn,
            "timeoutInMinutes": 60,
            "logsConfig": {"cloudWatchLogs": logs},
            "tags": [{"key": key, "value": value} for key, value in self.written().items()],
        }
        try:
            self.session.call(
                "codebuild", "create_project", fine={"ResourceAlreadyExistsException"}, **wanted
            )
        except AwsError as error:
            error.passing |= "AssumeRole" in error.what  # a role that is new is not known everywhere yet
            raise

    def delete(self) -> None:
        if self.describe().state is not ResourceState.ABSENT:
            self.session.find("codebuild", "delete_project", name=self.project)

    def mark(self, tags: Mapping[str, str]) -> None:
        if self.describe().state is ResourceState.ABSENT:
            return
        every = [{"key": key, "value": value} for key, value in (self.written() | dict(tags)).items()]
        self.session.call("codebuild", "update_project", name=self.project, tags=every)


def build_parts(plan: EksPlan) -> list[AwsResource]:
    """List the resources that a cluster's builds may have left."""
    project = CodeBuildProject(plan)
    return [project.role, project]


class CodeBuildRun(AwsResource):
    """One build, which is ready when it has ended, however that was.

    Args:
        plan: The cluster.
        project: Whose build it is.
        order: What from.
        source: The archive in the bucket.

    Attributes:
        ended: How it ended, as CodeBuild shows it.
    """

    kind, expected = "AWS::CodeBuild::Build", 900.0  # most of it is the base, which has gigabytes

    def __init__(self, plan: EksPlan, project: CodeBuildProject, order: BuildRequest, source: str) -> None:
        super().__init__(plan, "image build", (project.name,))
        self.project, self.order, self.source = project.project, order, source
        self.build, self.ended = "", {}

    def describe(self) -> ResourceStatus:
        if not self.build:
            return ABSENT
        (now,) = self.session.call("codebuild", "batch_get_builds", ids=[self.build])["builds"]
        if now["buildStatus"] != "IN_PROGRESS":
            self.ended = now
            return ResourceStatus(ResourceState.READY, self.build)
        phase = now.get("currentPhase", "QUEUED").lower().replace("_", " ")
        return ResourceStatus(ResourceState.PENDING, self.build, f"CodeBuild: {phase}")

    def create(self) -> None:
        begun = self.session.call(
            "codebuild",
            "start_build",
            projectName=self.project,
            idempotencyToken=PurePath(self.source).stem,  # a request that is repeated begins no second build
            sourceTypeOverride="S3",
            sourceLocationOverride=f"{self.plan.bucket}/{self.source}",
            buildspecOverride=buildspec(*_commands(self.order, self.session.region)),
        )
        self.build = begun["build"]["id"]

    def delete(self) -> None:
        if self.build and not self.ended:
            self.session.find("codebuild", "stop_build", id=self.build)


def build(
    plan: EksPlan, order: BuildRequest, *, report: Callable[[str], None], clock: Clock | None = None
) -> None:
    """Build an image and push it; returns when it is in its repository.

    Args:
        plan: The cluster.
        order: What from.
        report: Told what CodeBuild does.
        clock: Of the waiting; by default the one on the wall.

    Raises:
        CommandFailed: The build failed; the error has its last lines.
        Interrupted: The user stopped it; so was the build.
    """
    session, project, about = plan.session, CodeBuildProject(plan), f"image {order.image}"
    source = f"{FOLDER}/{plan.resource_name('context')}-{time.time_ns()}.zip"
    one = CodeBuildRun(plan, project, order, source)

    where = {"Bucket": plan.bucket, "Key": source}
    follow(
        one,
        [project.role, project],
        BuildSource(
            send=lambda: session.call("s3", "put_object", Body=order.archive.read_bytes(), **where),
            drop=lambda: session.find("s3", "delete_object", **where),
        ),
        service="CodeBuild",
        stopped="was stopped as well",
        about=about,
        report=report,
        clock=clock,
    )
    if one.ended["buildStatus"] != "SUCCEEDED":
        raise CommandFailed(
            _last_words(plan, one.ended) or f"its status is {one.ended['buildStatus']}",
            about=f"CodeBuild {one.build}, {about}",
            fix="fix the Dockerfile; all that it wrote: "
            + one.ended.get("logs", {}).get("deepLink", "its log"),
        )


def buildspec(*commands: str) -> str:
    """Build the buildspec of CodeBuild; JSON is YAML."""
    return json.dumps({"version": 0.2, "phases": {"build": {"commands": list(commands)}}})


def _commands(order: BuildRequest, region: str) -> tuple[str, ...]:
    host = order.image.partition("/")[0]
    values = [f"--build-arg={key}={value}" for key, value in order.arguments.items()]
    login = (
        f"aws ecr get-login-password --region {region} | docker login --username AWS --password-stdin {host}"
    )
    made = ["docker", "build", f"--file={order.dockerfile}", f"--tag={order.image}", *values, "."]
    return login, shlex.join(made), shlex.join(["docker", "push", order.image])


def _last_words(plan: EksPlan, ended: Mapping) -> str:
    """Return the last lines of a build's log, or of why it never began."""
    said = [
        context["message"]
        for phase in ended.get("phases", [])
        if phase.get("phaseStatus") not in (None, "SUCCEEDED")
        for context in phase.get("contexts", [])
        if context.get("message")
    ]
    logs = ended.get("logs", {})
    if logs.get("groupName") and logs.get("streamName"):
        found = plan.session.find(
            "logs",
            "get_log_events",
            logGroupName=logs["groupName"],
            logStreamName=logs["streamName"],
            limit=LAST_LINES,
        )
        said += [each["message"].rstrip() for each in (found or {}).get("events", [])]
    return "\n".join(said[-LAST_LINES:])
