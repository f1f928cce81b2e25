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
from collections.abc import Callable, Iterator
from pathlib import Path

MOUNTED = "/trainyard/source"
Read = Callable[[str], bytes]  # the content of a key; raises NotStored or FetchFailed
CONNECT_SECONDS, ANSWER_SECONDS, ATTEMPTS = 5, 20, 3


class FetchFailed(Exception):
    """The trainer cannot be fetched; the message names the problem and the fix."""


class NotStored(Exception):
    """Nothing is stored under this name."""


def open_volume(_: str) -> Read:
    """Return a reader of files of the volume that is mounted at :data:`MOUNTED`."""

    def read(key: str) -> bytes:
        try:
            return Path(MOUNTED, key).read_bytes()
        except FileNotFoundError as error:
            raise NotStored from error
        except OSError as error:
            raise FetchFailed(f"it cannot be read: {error.strerror}; check its permissions") from error

    return read


def open_s3(bucket: str) -> Read:
    """Return a reader of objects in S3, or in an S3-compatible server."""
    import boto3
    from botocore import exceptions
    from botocore.config import Config

    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"total_max_attempts": ATTEMPTS},
        # Other servers rarely have a host name per bucket.
        s3={"addressing_style": "path" if "AWS_ENDPOINT_URL" in os.environ else "auto"},
    )
    # S3 redirects from any region to the bucket's.
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    client = boto3.client("s3", config=config, region_name=region)

    def read(key: str) -> bytes:
        try:
            return client.get_object(Bucket=bucket, Key=key)["Body"].read()
        except exceptions.ClientError as error:
            code, message = error.response["Error"].get("Code"), error.response["Error"].get("Message", "")
            if code == "NoSuchKey":
                raise NotStored from error
            if code == "NoSuchBucket":
                raise _no_bucket(bucket) from error
            if code in ("AccessDenied", "403"):
                raise _not_permitted(key, bucket, "s3:GetObject") from error
            raise FetchFailed(f"{code}: {message}; {IDENTITY}") from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise FetchFailed(f"{error}; {IDENTITY}") from error
        except exceptions.BotoCoreError as error:  # unknown host, no answer, or an interrupted read
            raise FetchFailed(f"{error}; check that pods reach it: {client.meta.endpoint_url}") from error

    return read


def open_google_storage(name: str) -> Read:
    """Return a reader of objects in Google Cloud Storage."""
    from google.api_core import exceptions
    from google.api_core.retry import Retry
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.storage import Client

    try:
        bucket = Client(project="none").bucket(name)  # reading an object needs no project
    except GoogleAuthError as error:
        raise FetchFailed(f"{error}; {IDENTITY}") from error

    def read(key: str) -> bytes:
        try:
            retry = Retry(timeout=ANSWER_SECONDS)
            return bucket.blob(key).download_as_bytes(timeout=ANSWER_SECONDS, retry=retry)
        except exceptions.NotFound as error:
            if "bucket" in str(error).lower().replace(name.lower(), ""):
                raise _no_bucket(name) from error
            raise NotStored from error
        except (exceptions.Forbidden, exceptions.Unauthorized) as error:
            raise _not_permitted(key, name, "storage.objects.get") from error
        except GoogleAuthError as error:
            raise FetchFailed(f"{error}; {IDENTITY}") from error
        except (exceptions.GoogleAPIError, OSError) as error:
            raise FetchFailed(f"{error}; check that pods reach the storage") from error

    return read


def _no_bucket(name: str) -> FetchFailed:
    return FetchFailed(f"there is no bucket {name}; correct its name")


def _not_permitted(key: str, bucket: str, permission: str) -> FetchFailed:
    return FetchFailed(f"no permission to read {key} in bucket {bucket}; allow {permission} on it")


DATA = re.compile(rb"""with_name\("([-\w.]+)"\)""")  # how trainers name a file beside them
IDENTITY = "give the pods an identity with read permission, or a Secret: source_secret="
SOURCES = {"s3": open_s3, "gs": open_google_storage, "volume": open_volume}


def fetch(url: str, target: Path) -> list[str]:
    """Fetch a trainer and the modules beside it that it imports; return the names of the files.

    Raises:
        FetchFailed: It does not exist, or cannot be read.
    """
    scheme, _, rest = url.partition("://")
    place, key = rest.split("/", 1)
    folder, _, name = key.rpartition("/")
    try:
        read = SOURCES[scheme](place)
    except ImportError as error:
        raise FetchFailed(f"this image has no {error.name}; use the kit's, images/trainer") from error
    fetched, waiting = [], [name]
    while waiting:
        file = waiting.pop(0)
        try:
            content = read(f"{folder}/{file}" if folder else file)
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
