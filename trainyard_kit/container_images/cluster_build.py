"""Build an image in a cluster, with a Job that runs rootless BuildKit and pushes the image.

The build context is a ConfigMap, so it has to be small. Pushing needs a Secret: one with the temporary login
of a cloud's registry, or the one that ``TRAINYARD_PULL_SECRET`` names.
"""

import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from kitlib import config
from kitlib.clusters import Cluster
from kitlib.display.progress import progress
from kitlib.errors import BadInput, CommandFailed, RunFailed
from kitlib.jobs.base import Job
from kitlib.jobs.launcher import launch
from kitlib.jobs.sources import CONFIG_MAP_BYTES, Sources, data_of
from kitlib.k8s import manifests, names
from kitlib.k8s.manifests import Object, merge
from kitlib.k8s.pod_security import PodSecurity
from trainyard_kit.container_images.build_context import BuildContext
from trainyard_kit.container_images.registry import DOCKER_CONFIG, Login

PUSHED = re.compile(r"\bpushed (sha256:[0-9a-f]{64})$", re.MULTILINE)  # a rank may precede it
SHOWN_LINES = 15


class ImageBuild(Job):
    """The Job that builds an image and pushes it.

    Args:
        image: With registry and tag.
        context: The build context.
        login: Of the registry; without one the Secret that ``TRAINYARD_PULL_SECRET`` names is used.

    Raises:
        BadInput: The context is larger than a ConfigMap.
    """

    def __init__(self, image: str, context: BuildContext, login: Login | None = None) -> None:
        self.target, self.context, self.login = image, context, login
        self.name = names.unique("build-image")
        self.settings = config.read()
        self.security = PodSecurity(None, restricted=False)  # the manifest has what rootless BuildKit needs
        self.secrets = tuple(filter(None, [self.name if login else self.settings.pull_secret]))
        self.labels: dict[str, str] = names.labels(run=self.name)
        with tempfile.TemporaryDirectory(prefix="trainyard-build-") as folder:
            content = context.archive(Path(folder, "context.zip")).read_bytes()
        if len(content) * 4 / 3 > CONFIG_MAP_BYTES:
            raise BadInput(
                f"the build context has {len(content):,} bytes, more than fit into a ConfigMap",
                about=f"image {image}",
                fix=f"exclude files in {context.dockerfile.name}.dockerignore; or start Docker here",
            )
        self.files: Sources = {"context.zip": content}

    @property
    def image(self) -> str:
        """BuildKit's image, regardless of that of training pods."""
        (job,) = manifests.read(config.manifests("trainer-image", "build.yaml"))
        (container,) = job["spec"]["template"]["spec"]["containers"]
        return str(container["image"])

    def bind(self, cluster: Cluster) -> "ImageBuild":
        """Add the pod fields that the cluster's nodes require."""
        self.additions = cluster.pod_additions()
        return self

    def build(self) -> list[Object]:
        """Build the ConfigMap with the context, the Secret of the login, and the Job."""
        own = {"metadata": {"name": self.name, "labels": self.labels}}
        (job,) = manifests.read(config.manifests("trainer-image", "build.yaml"))
        (container,) = job["spec"]["template"]["spec"]["containers"]
        values = [f"--opt=build-arg:{key}={value}" for key, value in self.context.arguments.items()]
        output = f"type=image,name={self.target},push=true"
        container |= {"args": [self.context.dockerfile_path, output, *values]}
        item = {"key": DOCKER_CONFIG, "path": "config.json"}
        docker = [
            {"name": "docker", "emptyDir": None, "secret": {"secretName": secret, "items": [item]}}
            for secret in self.secrets
        ]
        volumes = [{"name": "context", "configMap": {"name": self.name}}, *docker]
        spec = {"containers": [container], "volumes": volumes, **self.additions}
        template = {"metadata": {"labels": self.labels}, "spec": spec}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", **data_of(self.files)}
        secrets = [merge(self.login.secret(), own)] if self.login else []
        return [merge(config_map, own), *secrets, merge(merge(job, own), {"spec": {"template": template}})]


def build_in_cluster(
    cluster: Cluster, image: str, context: BuildContext, login: Login | None = None
) -> tuple[float, str]:
    """Build an image in a cluster and push it; return the duration in seconds, and its digest.

    If Docker Hub rate-limits the pull of the base image, it is pulled from PyTorch's own registry: the limit
    is per address, which nodes may share. https://docs.docker.com/docker-hub/usage/

    Raises:
        BadInput: The context is too large.
        LaunchRejected: The namespace does not admit rootless BuildKit's pod.
        CommandFailed: Building or pushing failed; the message has BuildKit's last lines.
    """
    began = time.monotonic()
    try:
        digest = _run(cluster, ImageBuild(image, context, login))
    except CommandFailed as error:
        if "toomanyrequests" not in error.what or "BASE" in context.arguments:
            raise
        arguments = {**context.arguments, "BASE": f"ghcr.io/{config.DEFAULT_IMAGE}"}
        digest = _run(cluster, ImageBuild(image, replace(context, arguments=arguments), login))
    return time.monotonic() - began, digest


def _run(cluster: Cluster, build: ImageBuild) -> str:
    """Run a build to completion; return the image's digest."""
    image = build.target
    with progress(f"image {image}") as line:
        run = launch(build, cluster=cluster)
        try:
            for output in run.logs(follow=True):
                line.update(output.strip()[:120])
            run.wait()
        except RunFailed as error:
            fix = "if the push was denied, set TRAINYARD_PULL_SECRET to a Secret that may push"
            log = "\n".join(str(run.logs()).splitlines()[-SHOWN_LINES:])
            raise CommandFailed(log or error.what, about=f"BuildKit, image {image}", fix=fix) from error
        digest = PUSHED.search(str(run.logs()))
        run.delete()
        line.done("built and pushed")
    return digest[1] if digest else ""
