"""Requests that make no sense, machines that cannot serve them, and damaged clusters.

Each is answered by an error that says what failed, on what, and what to do; nothing is left of the attempt.
Where the circumstances are this process's own, the verbs are called in it: a process each would cost more.
"""

import os
import re
import signal
import socket

import pytest

from localkube.__main__ import main

from . import restrictions
from .clusters import Refused, answer, localkube

SMALL = ("--nodes", "1", "--no-warm")


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Call a verb with a home of its own, and return its result."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def call(*arguments):
        capsys.readouterr()
        code = main(list(arguments))
        output = capsys.readouterr().out
        assert code == ('{"error"' in output)
        return answer(output, "")

    return call


def refused(call, *arguments, **options):
    """Return the error that a verb answers with."""
    with pytest.raises(Refused) as caught:
        done = call(*arguments, **options)
        os.kill(done["processes"]["supervisor"]["pid"], signal.SIGTERM)
    assert set(caught.value.error) == {"what", "about", "fix"}
    assert all(caught.value.error.values())
    return caught.value.error


def left(home):
    """Return what a failed attempt has left below the directory of the clusters."""
    return sorted(str(path.relative_to(home)) for path in home.glob("trainyard/clusters/[!.]*"))


@pytest.mark.parametrize("count", ["0", "-1", "500"])
def test_the_number_of_nodes_has_its_limits(call, tmp_path, count):
    error = refused(call, "create", "lab", f"--nodes={count}")
    assert "1 to 100 nodes" in error["what"]
    assert count in error["what"]
    assert "between 1 and 100" in error["fix"]
    assert not left(tmp_path)


@pytest.mark.parametrize("name", ["", "Lab", "my_lab", "-lab", "lab-", "../lab", "lab/1", "x" * 41])
def test_a_name_that_could_not_be_a_folder_or_a_host_is_refused(call, tmp_path, name):
    error = refused(call, "create", *SMALL, "--", name)
    assert name in error["about"]
    assert "lower-case" in error["what"]
    assert not left(tmp_path)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--cpus=0", "more than zero"),
        ("--memory=-1Gi", "more than zero"),
        ("--memory=plenty", "not a quantity"),
        ("--gpus=-1", "0 to 64"),
        ("--gpus=65", "0 to 64"),
        ("--label=zone", "KEY=VALUE"),
        ("--port=70000", "port cannot be used"),
    ],
)
def test_a_shape_that_no_node_can_have_is_refused(call, tmp_path, option, words):
    assert words in refused(call, "create", "lab", *SMALL, option)["what"]
    assert not left(tmp_path)


def test_a_port_that_is_taken_is_named(call, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        error = refused(call, "create", "lab", *SMALL, f"--port={port}")
    assert error["about"] == f"127.0.0.1:{port}"
    assert "in use" in error["what"]
    assert "--port" in error["fix"]
    assert not left(tmp_path)


def test_a_read_only_home_is_named(tmp_path):
    enter = restrictions.disk(tmp_path, read_only=True)
    error = refused(localkube, "create", "lab", *SMALL, home=tmp_path, preexec_fn=enter)
    assert str(tmp_path) in error["about"]
    assert "Read-only" in error["what"]
    assert "Read-only" in localkube("doctor", home=tmp_path, preexec_fn=enter)["disk_problem"]
    assert "XDG_STATE_HOME" in error["fix"]


def test_a_cache_that_is_there_may_be_closed(tmp_path):
    (tmp_path / "cache" / "trainyard").mkdir(parents=True)
    enter = restrictions.disk(tmp_path / "cache" / "trainyard", read_only=True)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert localkube("doctor", home=tmp_path, preexec_fn=enter, env=environment)["disk_problem"] == ""


@pytest.mark.skipif(os.getuid() == 0, reason="root may write in every directory: tested by the user nobody")
def test_a_home_of_somebody_else_is_named(call, tmp_path):
    tmp_path.chmod(0o500)
    error = refused(call, "create", "lab", *SMALL)
    assert str(tmp_path) in error["about"]
    assert "XDG_STATE_HOME" in error["fix"]


@pytest.mark.parametrize("size", ["16k", "200k", "12m"])
def test_a_full_disk_is_named_at_once_with_the_figures_of_doctor(tmp_path, size):
    enter = restrictions.disk(tmp_path, size=size)
    error = refused(localkube, "create", "lab", *SMALL, home=tmp_path, preexec_fn=enter)
    assert re.fullmatch("the disk is full: [0-9.]+ MiB free, and a cluster needs 200 MiB", error["what"])
    assert localkube("doctor", home=tmp_path, preexec_fn=enter)["disk_problem"].startswith(
        "the disk is full: "
    )
    assert str(tmp_path) in error["about"]
    assert "free space" in error["fix"]


def test_a_machine_that_refuses_namespaces_says_why_and_which_switch_allows_them(tmp_path):
    arguments = (*SMALL, "--mode", "namespaces")
    error = refused(
        localkube, "create", "lab", *arguments, home=tmp_path, preexec_fn=restrictions.without_namespaces()
    )
    assert "a user namespace was refused" in error["what"]
    assert "sysctl -w user.max_user_namespaces=" in error["fix"]
    assert not left(tmp_path)


def test_the_doctor_says_the_same_before(tmp_path):
    here = localkube("doctor", home=tmp_path, preexec_fn=restrictions.without_namespaces())
    assert here["namespaces"]["allowed"] is False
    assert here["mode"] == "plain"
    assert "sysctl" in here["namespaces"]["fix"]


@pytest.mark.parametrize("text", ["", "not json", "[]", "{}", '{"name": "lab"}'])
def test_a_damaged_record_is_explained_and_the_cluster_can_be_deleted(call, tmp_path, text):
    root = tmp_path / "trainyard" / "clusters" / "lab"
    root.mkdir(parents=True)
    (root / "cluster.json").write_text(text)
    status = call("status", "lab")
    assert status["state"] == "broken"
    assert "record" in status["reason"]
    assert [row["state"] for row in call("list")] == ["broken"]
    assert "delete" in refused(call, "create", "lab", *SMALL)["fix"]
    assert call("delete", "lab")["existed"] is True
    assert not left(tmp_path)


def test_a_missing_cluster_is_absent_and_can_be_deleted(call, tmp_path):
    assert call("delete", "lab") == {"name": "lab", "state": "absent", "existed": False}
    assert not left(tmp_path)
    assert call("status", "lab")["state"] == "absent"
    assert call("list") == []
    assert "there is no such cluster" in refused(call, "kubeconfig", "lab")["what"]
