"""Where the course is opened without a set-up, and what its instructor is told: all that is named exists."""

import ast
import json
import re
import tomllib
from pathlib import Path

import day_sheet
import dev
import pytest
import yaml

from .test_cli import check_command

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "instructors-guide.md").read_text(encoding="utf-8")
LAB = ROOT / "images" / "lab"
POST_BUILD = ROOT / "binder" / "postBuild"


def devcontainer():
    """Return the file, which may have comments of whole lines."""
    lines = (ROOT / ".devcontainer" / "devcontainer.json").read_text().splitlines()
    return json.loads("\n".join(line for line in lines if not line.lstrip().startswith("//")))


def targets():
    return set(dev.make_targets())


def make_targets(text, *, before="^"):
    return set(re.findall(rf"{before}make ([a-z-]+)", text, re.MULTILINE))


def test_the_user_of_the_dev_container_is_made_in_its_image():
    settings = devcontainer()
    path = (ROOT / ".devcontainer" / settings["build"]["dockerfile"]).resolve()
    assert path == LAB / "Dockerfile"
    assert re.search(rf"useradd .*\b{settings['remoteUser']}$", path.read_text(), re.MULTILINE)
    assert settings["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"] in (
        f"{prefix}/bin/python" for prefix in re.findall(r"python3 -m venv (/opt/\w+)", path.read_text())
    )


def test_compose_runs_the_image_of_the_dev_container_on_the_loopback():
    service = yaml.safe_load((LAB / "compose.yaml").read_text())["services"]["lab"]
    assert (LAB / service["build"]["context"]).resolve() == ROOT
    assert service["build"]["dockerfile"] == "images/lab/Dockerfile"
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_a_deployment_of_the_image_is_one_that_a_strict_namespace_admits():
    deployment = yaml.safe_load((ROOT / "manifests" / "lab" / "deployment.yaml").read_text())
    template = deployment["spec"]["template"]
    assert template["metadata"]["labels"].items() >= deployment["spec"]["selector"]["matchLabels"].items()
    (container,) = template["spec"]["containers"]
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert template["spec"]["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    command = (LAB / "Dockerfile").read_text()
    (port,) = (port["containerPort"] for port in container["ports"])
    assert f"EXPOSE {port}" in command and f"--port={port}" in command


def test_the_images_build_sees_what_its_wheels_are_made_of():
    """Docker copies what .dockerignore lets through; the kit's wheel is made of these folders."""
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    assert rules[0] == "*"
    folders = ("kitlib", "localkube", "trainyard_kit")
    data = ast.literal_eval(
        "(" + re.search(r"for name in \(([^)]*)\)", (ROOT / "setup.py").read_text())[1] + ",)"
    )
    for name in (*folders, *data, "packaging", "tools", "setup.py", "pyproject.toml", "LICENSE"):
        assert f"!{name}" in rules, name


def test_commands_of_containers_are_targets_of_the_makefile():
    named = make_targets(POST_BUILD.read_text())
    assert named == {"setup"}
    assert named <= targets()


def test_binder_installs_the_same_environment_as_conda_users():
    link = ROOT / "binder" / "environment.yml"
    assert link.is_symlink() and link.resolve() == ROOT / "environment.yml"
    (python,) = [
        line for line in yaml.safe_load(link.read_text())["dependencies"] if str(line).startswith("python=")
    ]
    version = python.partition("=")[2]
    assert re.fullmatch(r"3\.\d+", version), "repo2docker reads python=3.x alone"
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert int(version.split(".")[1]) >= int(needed.split(".")[1])


@pytest.mark.parametrize("line", re.findall(r"^ {4}(trainyard [^#\n]+)", GUIDE, re.MULTILINE))
def test_every_command_line_in_the_guide_can_be_parsed(line):
    check_command(line)


def test_every_notebook_is_in_the_guide():
    for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"):
        assert re.search(rf"^\| {path.name[:2]} \|", GUIDE, re.MULTILINE), f"what to say at {path.stem}"


def test_the_page_for_the_day_and_the_guide_have_the_minutes_of_the_notebooks():
    assert day_sheet.PAGE.read_text(encoding="utf-8") == day_sheet.render(), "run tools/day_sheet.py"
    assert day_sheet.fill_guide(GUIDE) == GUIDE, "run tools/day_sheet.py"
    counted = day_sheet.sections(day_sheet.read("09"))
    assert sum(counted.values()) == pytest.approx(day_sheet.minutes(day_sheet.read("09").cells), abs=0.5)
