"""Which cluster a command takes that names none: the variable's, the current one, the only one."""

import shlex

import click
import pytest
from click.testing import CliRunner

from kitlib import clusters
from kitlib.display.tables import Table
from kitlib.errors import ClusterNotFound
from trainyard_kit.cli import current
from trainyard_kit.cli import main as program
from trainyard_kit.cli.options import CLUSTER, ErrorGroup

# Each command that takes -c, with words that are enough for it to reach for its cluster.
COMMANDS = (
    "cluster status",
    "cluster start",
    "cluster stop",
    "cluster kubeconfig",
    "cluster scale 2",
    "dataset prepare digits",
    "image build",
    "kubectl get pods",
    "launch trainers/digits_ddp.py",
    "node stop node-0",
    "node isolate node-0",
    "operator list",
    "operator install trainer",
    "reset 05",
    "run list",
    "run logs digits",
    "run delete digits",
    "volume list",
    "volume create shared",
    "workshop add ada",
    "workshop status",
    "workshop list",
    "workshop rehearse --attendees 3",
)


@pytest.fixture
def known(monkeypatch, tmp_path):
    """Set the clusters that exist, and their states."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv(current.VARIABLE, raising=False)

    def know(**states):
        columns = ("cluster", "provider", "state", "nodes", "version", "note")
        rows = [(name, "local", state, 4, "v1", "") for name, state in states.items()]
        monkeypatch.setattr(clusters, "list_clusters", lambda: Table(columns, rows))
        monkeypatch.setattr(clusters, "find", lambda name, **_: name if name in states else None)

    return know


def chosen(*words, **environment):
    """Return the output of a command that prints the cluster which it was given."""

    @ErrorGroup.command(group := ErrorGroup("trainyard"))
    @CLUSTER
    def show(cluster):
        click.echo(cluster)

    return CliRunner().invoke(group, ["show", *words], env=environment).output


def test_the_only_cluster_is_the_default(known):
    known(lab="running")
    assert chosen() == "lab\n"


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        (["-c", "named"], {current.VARIABLE: "variable"}, "named\n"),
        (["--cluster=named"], {}, "named\n"),
        ([], {current.VARIABLE: "variable"}, "variable\n"),
        ([], {}, "two\n"),
        ([], {current.VARIABLE: ""}, "two\n"),
    ],
)
def test_the_option_goes_before_the_variable_and_that_before_the_current_one(
    known, words, environment, expected
):
    known(one="running", two="running")
    current.write_current("two")
    assert chosen(*words, **environment) == expected


def test_of_several_none_is_guessed_and_the_error_lists_them_with_their_states(known):
    known(trainyard="stopped", lab="running")
    shown = chosen()
    assert "several clusters" in shown and "trainyard (stopped), lab (running)" in shown
    assert "trainyard cluster use" in shown


def test_a_current_cluster_that_is_deleted_elsewhere_counts_no_more(known):
    known(lab="running")
    current.write_current("gone")
    assert chosen() == "lab\n"


def test_without_any_cluster_it_is_the_one_that_is_created_by_default(known):
    known()
    assert chosen() == f"{clusters.DEFAULT_CLUSTER}\n"


def invoke(words):
    return CliRunner().invoke(program.main, shlex.split(words))


def test_use_makes_a_cluster_the_current_one_and_the_list_names_it(known):
    known(one="running", two="running")
    assert invoke("cluster use two").exit_code == 0
    assert chosen() == "two\n"
    assert "Commands without -c use two." in invoke("cluster list").stderr
    assert "two" not in invoke("cluster list -o name").stderr


def test_use_refuses_a_cluster_that_does_not_exist(known):
    known(one="running")
    refused = invoke("cluster use nosuch")
    assert refused.exit_code == 1 and "there is no such cluster" in refused.stderr
    assert current.read_current() == ""


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_that_takes_a_cluster_asks_which_of_several(known, words):
    known(one="running", two="running")
    refused = invoke(words)
    assert refused.exit_code == 1 and "there are several clusters" in refused.stderr, refused.output


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_that_takes_a_cluster_takes_the_only_one(known, monkeypatch, words):
    known(lab="running")
    reached = []
    monkeypatch.setattr(clusters, "find", lambda name, **_: reached.append(name))
    monkeypatch.setattr(clusters, "not_found", lambda name: ClusterNotFound("gone", about=name, fix=""))
    monkeypatch.setattr(
        "kitlib.clusters.local.LocalCluster.stop", lambda cluster: reached.append(cluster.name)
    )
    invoke(words)
    assert set(reached) == {"lab"}


def test_commands_that_need_no_cluster_require_none(known):
    known(one="running", two="running")
    assert invoke("launch trainers/digits_ddp.py --dry-run").exit_code == 0
    assert "several" not in invoke("kubectl get pods -c one").output
    for words in ("run list --help", "cluster delete nosuch --ignore-not-found", "run status"):
        assert "several clusters" not in invoke(words).output


def test_a_command_that_ends_something_says_what_is_next(known, monkeypatch, tmp_path):
    known(lab="running")
    monkeypatch.setattr(clusters, "find", lambda name, **_: clusters.LocalCluster(name, {}))
    for verb in ("stop", "delete"):
        monkeypatch.setattr(clusters.LocalCluster, verb, lambda cluster: None)
        assert "Next: trainyard cluster" in invoke(f"cluster {verb} lab").stderr
    assert "Next: jupyter lab" in invoke(f"course {tmp_path / 'course'}").stderr
    assert "Next: trainyard quickstart" in invoke("doctor").stderr
    assert "Next:" not in invoke("doctor -o json").stdout
