"""Where things lie on a volume, and what its listing says."""

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from kitlib.errors import BadInput
from kitlib.storage.copy import entries, inside, listing, target

SHELLS = ([], ["busybox"])


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a\0b", 3, None])
def test_a_path_that_leads_out_of_the_volume_is_refused(path):
    with pytest.raises(BadInput, match="leaves the volume"):
        inside(path)


@pytest.mark.parametrize(
    ("path", "place"), [("", ""), ("/", ""), ("/a//b/", "a/b"), ("./a", "a"), ("a b/-c", "a b/-c")]
)
def test_paths_begin_at_the_root_of_the_volume(path, place):
    assert inside(path) == place


@pytest.mark.parametrize(
    ("to", "place"), [("", "cat.png"), ("pets/", "pets/cat.png"), ("pets/tom.png", "pets/tom.png")]
)
def test_an_uploaded_file_keeps_its_name_by_default(to, place):
    assert target("cat.png", to) == place


def test_a_listing_leaves_out_what_is_being_copied():
    lines = [
        "directory\t4096\t0\t./train",
        "regular empty file\t0\t0\t./a\tb",
        "directory\t4096\t0\t./.trainyard-upload-volume-shared-x",
    ]
    shown = listing(lines, empty="nothing")
    assert [(entry["name"], entry["kind"], entry["size"]) for entry in shown] == [
        ("a\\tb", "file", "0 B"),
        ("train", "directory", None),
    ]


@pytest.mark.parametrize("shell", SHELLS, ids=["the machine's shell", "BusyBox"])
def test_no_name_breaks_a_listing_or_looks_like_another_file(shell, tmp_path):
    if shell and shutil.which(shell[0]) is None:
        pytest.skip("needs Debian's package busybox-static")
    names = ["a\nregular file\t1\t0\t.\\fake", "b\x1b[2J\u202e", "c\x0b\x1c\u2028d", "tab\t", "\n", "-rf"]
    for name in names:
        (tmp_path / name).write_text("x")

    def output(script, *arguments):
        command = [*shell, "sh", "-c", script, "sh", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    shown = listing(entries(SimpleNamespace(output=output), ""), empty="nothing")
    assert len(shown) == len(names)
    assert {row["size"] for row in shown} == {"1 B"}
    assert all(row["name"].isprintable() for row in shown)


def test_a_file_of_a_time_that_no_calendar_has_is_listed():
    (row,) = listing([f"regular file\t1\t{2**60}\t./x"], empty="nothing")
    assert (row["name"], row["age"]) == ("x", None)
