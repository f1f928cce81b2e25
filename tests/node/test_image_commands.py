"""``trainyard images``: what a user types, and what they read."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from localkube.controlplane import binaries

from ..unit.image_registry import serve
from ..unit.oci_images import entry, image, layer

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def registry():
    with serve() as serving:
        yield serving


@pytest.fixture
def kit(tmp_path):
    """Run ``trainyard images`` with a store of its own; returns its status, output and errors."""
    binaries.obtain(report=print)
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "trainyard_kit.cli", "images", *arguments]
        return subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=120)

    return run


def test_an_image_is_pulled_listed_saved_removed_and_loaded(kit, registry, tmp_path):
    source = image(layer(entry("large", os.urandom(3 << 20))), compress="")
    reference = registry.add("team/tool:1", source)
    pulled = kit("pull", reference)
    assert pulled.stdout == f"{reference} is {source.id}\n", pulled.stderr
    assert re.search(r"\d\.\d of 3\.2 MB", pulled.stderr)
    assert "unchanged" in kit("pull", reference).stderr
    for listed in (kit("list").stdout, kit().stdout):
        assert re.search(rf"{re.escape(reference)} +{source.id[7:19]} +linux/\w+ +3\.\d+ MiB", listed)
    archive = str(tmp_path / "saved.tar")
    assert kit("save", reference, "--file", archive).stdout == f"{archive}: 3.2 MB\n"
    removed = kit("remove", reference).stdout
    assert removed.startswith(f"{reference} is removed\n1 images removed, 6.") and removed.endswith(
        "MB freed\n"
    )
    assert reference not in kit("list").stdout
    assert kit("load", archive).stdout == f"{reference} is {source.id}\n"
    assert "0 images removed" in kit("prune").stdout
    assert kit("prune", "--all").stdout.startswith(f"{reference} is removed\n")


def test_an_error_says_what_to_do(kit, registry):
    missing = kit("pull", f"{registry.address}/no/such:1")
    assert missing.returncode == 1
    assert "not found" in missing.stderr and "check its name and tag" in missing.stderr
    assert "Traceback" not in missing.stderr
    assert "trainyard images load FILE" in kit("pull", "127.0.0.1:1/x").stderr
    assert "docker save" in kit("load", "/etc/hosts").stderr
