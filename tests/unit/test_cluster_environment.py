"""What a local cluster's own Python processes are told: where a checkout lies, and no secret."""

import errno
import json
import os
import site
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from localkube.cluster import lifecycle, preparation, python_path, supervisor_process
from localkube.config import ClusterSpec
from localkube.kubelet.pods.container_spec import package_mounts, root_mounts
from localkube.paths import ClusterPaths

SOURCE = str(Path(preparation.__file__).resolve().parents[2])


def test_processes_of_a_checkout_find_it():
    assert supervisor_process.python_environment()["PYTHONPATH"] == SOURCE


def test_site_packages_are_not_on_the_supervisors_pythonpath(monkeypatch):
    # The forkserver removes what PYTHONPATH names from pods' paths: they would miss torchvision and gloo.
    monkeypatch.setattr(site, "getsitepackages", lambda: ["/usr/lib/python", SOURCE])
    assert "PYTHONPATH" not in supervisor_process.python_environment()


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
        preparation.copy_kit(copy, [str(checkout), str(checkout / ".venv"), "/usr"])
    names = {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_dir()}
    assert names == {"trainers/ddp.py", "notebooks/01.ipynb", "notebooks/kubeconfig"}
    assert not (copy / "notebooks" / "kubeconfig").exists()
    assert (copy / ".venv").is_dir()
    (mount,) = root_mounts([str(checkout)], ["/home", str(checkout)], sources={str(checkout): str(copy)})[-1:]
    assert (mount.destination, mount.source, mount.readonly) == (str(checkout), str(copy), True)


def test_a_checkout_that_is_closed_to_others_as_a_whole_is_shown(checkout, tmp_path_factory):
    for path in (checkout / "trainers", checkout / "trainers" / "ddp.py"):
        path.chmod(path.stat().st_mode & 0o700)
    copy = tmp_path_factory.mktemp("cluster") / "kit"
    preparation.copy_kit(copy, [])
    assert (copy / "trainers" / "ddp.py").exists()


def _cross_device(source, target):
    raise OSError(errno.EXDEV, "Invalid cross-device link", source)


def test_files_are_links_or_copies_on_another_file_system_and_go_sources_stay_away(
    checkout, tmp_path_factory, monkeypatch
):
    go = checkout / preparation.GO_SOURCES
    (go / "gateway").mkdir(parents=True)
    (go / "gateway" / "gateway.go").touch(), (go / "build.py").touch()
    linked, copied = (tmp_path_factory.mktemp("cluster") / name for name in ("linked", "copied"))
    preparation.copy_kit(linked, [])
    monkeypatch.setattr(os, "link", _cross_device)
    preparation.copy_kit(copied, [])
    for copy in (linked, copied):
        assert [path.name for path in (copy / preparation.GO_SOURCES).iterdir()] == ["build.py"]
    source = checkout / "trainers" / "ddp.py"
    assert (linked / "trainers" / "ddp.py").samefile(source)
    assert not (copied / "trainers" / "ddp.py").samefile(source)


@pytest.mark.parametrize("call", ["lstat", "link"])
def test_a_file_that_another_python_renames_during_the_copy_is_left_out(tmp_path, monkeypatch, call):
    place = tmp_path / "checkout" / preparation.KIT[0]
    place.mkdir(parents=True)
    temporary, module = place / "a.pyc.1234", place / "a.py"
    temporary.touch(), module.touch()
    original = getattr(os, call)

    def rename_before(path, *others, **options):
        if str(path) == str(temporary):
            temporary.unlink(missing_ok=True)
        return original(path, *others, **options)

    monkeypatch.setattr(os, call, rename_before)
    monkeypatch.setattr(preparation, "CHECKOUT", tmp_path / "checkout")
    preparation.copy_kit(tmp_path / "copy", [])
    assert [path.name for path in (tmp_path / "copy" / preparation.KIT[0]).iterdir()] == ["a.py"]


