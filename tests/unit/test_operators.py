"""The catalog of public operators, and the images that are made for them."""

import dataclasses
import json
import tarfile

import operators
import pytest


@pytest.mark.parametrize("operator", operators.catalog(), ids=lambda operator: operator.name)
def test_an_image_starts_a_program_that_is_built(operator):
    for name, command in operator.images.items():
        assert command[0].lstrip("/") in operator.build
        assert name.rpartition(":")[2].lstrip("v") in (operator.tag.lstrip("v"), "main", "latest")
    applied = (operator.apply or operator.charts) and operator.ready
    assert applied or not operator.images  # a tool
    assert operator.ends or operator.prints or operator.shows or operator.example


def test_an_image_has_its_programs_its_user_and_a_directory_for_temporary_files(tmp_path):
    (tmp_path / "manager").write_bytes(b"program")
    operators.write_image(
        tmp_path / "image.tar",
        "example.org/manager:v1",
        {"manager": tmp_path / "manager"},
        ["/manager"],
        "65532",
    )
    with tarfile.open(tmp_path / "image.tar") as image:
        (manifest,) = json.load(image.extractfile("manifest.json"))
        config = json.load(image.extractfile(manifest["Config"]))["config"]
        with tarfile.open(fileobj=image.extractfile(manifest["Layers"][0])) as layer:
            assert {member.name: oct(member.mode) for member in layer} == {
                "tmp": "0o1777",
                "manager": "0o755",
            }
    assert (manifest["RepoTags"], config["Entrypoint"], config["User"]) == (
        ["example.org/manager:v1"],
        ["/manager"],
        "65532",
    )


def test_the_table_keeps_the_rows_of_operators_that_were_not_tried(tmp_path, monkeypatch):
    page = tmp_path / "operators.md"
    page.write_text(f"# Head\n{operators.BEGIN}{operators.HEAD}| [zeta](x) | v1 |\n{operators.END}tail\n")
    monkeypatch.setattr(operators, "TABLE", page)
    operators.write_table({"jobset": "runs"})
    text = page.read_text()
    assert text.index("| [jobset]") < text.index("| [zeta](x) | v1 |") < text.index("tail")


def test_joined_operators_are_built_in_one_workspace_of_all_their_modules(tmp_path):
    jobset = next(operator for operator in operators.catalog() if operator.name == "jobset")
    joined = [
        dataclasses.replace(jobset, name=name, joined=True, modules=modules)
        for name, modules in (("alone", ()), ("several", ("cmd/webhook", "cmd/controller")))
    ]
    for operator in joined:
        for module in (operator.module, *operator.modules):
            folder = tmp_path / "sources" / f"{operator.name}-{operator.tag}" / module
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "go.mod").write_text(
                f"module example.org/{operator.name}/{module.strip('.')}\n\ngo 1.24\n"
            )
    operators.join(joined, tmp_path)
    work = (tmp_path / "sources" / "go.work").read_text()
    assert work.count("./") == 4 and f"./several-{jobset.tag}/cmd/webhook" in work
