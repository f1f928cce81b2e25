"""CodeBuild: what moto only keeps is carried out here, as far as it shows: the image is in its repository.

Nothing is built. A build whose archive has no such Dockerfile, or whose repository is not there, leaves
no image.
"""

import io
import json
import shlex
import zipfile
from collections.abc import Callable
from typing import Any

from moto.ecr.models import ecr_backends
from moto.s3.models import s3_backends

from .identities import ACCOUNT
from .wire import Question

MANIFEST = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
    "config": {"size": 1},
    "layers": [],
}


class Builds:
    """What follows from a build that begins; it is over at the next look."""

    def __init__(self) -> None:
        self.after: dict[str, list[Callable[[Question], None]]] = {"codebuild:StartBuild": [self._carry_out]}

    def _carry_out(self, question: Question) -> None:
        given = question.parameters
        commands = _commands(json.loads(given["buildspecOverride"]))
        files = _archive(given["sourceLocationOverride"])
        dockerfile = next(word[7:] for word in commands["build"] if word.startswith("--file="))
        name, _, tag = commands["push"][-1].partition("/")[2].rpartition(":")
        repositories = ecr_backends[ACCOUNT][question.region]
        if dockerfile in files and name in repositories.repositories:
            repositories.put_image(name, json.dumps(MANIFEST | {"tag": tag}), tag, MANIFEST["mediaType"])


def _commands(spec: dict[str, Any]) -> dict[str, list[str]]:
    """Return the words of each of Docker's verbs."""
    lines = [shlex.split(each) for each in spec["phases"]["build"]["commands"]]
    return {words[1]: words for words in lines if words[0] == "docker"}


def _archive(location: str) -> set[str]:
    """Return the names of the files that a build is sent."""
    bucket, _, key = location.partition("/")
    stored = s3_backends[ACCOUNT]["aws"].get_object(bucket, key)
    return set(zipfile.ZipFile(io.BytesIO(stored.value)).namelist())
