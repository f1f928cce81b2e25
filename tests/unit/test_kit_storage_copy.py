"""The script that takes in what is sent to a volume: on a full disk, and when the stream ends too early."""

import io
import os
import subprocess
import tarfile
from types import SimpleNamespace

import pytest

from kitlib.errors import TransferFailed, VolumeFull
from kitlib.storage import copy
from kitlib.storage.helper_pod import HelperPod

from ..node import restrictions

STAGING = ".trainyard-upload-here"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "STAGING": STAGING}


def stream(size, *, whole=True):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in (("data.bin", os.urandom(size)), *([(copy.END, b"")] if whole else [])):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def receive(place, content, **more):
    """Run the script as the helper's shell does, then list what is there."""
    script = f"({copy._RECEIVE}); status=$?; ls -A; exit $status"
    command = ["sh", "-c", script, "sh", "data.bin", "data.bin", "keep"]
    options = {"input": content, "capture_output": True, "env": ENVIRONMENT, "check": False}
    # The shell goes to the place after the small disk is mounted there.
    done = subprocess.run(["env", "-C", place, *command], **options, **more)
    return done.returncode, done.stdout.decode().split(), done.stderr.decode()


@pytest.mark.parametrize("content", [stream(1000, whole=False), stream(50_000)[:20_000], b""])
def test_a_stream_that_ends_too_early_leaves_nothing(tmp_path, content):
    status, left, errors = receive(tmp_path, content)
    assert status != 0
    assert left == []
    assert errors


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="a small disk needs root")
def test_a_full_volume_is_called_that_and_given_back(tmp_path):
    status, left, errors = receive(
        tmp_path, stream(500_000), preexec_fn=restrictions.disk(tmp_path, size="64k")
    )
    assert (status != 0, left) == (True, [])
    helper = HelperPod(SimpleNamespace(name="lab"), "shared")
    error = helper.failed(errors)
    assert isinstance(error, VolumeFull)
    assert "volume is full" in error.what
    assert type(helper.failed("tar: Unexpected EOF in archive")) is TransferFailed
