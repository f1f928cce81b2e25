"""What `hosted.prepare` installs in a hosted notebook, what it keeps, and what it says."""

from importlib import metadata
from pathlib import Path

import pytest

from trainyard_kit import hosted

ROOT = Path(__file__).parents[2]
HAS = {"torch": "2.8.0+cu126", "numpy": "2.0.2", "protobuf": "5.29.5", "grpcio": "1.85.1"}


def test_existing_packages_are_not_installed_again():
    missing = hosted.missing(["Torch>=2.15", "numpy>=2.4", "kopf>=1.45"], HAS)
    assert missing == ["kopf"]


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("kubernetes<37,>=36", "kubernetes<37"),
        ("trainyard-kit-controlplane==0.1.0; sys_platform == 'linux'", "trainyard-kit-controlplane==0.1.0"),
        ("backports.tarfile >= 1.2", "backports.tarfile"),
    ],
)
def test_of_what_is_missing_the_upper_bounds_stay(requirement, expected):
    assert hosted.missing([requirement], HAS) == [expected]


def test_pip_is_told_to_keep_every_version_that_it_can_read(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    commands = []

    def pip(*words):
        commands.append(Path(words[words.index("-c") + 1]).read_text().splitlines())
        return iter(["Collecting kopf"])

    monkeypatch.setattr(hosted, "_lines", pip)
    hosted._install(["kopf"], HAS | {"python-apt": "2.4.0-ubuntu4"})
    assert commands == [["torch==2.8.0+cu126", "numpy==2.0.2", "protobuf==5.29.5", "grpcio==1.85.1"]]
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_too_old_for_a_notebook_is_named():
    (message,) = hosted._limits(HAS)
    assert message.startswith("Limited: notebook 10 (parameter servers) needs protobuf ")
    assert message.endswith("and 5.29.5 is installed.")


def test_where_all_is_there_it_only_reports(monkeypatch, capsys):
    monkeypatch.chdir(ROOT / "notebooks")
    monkeypatch.setattr(metadata, "requires", lambda name: ["click>=8.2"])
    assert hosted.prepare() == ROOT / "notebooks"
    output = capsys.readouterr().out
    assert "0 packages installed" in output and "Mode: " in output and "torch 2." in output
    hosted.enter()
    assert (Path.cwd(), capsys.readouterr().out) == (ROOT / "notebooks", "")


def test_a_notebook_that_is_alone_gets_the_course(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metadata, "requires", lambda name: [])
    hosted.enter()
    folder = Path.cwd()
    assert "course/notebooks" in capsys.readouterr().out
    assert (folder / "00_start.ipynb").is_file() and (folder / "../trainers/digits_ddp.py").is_file()
    hosted.enter()
    assert Path.cwd() == folder, "a second run finds it"


def test_a_program_that_fails_is_quoted():
    with pytest.raises(RuntimeError, match="No module named trainyard_nothing"):
        list(hosted._lines("trainyard_nothing"))
