"""The reader of the store of images."""

import json
import shutil
import tomllib
from pathlib import Path
from urllib.parse import quote

import pytest

from localkube.kubelet.images.store import InvalidReference, find, normalize, records

from ..fuzz.gateway import go_test

REFERENCES = tomllib.loads(Path(__file__).with_name("references.toml").read_text())["reference"]
NONE = [reference["given"] for reference in REFERENCES if "full" not in reference]
HEX = "0123456789abcdef" * 4


@pytest.fixture
def store(tmp_path):
    for folder in ("images", "names"):
        (tmp_path / folder).mkdir()
    (tmp_path / "images" / f"{HEX}.json").write_text(json.dumps({"id": f"sha256:{HEX}"}))
    (tmp_path / "names" / "docker.io%2Flibrary%2Fbusybox%3A1.36").symlink_to(f"../images/{HEX}.json")
    return tmp_path


@pytest.mark.parametrize("row", [row for row in REFERENCES if "full" in row], ids=lambda row: row["given"])
def test_a_reference_is_written_in_full_as_by_containerd(row):
    assert normalize(row["given"]) == row["full"]
    assert normalize(row["full"]) == row["full"]


@pytest.mark.parametrize("reference", NONE)
def test_an_invalid_image_reference_is_refused(reference):
    with pytest.raises(InvalidReference):
        normalize(reference)


def test_a_long_name_is_refused():
    assert normalize("a/" + "b" * 253)
    with pytest.raises(InvalidReference, match="255"):
        normalize("a/" + "b" * 254)


def test_an_image_is_found_by_its_names_and_by_its_id_and_is_none_where_it_is_not(store):
    for reference in ("busybox:1.36", "docker.io/library/busybox:1.36", f"sha256:{HEX}", HEX):
        assert find(reference, store=store) == {"id": f"sha256:{HEX}"}
    assert find("busybox", store=store) is find("sha256:" + "0" * 64, store=store) is None
    assert find("busybox", store=store / "none") is None
    assert records(store=store / "none") == []
    assert [record["id"] for record in records(store=store)] == [f"sha256:{HEX}"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("go"), reason="there is no Go on PATH")
def test_the_puller_reads_references_in_the_same_way(tmp_path, monkeypatch):
    table = tmp_path / "references.json"
    table.write_text(json.dumps([row | {"file": quote(row.get("full", ""), safe="")} for row in REFERENCES]))
    monkeypatch.setenv("TRAINYARD_REFERENCES", str(table))
    assert go_test("-run=^TestReferences$", package="images").returncode == 0
