"""CodeBuild: what moto only keeps is carried out here, as far as it shows: the image is in its repository.

Nothing is built. A build whose archive has no such Dockerfile, or whose repository is not there, leaves none.
"""

import io
import json
import shlex
import zipfile

from moto.ecr.models import ecr_backends
from moto.s3.models import s3_backends

from .faults import ACCOUNT
from .wire import Question

MEDIA = "application/vnd.docker.distribution.manifest.v2+json"
MANIFEST = {"schemaVersion": 2, "mediaType": MEDIA, "config": {"size": 1}, "layers": []}


def carry_out(question: Question) -> None:
    """Have the image of a build in its repository."""
    given = question.parameters
    lines = json.loads(given["buildspecOverride"])["phases"]["build"]["commands"]
    commands = {words[1]: words for words in map(shlex.split, lines) if words[0] == "docker"}
    bucket, _, key = given["sourceLocationOverride"].partition("/")
    stored = s3_backends[ACCOUNT]["aws"].get_object(bucket, key)
    files = zipfile.ZipFile(io.BytesIO(stored.value)).namelist()
    dockerfile = next(word[7:] for word in commands["build"] if word.startswith("--file="))
    name, _, tag = commands["push"][-1].partition("/")[2].rpartition(":")
    repositories = ecr_backends[ACCOUNT][question.region]
    if dockerfile in files and name in repositories.repositories:
        repositories.put_image(name, json.dumps(MANIFEST | {"tag": tag}), tag, MEDIA)
