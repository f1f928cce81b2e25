"""What all tests share: a real local cluster, made when a test first asks, deleted whatever happens."""

import os
import secrets
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

import kitlib as kit

NODES = 4


LINES_OF_AN_ERROR = 12


def pytest_configure():
    """Let signals work, here and in what tests start: background jobs and nohup begin with some ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # A handler is not inherited by a program that is started, and what nohup asked for is kept.
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_modifyitems(items):
    """Skip, in plain mode, what it does not promise to keep."""
    if os.environ.get("TRAINYARD_MODE") == "plain":
        skip = pytest.mark.skip(reason="plain mode does not promise it: docs/architecture.md, Plain mode")
        for item in items:
            if item.get_closest_marker("site"):
                item.add_marker(skip)


def pytest_terminal_summary(terminalreporter, config):
    """Say of what was run again why it had failed: what passes the second time has a flaw all the same."""
    config.get_terminal_writer().fullwidth = 200  # the last lines say why a test failed, where there is room
    for report in terminalreporter.stats.get("rerun", []):
        crash = getattr(report.longrepr, "reprcrash", None)
        words = crash.message if crash else report.longreprtext
        terminalreporter.write_sep("-", f"{report.nodeid} had failed by")
        terminalreporter.write_line("\n".join(words.splitlines()[:LINES_OF_AN_ERROR]))


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
