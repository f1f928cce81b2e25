"""How `make lab` starts JupyterLab: as root, on a machine reached by ssh, with a port and an address."""

import socket

import pytest
from dev_commands import Commands, TaskError, free_port, jupyter_options, tunnel

BY_SSH = {"SSH_CONNECTION": "203.0.113.9 51000 192.0.2.7 22"}


def options(environment, *, root=False, **words):
    return jupyter_options(Commands(words), environment, root=root)


def test_an_ordinary_user_at_the_machine_itself_gets_what_jupyter_does(capsys):
    assert options({}) == []
    assert capsys.readouterr().out == ""


def test_root_is_warned_and_not_refused(capsys):
    assert options({}, root=True) == ["--allow-root"]
    assert "You are root" in capsys.readouterr().out


@pytest.mark.parametrize("root", [True, False])
def test_whoever_came_by_ssh_gets_the_tunnels_command_and_the_port_that_it_names(capsys, root):
    (port,) = (word for word in options(BY_SSH, root=root) if "port=" in word)
    number = port.rpartition("=")[2]
    printed = capsys.readouterr().out
    assert f"ssh -N -L {number}:localhost:{number} " in printed and printed.rstrip().endswith("@192.0.2.7")


def test_a_port_and_an_address_reach_jupyter_and_no_other_port_is_taken():
    assert options({}, PORT="9000", IP="0.0.0.0") == [
        "--ServerApp.port=9000",
        "--ServerApp.port_retries=0",
        "--ServerApp.ip=0.0.0.0",
    ]


def test_the_tunnel_leads_to_the_port_that_was_asked_for(capsys):
    options(BY_SSH, PORT="9001")
    assert "-L 9001:localhost:9001" in capsys.readouterr().out


def test_a_server_behind_another_port_of_ssh_is_reached_by_it():
    assert " -p 2222 " in tunnel(["203.0.113.9", "51000", "192.0.2.7", "2222"], "8888")
    assert " -p " not in tunnel([], "8888")


@pytest.mark.parametrize("port", ["x", "-1", "65536", "8888.0"])
def test_an_invalid_port_is_refused_with_the_valid_range(port):
    with pytest.raises(TaskError, match="such as 8888"):
        options({}, PORT=port)


def test_a_port_that_is_taken_is_passed_over():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert free_port(listener.getsockname()[1]) > listener.getsockname()[1]