def test_no_secret_of_the_users_is_handed_on(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "secret" not in supervisor_process.python_environment().values()


@pytest.mark.parametrize("name", ["prefix", "base_prefix"])
def test_an_environment_behind_a_link_is_shown_by_both_names(name, tmp_path, monkeypatch):
    """Of a home on another disk, or of uv's link of a minor version: pods had no such Python."""
    (tmp_path / "disk" / "envs" / "lab").mkdir(parents=True)
    (tmp_path / "envs").symlink_to(tmp_path / "disk" / "envs")
    monkeypatch.setattr(sys, name, str(tmp_path / "envs" / "lab"))
    shown = preparation.environment()
    assert {str(tmp_path / "envs" / "lab"), str(tmp_path / "disk" / "envs" / "lab")} <= set(shown)


@pytest.mark.parametrize("uid", [1000650000, 65533])
def test_a_user_without_a_line_in_passwd_has_a_home_all_the_same(uid, monkeypatch, tmp_path):
    """As JupyterHub and OpenShift run people."""
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(tmp_path) in preparation._homes()


def test_a_user_without_a_name_and_without_a_home_has_those_of_others_covered(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 1000650000)
    monkeypatch.delenv("HOME")
    assert "/root" in preparation._homes()


OWN = [sys.prefix, sys.base_prefix, SOURCE]  # what is shown anyway
REFUSED = {
    "/home": "it is a home, or above one",
    "~": "it is a home, or above one",
    "~/.ssh": "it is where keys are kept",
    "~/.config/lab": "it is where keys are kept",
    "/home/somebody-else/lab": "it is in the home of another user",
}


@pytest.mark.parametrize("place", REFUSED)
def test_homes_and_secret_folders_are_named_and_not_shown(place, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    monkeypatch.setattr(os, "access", lambda *arguments: True)
    path = str(Path(place).expanduser())
    read = python_path.read([path], own=OWN)
    assert read.refused == {path: REFUSED[place]}
    assert path not in (*read.shown, *read.searched)


def test_a_folder_of_a_home_is_shown_and_the_clusters_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "lab").mkdir()
    (tmp_path / "state").mkdir()
    places = [str(tmp_path / name) for name in ("lab", "state")]
    read = python_path.read(places, hidden=places[1:], own=OWN)
    assert str(tmp_path / "lab") in read.shown
    assert read.variables["PYTHONPATH"] == str(tmp_path / "lab")
    assert read.refused == {str(tmp_path / "state"): "it has the clusters' own files"}


def test_files_beside_packages_are_hidden_from_pods(tmp_path):
    for name in (".git", ".venv", "lab"):
        (tmp_path / name).mkdir()
    (tmp_path / ".env").write_text("TOKEN=1")
    (tmp_path / ".link").symlink_to(".env")
    tmp_path.chmod(0o755)
    environment = str(tmp_path / ".venv")
    mounted = list(package_mounts([str(tmp_path)], [environment, str(tmp_path)]))
    assert {(mount.destination.removeprefix(str(tmp_path)), mount.type) for mount in mounted} == {
        ("", "bind"),
        ("/.git", "tmpfs"),
        ("/.env", "bind"),
    }
    assert all(mount.readonly and "idmap" not in mount.options for mount in mounted)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("_editable_skbc_numbers", "known_source_files"),  # scikit-build-core's redirecting finder
        ("__editable___numbers_1_finder", "MAPPING"),  # setuptools'
    ],
)
def test_packages_of_editable_finders_are_visible_to_pods(module, name, tmp_path, monkeypatch):
    source = tmp_path / "lab" / "src" / "numbers"
    (source / "deep").mkdir(parents=True)
    for file in (source / "__init__.py", source / "deep" / "__init__.py"):
        file.touch()
    finder = type("Finder", (), {"find_spec": lambda *names: None, "__module__": module})()
    mapped = {"numbers": str(source / "__init__.py"), "numbers.deep": str(source / "deep" / "__init__.py")}
    (tmp_path / "alone.py").touch()  # setuptools' path of a module that is a file has no suffix
    setattr(finder, name, mapped | {"alone": str(tmp_path / "alone")})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    shown = python_path.read(own=OWN).shown
    assert str(tmp_path / "alone.py") in shown
    assert any((source / "deep").is_relative_to(place) for place in shown)


