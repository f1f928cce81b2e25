"""``trainyard quickstart`` in a terminal, as on somebody's first day: seen to its end, broken off, kept."""

import os
import re
import secrets
import signal
import subprocess
import sys

import pytest

import kitlib as kit
from kitlib import clusters

from ..node.terminals import Terminal

KIT = [sys.executable, "-m", "trainyard_kit.cli"]


@pytest.fixture
def name(state_home):
    """The name of a cluster, of which nothing is left after the test."""
    cluster_name = f"quick-{secrets.token_hex(3)}"
    yield cluster_name
    clusters.LocalCluster(cluster_name).delete()


def quickstart(name, *words, **environment):
    """Run it without a terminal, as in a script."""
    command = [*KIT, "quickstart", "--name", name, *words]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_a_terminal_shows_each_step_and_the_loss_and_nothing_is_left(name):
    with Terminal([*KIT, "quickstart", "--name", name], columns=100, rows=40) as terminal:
        terminal.until("2 nodes are Ready")
        terminal.until(r"\d of 2 pods")
        terminal.until(r" \|[█▇▆▅▄▃▂▁]")
        terminal.until(
            r"2 workers trained for \d+ s: loss \S+ in the first step and \S+ in the last; 9\d\.\d%"
        )
        terminal.until("deleted")
        terminal.until("Next: trainyard course FOLDER")
        assert terminal.process.wait() == 0
    assert clusters.find(name) is None


@pytest.mark.slow  # as a creation is, in test_clusters
@pytest.mark.parametrize(
    ("moment", "sent"),
    [
        (r"\d of 2 pods|rank \d", signal.SIGINT),
        (r"\d of 2 pods|rank \d", signal.SIGHUP),
        ("starting|at work", signal.SIGTERM),
    ],
)
def test_one_that_is_broken_off_leaves_nothing(name, moment, sent):
    with Terminal([*KIT, "quickstart", "--name", name]) as terminal:
        terminal.until(moment)
        terminal.process.send_signal(sent)
        terminal.until(r"Interrupted\S*: stopped")
        assert terminal.process.wait() == 130
    assert clusters.find(name) is None


@pytest.mark.slow
def test_a_script_gets_lines_and_a_cluster_that_is_kept_can_be_used(name):
    done = quickstart(name, "--keep", "--nodes", "1")
    assert done.returncode == 0, done.stderr
    assert "[rank" not in done.stdout and "\x1b" not in done.stdout + done.stderr
    assert done.stdout.count("    loss\n") == 1 and " |█" in done.stdout
    assert f"trainyard cluster delete {name}" in done.stdout
    assert kit.connect(name).run("digits").status.phase == "Succeeded"
    refused = quickstart(name)
    assert refused.returncode == 1
    assert "a cluster of this name exists already" in refused.stderr
    assert clusters.find(name) is not None, "somebody else's cluster was deleted"


def test_without_a_control_plane_it_says_what_to_install(name, tmp_path):
    nowhere = {"XDG_CACHE_HOME": str(tmp_path), "TRAINYARD_CONTROLPLANE": "package"}
    done = quickstart(name, **nowhere)
    assert done.returncode == 1
    assert re.search("no control plane could be obtained", done.stderr)
    assert "install the wheel of trainyard-kit-controlplane" in done.stderr
    assert clusters.find(name) is None
