# /// script
# requires-python = ">=3.11"
# dependencies = ["boto3>=1.44", "botocore>=1.44", "google-cloud-storage>=3.17"]
# ///
"""Fetch a trainer's source from object storage or a volume for a pod.

It runs in an init container from a ConfigMap, so it imports none of our modules:

    python trainers/fetch_trainer.py s3://bucket/code/main.py /trainyard/trainer /trainyard/carried

Modules beside the trainer that it imports and that are not installed are fetched as well. The third argument
is a folder whose files are copied first. Credentials are the pod's: its cloud identity, or variables of boto3
and google-cloud-storage, including AWS_ENDPOINT_URL and STORAGE_EMULATOR_HOST.

The last lines on stderr explain a failure and its fix; they become the pod's termination message.
"""

import ast
import importlib.util
import os
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

MOUNTED = "/trainyard/source"
CONNECT_SECONDS, ANSWER_SECONDS, ATTEMPTS = 5, 20, 3


class FetchFailed(Exception):
    """The trainer cannot be fetched; the message names the problem and the fix."""


class NotStored(Exception):
    """Nothing is stored under this name."""


class TrainerSource(ABC):
    """The storage of a trainer.

    Args:
        place: The bucket or volume.
    """

    def __init__(self, place: str) -> None:
        self.place = place

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Return the content stored under a name; raise NotStored or FetchFailed."""


class VolumeSource(TrainerSource):
    """A volume, mounted at :data:`MOUNTED`."""

    def read(self, key: str) -> bytes:
        try:
            return Path(MOUNTED, key).read_bytes()
        except FileNotFoundError as error:
            raise NotStored from error
        except OSError as error:
            raise FetchFailed(f"it cannot be read: {error.strerror}; check its permissions") from error


class S3Source(TrainerSource):
    """A bucket in S3, or in an S3-compatible server."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            retries={"total_max_attempts": ATTEMPTS},
            # Other servers rarely have a host name per bucket.
            s3={"addressing_style": "path" if "AWS_ENDPOINT_URL" in os.environ else "auto"},
        )
        self.client = boto3.client("s3", config=config, region_name=_region())

    def read(self, key: str) -> bytes:
        from botocore import exceptions as wrong

        try:
            return self.client.get_object(Bucket=self.place, Key=key)["Body"].read()
        except wrong.ClientError as error:
            raise self._refused(error.response["Error"], key) from error
        except (wrong.NoCredentialsError, wrong.PartialCredentialsError) as error:
            raise FetchFailed(f"{error}; {IDENTITY}") from error
        except wrong.BotoCoreError as error:  # unknown host, no answer, or an interrupted read
            raise FetchFailed(
                f"{error}; check that pods reach it: {self.client.meta.endpoint_url}"
            ) from error

    def _refused(self, answer: dict[str, str], key: str) -> Exception:
        code, message = answer.get("Code"), answer.get("Message", "")
        if code == "NoSuchKey":
            return NotStored()
        if code == "NoSuchBucket":
            return FetchFailed(f"there is no bucket {self.place}; correct its name")
        if code in ("AccessDenied", "403"):
            return FetchFailed(
                f"no permission to read {key} in bucket {self.place}; allow s3:GetObject on it"
            )
        return FetchFailed(f"{code}: {message}; {IDENTITY}")


class GoogleStorageSource(TrainerSource):
    """A bucket in Google Cloud Storage."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        from google.auth.exceptions import GoogleAuthError
        from google.cloud.storage import Client

        try:
            # Reading an object needs no project.
            self.bucket = Client(project="none").bucket(place)
        except GoogleAuthError as error:
            raise FetchFailed(f"{error}; {IDENTITY}") from error

    def read(self, key: str) -> bytes:
        from google.api_core import exceptions as wrong
        from google.api_core.retry import Retry
        from google.auth.exceptions import GoogleAuthError

        try:
            retry = Retry(timeout=ANSWER_SECONDS)
            return self.bucket.blob(key).download_as_bytes(timeout=ANSWER_SECONDS, retry=retry)
        except wrong.NotFound as error:
            if "bucket" in str(error).lower().replace(self.place.lower(), ""):
                raise FetchFailed(f"there is no bucket {self.place}; correct its name") from error
            raise NotStored from error
        except (wrong.Forbidden, wrong.Unauthorized) as error:
            raise FetchFailed(
                f"no permission to read {key} in bucket {self.place}; allow storage.objects.get on it"
            ) from error
        except GoogleAuthError as error:
            raise FetchFailed(f"{error}; {IDENTITY}") from error
        except (wrong.GoogleAPIError, OSError) as error:
            raise FetchFailed(f"{error}; check that pods reach the storage") from error


DATA = re.compile(rb"""with_name\("([-\w.]+)"\)""")  # how trainers name a file beside them
IDENTITY = "give the pods an identity with read permission, or a Secret: source_secret="
SOURCES: dict[str, Callable[[str], TrainerSource]] = {
    "s3": S3Source,
    "gs": GoogleStorageSource,
    "volume": VolumeSource,
}


def fetch(url: str, target: Path) -> list[str]:
    """Fetch a trainer and the modules beside it that it imports; return the names of the files.

    Raises:
        FetchFailed: It does not exist, or cannot be read.
    """
    scheme, _, rest = url.partition("://")
    place, key = rest.split("/", 1)
    folder, _, name = key.rpartition("/")
    try:
        source = SOURCES[scheme](place)
    except ImportError as error:
        raise FetchFailed(f"this image has no {error.name}; use the kit's, images/trainer") from error
    fetched, waiting = [], [name]
    while waiting:
        file = waiting.pop(0)
        try:
            content = source.read(f"{folder}/{file}" if folder else file)
        except NotStored:
            if file == name:
                raise FetchFailed(
                    f"there is no {key} in {place}; correct its name, or put it there"
                ) from None
            continue  # the import fails later with a clear error
        except FetchFailed:
            if file == name:
                raise
            continue  # without permission to list, a missing object is reported as forbidden
        (target / file).write_bytes(content)
        fetched.append(file)
        if file.endswith(".py"):
            modules = [f"{module}.py" for module in _imports(content, file) if not _exists(module, target)]
            modules += [name.decode() for name in DATA.findall(content)]
            waiting += [path for path in modules if path not in waiting]
    return fetched


def _imports(content: bytes, file: str) -> Iterator[str]:
    """Yield the top-level modules that a source imports anywhere."""
    try:
        tree = ast.parse(content, filename=file)
    except (SyntaxError, ValueError) as error:
        raise FetchFailed(f"{file} is not valid Python: {error}; fix it") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _exists(module: str, target: Path) -> bool:
    return (target / f"{module}.py").exists() or importlib.util.find_spec(module) is not None


def _region() -> str:
    """Return the region; S3 redirects from any to the bucket's."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def main() -> None:
    """Copy the carried files, and fetch the rest."""
    url, target, carried = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != carried.resolve()]
    for file in sorted(carried.glob("*.py")):
        shutil.copyfile(file, target / file.name)
    try:
        print(f"{url}: {', '.join(fetch(url, target))}", flush=True)
    except FetchFailed as error:
        sys.exit(f"the trainer {url} could not be fetched: {error}")


if __name__ == "__main__":
    main()