def test_packages_of_meson_pythons_finder_are_visible_to_pods(tmp_path, monkeypatch):
    """It compares the sources with the build when a module is imported, and writes a log beside it."""
    source, build = tmp_path / "lab", tmp_path / "builds" / "cp311"
    for folder in (source, build / "meson-info"):
        folder.mkdir(parents=True)
    about = {"directories": {"source": str(source), "build": str(build)}}
    (build / "meson-info" / "meson-info.json").write_text(json.dumps(about))
    finder = type("MesonpyMetaFinder", (), {"find_spec": lambda *names: None})()
    finder._build_path = str(build)
    monkeypatch.setattr(type(finder), "__module__", "_numbers_editable_loader")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    path = python_path.read(own=OWN)
    assert {str(source), str(build)} <= set(path.shown)
    assert path.variables["MESONPY_EDITABLE_VERBOSE"] == "1"


def test_a_supervisor_whose_cluster_is_not_created_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with supervisor_process.SupervisorProcess(ClusterPaths("lab")) as supervisor:
        assert supervisor.process.poll() is None
    assert supervisor.process.wait(60) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_gone_is_not_mounted(tmp_path):
    assert list(package_mounts([str(tmp_path / "gone")], [])) == []


def test_links_lead_to_what_is_shown_as_well(tmp_path):
    """Of a folder, a cache of uv's, and a link tree of setuptools' strict mode."""
    cached = tmp_path / "cache" / "archive-v0" / "x1" / "numbers"
    for folder in (
        cached,
        tmp_path / "lab" / "src",
        tmp_path / "path" / "numbers",
        tmp_path / "__editable__.lab",
    ):
        folder.mkdir(parents=True)
    (cached / "__init__.py").touch()
    (tmp_path / "lab" / "src" / "lab.py").touch()
    (tmp_path / "path" / "numbers" / "__init__.py").symlink_to(cached / "__init__.py")
    (tmp_path / "path" / "lab").symlink_to(tmp_path / "lab")
    (tmp_path / "__editable__.lab" / "lab.py").symlink_to(tmp_path / "lab" / "src" / "lab.py")
    shown = python_path.read([str(tmp_path / "path"), str(tmp_path / "__editable__.lab")], own=OWN).shown
    assert {str(tmp_path / name) for name in ("cache/archive-v0", "lab")} <= set(shown)


def test_a_start_is_counted_from_before_the_kit_is_copied(tmp_path, monkeypatch):
    """Nodes that were Ready before a slow copy had ended counted for those of an earlier start."""
    order = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    paths = ClusterPaths("lab")
    paths.logs.mkdir(parents=True)
    monkeypatch.setattr(lifecycle.host, "choose_mode", lambda machine, mode: "namespaces")
    monkeypatch.setattr(lifecycle.binaries, "obtain", lambda report: None)
    monkeypatch.setattr(lifecycle.etcd_snapshot, "obtain", lambda control_plane, report: None)
    monkeypatch.setattr(lifecycle.ClusterFiles, "write", lambda files: [])
    monkeypatch.setattr(lifecycle.ClusterFiles, "copy_kit", lambda files: order.append("copied"))
    monkeypatch.setattr(lifecycle, "status", lambda name: {})

    start = SimpleNamespace(wait=lambda: order.append("waited"))
    monkeypatch.setattr(lifecycle, "Startup", lambda *_, **__: order.append("counted") or start)
    supervisor = SimpleNamespace(begin=lambda listener: order.append("launched"), process=None)
    lifecycle._start(paths, ClusterSpec(), lambda text: None, 1.0, supervisor, fresh=True)
    assert order == ["launched", "counted", "copied", "waited"]


@pytest.mark.parametrize(
    ("beside", "forks"), [("pass", 30), ("libc.free(libc.malloc(200_000))", 300)], ids=["Python", "C"]
)
def test_a_fork_beside_a_thread_does_not_deadlock(beside, forks):
    program = f"""
import ctypes, os, threading
from localkube.runtime.syscalls import fork_for_system_calls
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for _ in range(2):
    threading.Thread(target=exec, args=("while True: {beside}", globals()), daemon=True).start()
for _ in range({forks}):
    child = fork_for_system_calls()
    if not child:
        libc.malloc(300_000)
        os._exit(0)
    os.waitpid(child, 0)
"""
    env = os.environ | {"MALLOC_ARENA_MAX": "1"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=env)
