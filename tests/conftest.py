"""What all tests share: a real local cluster, made when a test first asks, deleted whatever happens."""

import atexit
import faulthandler
import gc
import os
import secrets
import shutil
import signal
import sys
import tempfile
import tomllib
from fnmatch import fnmatch
from functools import cache
from importlib import metadata
from pathlib import Path

import debian_packages
import pytest
import smoke  # noqa: F401 (it disables a slow import of nbformat's)
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

import kitlib as kit
from localkube.runtime.forkserver.command import OPENMP_ENVIRONMENT

# Tests run side by side: threads that wait should not spin.
os.environ |= OPENMP_ENVIRONMENT | os.environ

NODES = 4
KILL_SECONDS = float(os.environ.get("TRAINYARD_KILL_SECONDS", "60"))  # after a test's own timeout
# Side by side, files begin in this order. The one that takes longest of all is the first: no worker is left
# alone with it at the end. Those of a folder share clusters. What takes seconds fills the gaps.
ORDER = (
    "notebooks/test_notebooks.py",
    "node",
    "security",
    "cluster",
    "browser",
    "notebooks",
    "cloud",
    "programs",
    "unit",
    "localkube",
)
# Side by side, these files are one worker's, so that what they share is started once and not by each worker.
TOGETHER = {
    "pods": "node/test_pods_*.py node/test_streams_*.py",
    "attacks": "security/*.py",
    "nodes": """
        node/test_cluster_privacy.py node/test_component_pods.py node/test_device_plugins.py
        node/test_endpoints.py node/test_images.py node/test_lifecycle.py node/test_limits.py
        node/test_metrics.py node/test_network_policies.py node/test_node_shutdown.py
        node/test_pod_certificates.py node/test_pod_groups.py node/test_probes.py node/test_provisioner.py
        node/test_pulled_images.py node/test_security.py node/test_static_pods.py
        node/test_status_reports.py node/test_statuses_alike.py node/test_storage.py node/test_volumes.py
    """,
}
HERE = Path(__file__).parent


def pytest_configure():
    """Let signals work, and bytecode be kept, here and in what tests start; collect no garbage of imports.

    Background jobs and nohup begin with some signals ignored.
    """
    gc.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # Tests start thousands of interpreters. Where the shell forbids bytecode, each compiles all it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    settings.register_profile("shared-machine", deadline=None)
    settings.load_profile("shared-machine")
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # A handler is not inherited by a program that is started, and what nohup asked for is kept.
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def entry_points_are_installed():
    """Stop where the environment lacks what pyproject.toml adds to the kit, instead of failing anywhere."""
    with (HERE.parent / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["entry-points"]
    for group, names in declared.items():
        installed = {(entry.name, entry.value) for entry in metadata.entry_points(group=group)}
        if missing := names.items() - installed:
            pytest.exit(f"the environment lacks the entry points {missing} of {group}: make setup", 1)


@cache
def place_in_order(path):
    """Return the place of a test's file in ORDER; files of no folder there come last."""
    places = (place for place, first in enumerate(ORDER) if path.is_relative_to(HERE / first))
    return next(places, len(ORDER))


def pytest_collection_modifyitems(items):
    """Put files into their order; skip, in plain mode, what it does not promise to keep."""
    items.sort(key=lambda item: place_in_order(item.path))
    if os.environ.get("TRAINYARD_MODE") == "plain":
        skip = pytest.mark.skip(reason="plain mode does not promise it: localkube/INTERNALS.md, Plain mode")
        for item in items:
            if item.get_closest_marker("namespaces"):
                item.add_marker(skip)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Spread files over workers as ``--dist loadfile`` does, those of TOGETHER as one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            for unit, names in TOGETHER.items():
                if any(fnmatch(file, f"tests/{name}") for name in names.split()):
                    return unit
            return file

    return Scheduling(config, log)


def pytest_collection_finish():
    """Leave what thousands of tests and their modules are out of every later search for garbage."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # libraries in C++ complain of what is left at the interpreter's end


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Kill a worker whose test outlives its timeout: a signal reaches no test that hangs in C, or in a lock.

    faulthandler's thread needs no lock of the interpreter. It writes all stacks, and pytest-xdist reports the
    test as failed and starts another worker.
    """
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker else float(item.config.getini("timeout"))
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(limit + KILL_SECONDS, file=stderr, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_terminal_summary(terminalreporter, config):
    """Let the last lines say why a test failed, where there is room, and what would let more of them run."""
    config.get_terminal_writer().fullwidth = 200
    if packages := debian_packages.missing():
        terminalreporter.write_line(f"Skipped for want of programs: apt-get install {' '.join(packages)}")


@pytest.fixture
def dockerfile(tmp_path):
    """A Dockerfile that needs no base, with something to copy beside it."""
    (tmp_path / "greeting.txt").write_text("hello")
    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\nCOPY greeting.txt /greeting.txt\n")
    return file


@pytest.fixture(scope="session")
def state_home():
    """Let this session's clusters live in a folder of their own; binaries stay in the user's cache.

    The folder's path is short, as a Unix socket's has to be, and the processes that tests start see it too.
    """
    folder = Path(tempfile.mkdtemp(prefix="ty-"))
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def local_cluster(state_home):
    """A running local cluster of four nodes, shared: clean up your own runs, and delete no node."""
    name = f"test-{secrets.token_hex(3)}"
    try:
        yield kit.create_cluster("local", name=name, nodes=NODES)
    finally:
        kit.clusters.LocalCluster(name).delete()
