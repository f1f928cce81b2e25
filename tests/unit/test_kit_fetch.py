"""The program that fetches a trainer's source, against real servers of S3 and of Google Cloud Storage."""

import os
import socket
import subprocess
import sys
import time

import boto3
import pytest

import kitlib as kit
from kitlib.errors import BadInput
from kitlib.jobs.program import FETCH

FILES = {
    "lab/main.py": "import one\n",
    "lab/one.py": "import two, torch\n",
    "lab/two.py": "",
    "lab/not.py": "",
}
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture(scope="module")
def serve():
    """Start a program that listens on a port, wait until it does, and return its address."""
    started = []

    def start(*command, **variables):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [word.replace("PORT", str(port)) for word in command]
        env = os.environ | variables
        started.append(subprocess.Popen([sys.executable, "-m", *words], env=env, stderr=subprocess.DEVNULL))
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return f"http://127.0.0.1:{port}"
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"{command} does not listen")

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def s3(serve):
    """What a pod needs to read from a bucket of an S3 server."""
    address = serve("moto.server", "-p", "PORT")
    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    client.create_bucket(Bucket="code")
    for key, text in FILES.items():
        client.put_object(Bucket="code", Key=key, Body=text.encode())
    return KEYS | {"AWS_ENDPOINT_URL": address}


@pytest.fixture(scope="module")
def gs(serve):
    """What a pod needs to read from a bucket of a server of Google Cloud Storage."""
    pytest.importorskip("gcp_storage_emulator")
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    address = serve("gcp_storage_emulator", "start", "--port", "PORT", "--in-memory")
    client = storage.Client(
        project="none", credentials=AnonymousCredentials(), client_options={"api_endpoint": address}
    )
    bucket = client.create_bucket("code")
    for key, text in FILES.items():
        bucket.blob(key).upload_from_string(text)
    return {"STORAGE_EMULATOR_HOST": address}


@pytest.fixture
def fetch(tmp_path):
    """Fetch with these variables alone, and return how it ended with the files that came."""

    def run(url, variables, carried=()):
        folders = tmp_path / "target", tmp_path / "carried"
        for folder in folders:
            folder.mkdir(exist_ok=True)
        for name in carried:
            (folders[1] / name).write_text("carried = True")
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "GOOGLE_"))
        }
        environment |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}
        done = subprocess.run(
            [sys.executable, str(FETCH), url, *map(str, folders)],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done, {path.name: path.read_text() for path in folders[0].iterdir()}

    return run


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_trainer_is_fetched_with_what_it_imports_from_beside_it(scheme, request, fetch):
    variables = request.getfixturevalue(scheme)
    done, files = fetch(f"{scheme}://code/lab/main.py", variables, carried=["two.py", "elastic.py"])
    assert done.returncode == 0, done.stderr
    assert set(files) == {"main.py", "one.py", "two.py", "elastic.py"}
    assert files["two.py"] == "carried = True", "what the kit brings is not replaced"
    assert "not.py" not in files


@pytest.mark.parametrize(
    ("url", "variables", "words"),
    [
        ("s3://code/lab/absent.py", {}, "there is no lab/absent.py in code; correct its name"),
        ("s3://absent/lab/main.py", {}, "there is no bucket absent; correct its name"),
        ("s3://code/lab/main.py", dict.fromkeys(KEYS, ""), "Unable to locate credentials; give the pods"),
        ("s3://code/lab/main.py", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "check that pods reach it"),
    ],
)
def test_errors_of_s3_have_a_fix(s3, fetch, url, variables, words):
    done, files = fetch(url, s3 | variables)
    assert done.returncode == 1
    assert f"the trainer {url} could not be fetched: " in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not files


def test_a_denied_bucket_names_the_missing_permission(serve, fetch):
    # The server looks at who asks from the fourth request on.
    address = serve("moto.server", "-p", "PORT", INITIAL_NO_AUTH_ACTION_COUNT="3")

    def client(service):
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        return boto3.client(service, endpoint_url=address, region_name="us-east-1", **keys)

    client("s3").create_bucket(Bucket="code")
    client("iam").create_user(UserName="nobody")
    key = client("iam").create_access_key(UserName="nobody")["AccessKey"]
    keys = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    done, _ = fetch("s3://code/lab/main.py", keys | {"AWS_ENDPOINT_URL": address})
    assert "no permission to read lab/main.py in bucket code; allow s3:GetObject on it" in done.stderr
    done, _ = fetch("s3://code/lab/main.py", KEYS | {"AWS_ENDPOINT_URL": address})
    assert "InvalidAccessKeyId" in done.stderr
    assert "source_secret=" in done.stderr


def test_errors_of_google_storage_have_a_fix(gs, fetch):
    done, _ = fetch("gs://code/lab/absent.py", gs)
    assert "there is no lab/absent.py in code" in done.stderr
    assert done.returncode == 1


def test_without_an_identity_google_is_not_asked(fetch):
    done, _ = fetch("gs://code/lab/main.py", {})
    assert "credentials were not found" in done.stderr
    assert "source_secret=" in done.stderr


@pytest.mark.parametrize(
    ("trainer", "more"),
    [
        ("https://host/main.py", {}),
        ("s3://bucket", {}),
        ("s3://bucket/folder/", {}),
        ("volume://Not A Name/main.py", {}),
        ("s3://bucket/main.py", {"source_secret": "Not A Name"}),
        ("trainers/digits_ddp.py", {"source_secret": "reader"}),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_anything_is_made(trainer, more):
    with pytest.raises(BadInput):
        kit.IndexedJob(trainer, **more)


@pytest.mark.parametrize("way", [kit.IndexedJob, kit.PyTorchJob, kit.ElasticJob, kit.TorchElastic])
def test_every_pod_fetches_its_trainer_before_it_starts(way):
    job = way("volume://shared/code/main.py", nodes=2, volumes={"/data": "shared"})
    text = job.manifest()
    fetching = text.count("- volume://shared/code/main.py")
    assert fetching == text.count("name: fetch\n") > 0
    assert text.count("claimName: shared") == 2 * fetching
    assert job.claims == ("shared",)
    assert "fetch_trainer.py" in job.objects[0]["data"]
    assert "/trainyard/trainer/main.py" in text
