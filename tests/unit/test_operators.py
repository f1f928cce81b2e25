"""The catalog of public operators, and the images that are made for them."""

import hashlib
import io
import json
import tarfile

import operators
import pytest


@pytest.mark.parametrize("operator", operators.catalog(), ids=lambda operator: operator.name)
def test_an_image_starts_a_program_that_is_built(operator):
    for command in operator.images.values():
        assert command[0].lstrip("/") in operator.build or operator.debian
    applied = (operator.apply or operator.charts) and operator.ready
    assert applied or not operator.images  # a tool
    assert operator.ends or operator.prints or operator.shows or operator.example


def test_an_image_has_its_programs_its_user_and_a_directory_for_temporary_files(tmp_path):
    (tmp_path / "manager").write_bytes(b"program")
    below = operators.program_layer(tmp_path / "below.tar", {})
    layer = operators.program_layer(tmp_path / "layer.tar", {"manager": tmp_path / "manager"})
    goal = tmp_path / "image.tar"
    operators.write_image(goal, "example.org/manager:v1", [below, layer], ["/manager"], "65532")
    with tarfile.open(goal) as image:
        (manifest,) = json.load(image.extractfile("manifest.json"))
        content = json.load(image.extractfile(manifest["Config"]))
        config, digests = content["config"], content["rootfs"]["diff_ids"]
        layers = [image.extractfile(name).read() for name in manifest["Layers"]]
    assert digests == [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    with tarfile.open(fileobj=io.BytesIO(layers[1])) as tar:
        assert {member.name: oct(member.mode) for member in tar} == {"tmp": "0o1777", "manager": "0o755"}
    assert (manifest["RepoTags"], config["Entrypoint"], config["User"]) == (
        ["example.org/manager:v1"],
        ["/manager"],
        "65532",
    )


def test_a_block_of_a_page_is_applied_as_it_stands_there(tmp_path):
    (tmp_path / "page.md").write_text("a\n```yaml\n# pod.yaml\nkind: Pod\n```\nb\n")
    assert operators.blocks("apply -f page.md#pod.yaml", tmp_path) == "apply -f pod.yaml"
    assert (tmp_path / "pod.yaml").read_text() == "kind: Pod\n"
    with pytest.raises(operators.StepError, match=r"no block that begins with # job.yaml"):
        operators.blocks("apply -f page.md#job.yaml", tmp_path)


def test_the_table_keeps_the_rows_of_operators_that_were_not_tried(tmp_path, monkeypatch):
    page = tmp_path / "operators.md"
    page.write_text(f"# Head\n{operators.BEGIN}{operators.HEAD}| [zeta](x) | v1 |\n{operators.END}tail\n")
    monkeypatch.setattr(operators, "TABLE", page)
    operators.write_table({"jobset": "runs"})
    text = page.read_text()
    assert text.index("| [jobset]") < text.index("| [zeta](x) | v1 |") < text.index("tail")
