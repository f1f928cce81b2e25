"""What a local cluster's own Python processes are told: where a checkout lies, and no secret."""

import site
import socket
from pathlib import Path

import pytest

from localkube.cluster import preparation
from localkube.kubelet.pods.container_spec import root_mounts

SOURCE = str(Path(preparation.__file__).resolve().parents[2])


def test_processes_of_a_checkout_find_it():
    assert preparation.python_environment()["PYTHONPATH"] == SOURCE


def test_what_is_installed_stays_where_pods_look_for_packages(monkeypatch):
    # The forkserver removes what PYTHONPATH names from pods' paths: they would miss torchvision and gloo.
    monkeypatch.setattr(site, "getsitepackages", lambda: ["/usr/lib/python", SOURCE])
    assert "PYTHONPATH" not in preparation.python_environment()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for name in (
        ".git/config",
        "pyproject.toml",
        ".env",
        "trainers/ddp.py",
        "notebooks/01.ipynb",
        "trainers/own",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "trainers" / "own").chmod(0o600)
    (tmp_path / "notebooks" / "kubeconfig").symlink_to("../.env")
    monkeypatch.setattr(preparation, "CHECKOUT", tmp_path)
    return tmp_path


def test_of_a_checkout_pods_get_the_kits_folders_without_files_of_the_user_alone(checkout, tmp_path_factory):
    copy = tmp_path_factory.mktemp("cluster") / "kit"
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(checkout / "trainers" / "agent"))
        sources = preparation.copy_kit(copy, [str(checkout), str(checkout / ".venv"), "/usr"])
    assert sources == {str(checkout): str(copy)}
    names = {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_dir()}
    assert names == {"trainers/ddp.py", "notebooks/01.ipynb", "notebooks/kubeconfig"}
    assert not (copy / "notebooks" / "kubeconfig").exists()
    assert (copy / ".venv").is_dir()
    (mount,) = root_mounts([str(checkout)], ["/home", str(checkout)], sources=sources)[-1:]
    assert (mount.destination, mount.source, mount.readonly) == (str(checkout), str(copy), True)


def test_a_checkout_that_is_closed_to_others_as_a_whole_is_shown(checkout, tmp_path_factory):
    for path in (checkout / "trainers", checkout / "trainers" / "ddp.py"):
        path.chmod(path.stat().st_mode & 0o700)
    copy = tmp_path_factory.mktemp("cluster") / "kit"
    preparation.copy_kit(copy, [])
    assert (copy / "trainers" / "ddp.py").exists()


def test_no_secret_of_the_users_is_handed_on(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "secret" not in preparation.python_environment().values()
