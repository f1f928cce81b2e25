"""Building in a cluster, for machines without an engine: a Job of rootless BuildKit, which pushes the image.

A ConfigMap carries the build context, so this is for Dockerfiles with little beside them. Pushing needs a
Secret, that of ``TRAINYARD_PULL_SECRET``, with which the nodes then pull.
"""

import re
import tempfile
import time
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

DOCKER_CONFIG = ".dockerconfigjson"
PUSHED = re.compile(r"^pushed (sha256:[0-9a-f]{64})$", re.MULTILINE)
SHOWN_LINES = 15


class ImageBuild(Job):
    """The Job that builds an image and pushes it.

    Args:
        image: With registry and tag.
        context: What it is built from.

    Raises:
        BadInput: The context is larger than a ConfigMap.
    """

    def __init__(self, image: str, context: BuildContext) -> None:
        self.pushed, self.context = image, context
        self.name = names.unique("build-image")
        self.settings = config.read()
        self.security = PodSecurity(None, restricted=False)  # the manifest has what rootless BuildKit needs
        self.secrets = tuple(filter(None, [self.settings.pull_secret]))
        self.labels: dict[str, str] = names.labels(run=self.name)
        with tempfile.TemporaryDirectory(prefix="trainyard-build-") as aside:
            content = context.archive(Path(aside, "context.zip")).read_bytes()
        if len(content) * 4 / 3 > CONFIG_MAP_BYTES:
            raise BadInput(
                f"the files beside the Dockerfile are {len(content):,} bytes, more than a ConfigMap carries",
                about=f"image {image}",
                fix=f"leave some out in {context.dockerfile.name}.dockerignore; or start Docker here",
            )
        self.files: Sources = {"context.zip": content}

    @property
    def image(self) -> str:
        """BuildKit's own, whatever image training pods have."""
        (job,) = manifests.read(config.manifests("trainer-image", "build.yaml"))
        (container,) = job["spec"]["template"]["spec"]["containers"]
        return str(container["image"])

    def on(self, cluster: Cluster) -> "ImageBuild":
        """Add what the cluster's nodes require."""
        self.additions = cluster.pod_additions()
        return self

    def build(self) -> list[Object]:
        """Build the ConfigMap with the context, and the Job."""
        own = {"metadata": {"name": self.name, "labels": self.labels}}
        (job,) = manifests.read(config.manifests("trainer-image", "build.yaml"))
        (container,) = job["spec"]["template"]["spec"]["containers"]
        values = [f"--opt=build-arg:{key}={value}" for key, value in self.context.arguments.items()]
        output = f"type=image,name={self.pushed},push=true"
        container |= {"args": [self.context.within, output, *values]}
        item = {"key": DOCKER_CONFIG, "path": "config.json"}
        docker = [
            {"name": "docker", "emptyDir": None, "secret": {"secretName": secret, "items": [item]}}
            for secret in self.secrets
        ]
        volumes = [{"name": "context", "configMap": {"name": self.name}}, *docker]
        spec = {"containers": [container], "volumes": volumes, **self.additions}
        template = {"metadata": {"labels": self.labels}, "spec": spec}
        carrier = {"apiVersion": "v1", "kind": "ConfigMap", **data_of(self.files)}
        return [merge(carrier, own), merge(merge(job, own), {"spec": {"template": template}})]


def build_in_cluster(cluster: Cluster, image: str, context: BuildContext) -> tuple[float, str]:
    """Build an image in a cluster and push it; return the seconds that it took, and its digest.

    Raises:
        BadInput: The context is too large.
        LaunchRejected: The namespace admits no pod that rootless BuildKit needs.
        CommandFailed: Building or pushing failed; the error has BuildKit's last lines.
    """
    began = time.monotonic()
    with progress(f"image {image}") as line:
        run = launch(ImageBuild(image, context), cluster=cluster)
        try:
            for output in run.logs(follow=True):
                line.update(output.strip()[:120])
            run.wait()
        except RunFailed as error:
            secret = "TRAINYARD_PULL_SECRET names the Secret with which it pushes"
            words = "\n".join(str(run.logs()).splitlines()[-SHOWN_LINES:])
            raise CommandFailed(words or error.what, about=f"BuildKit, image {image}", fix=secret) from error
        digest = PUSHED.search(str(run.logs()))
        run.delete()
        line.done("built and pushed")
    return time.monotonic() - began, digest[1] if digest else ""
