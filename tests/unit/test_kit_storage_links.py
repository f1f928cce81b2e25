"""Links and strange names on the way to a volume and back, by the scripts of its pod and the system's tar."""

import contextlib
import os
import socket
import subprocess
import tarfile

import pytest
from PIL import Image

from kitlib.datasets import image_folder
from kitlib.storage import copy
from kitlib.storage.tree import walk

STRANGE = [
    *("é".encode(), b"e\xcc\x81", b"a\nb", b"a\t", b"-rf", b"..x", b" ", b"\xff\xfe", b"A", b"a", b"x" * 255),
    *("数".encode() * 85, b"back\\slash", b"$(id)", b"quote'\"", b"end\n"),
]


class Here:
    """A volume in a folder here, in place of the pod that mounts one."""

    def __init__(self, place):
        self.place = place
        place.mkdir()

    @contextlib.contextmanager
    def running(self, script, *arguments):
        environment = os.environ | {"STAGING": ".trainyard-upload-here"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = ["sh", "-c", script, "sh", *arguments]
        with subprocess.Popen(command, cwd=self.place, env=environment, **pipes) as process:
            yield process.stdin, process.stdout
            process.stdin.close()
        assert process.returncode == 0

    def output(self, script, *arguments):
        with self.running(script, *arguments) as (stdin, stdout):
            stdin.close()
            return stdout.read().decode("utf-8", "replace")


class NoLine:
    def update(self, text):
        """Progress is not shown."""


@pytest.fixture
def volume(tmp_path):
    return Here(tmp_path / "volume")


def upload(volume, source, to):
    return copy.send(volume, source, to, replace=False, more={}, line=NoLine())


def download(volume, path, to):
    return copy.fetch(volume, path, to, line=NoLine())


def tree(folder):
    """Where links lead, and the content of each file."""
    return {
        str(path.relative_to(folder)): (
            str(path.readlink()) if path.is_symlink() else None,
            path.read_bytes() if path.is_file() else None,
        )
        for path in folder.rglob("*")
    }


def mine(tmp_path):
    """A folder with each kind of link."""
    outside, folder = tmp_path / "outside", tmp_path / "mine"
    (outside / "deep").mkdir(parents=True)
    (folder / "steps").mkdir(parents=True)
    (outside / "deep" / "a.txt").write_text("outside")
    (outside / "same").symlink_to("deep")
    (outside / "back").symlink_to(folder)
    (folder / "steps" / "1.pt").write_text("one")
    os.link(folder / "steps" / "1.pt", folder / "steps" / "hard.pt")
    links = {
        "latest": "steps/1.pt",
        "folder": "steps",
        "absolute": folder / "steps" / "1.pt",
        "steps/up": "../latest",
        "again": ".",
        "elsewhere": "../outside",
        "file": outside / "deep" / "a.txt",
        "above": "..",
        "dangling": "../nothing",
        "circle": tmp_path / "circle",
        "later": "steps/2.pt",
    }
    (tmp_path / "circle").symlink_to("circle")
    for name, target in links.items():
        (folder / name).symlink_to(target)
    return folder


def test_links_inside_stay_and_others_are_followed(volume, tmp_path, monkeypatch):
    folder = mine(tmp_path)
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        log = upload(volume, folder, "mine")
    uploaded = tree(volume.place / "mine")
    assert {path: link for path, (link, _) in uploaded.items() if link} == {
        "latest": "steps/1.pt",
        "folder": "steps",
        "absolute": "steps/1.pt",
        "steps/up": "../latest",
        "again": ".",
        "later": "steps/2.pt",
        "elsewhere/same": "deep",
    }
    assert uploaded["absolute"][1] == uploaded["steps/up"][1] == uploaded["steps/hard.pt"][1] == b"one"
    assert uploaded["file"] == uploaded["elsewhere/deep/a.txt"] == (None, b"outside")
    for name in ("above", "dangling", "circle", "socket", "elsewhere/back"):
        assert repr(name) in log and name not in uploaded


def test_a_folder_that_is_a_link_keeps_its_name_and_has_its_content(volume, tmp_path):
    (tmp_path / "disk" / "dog").mkdir(parents=True)
    (tmp_path / "disk" / "dog" / "1.txt").write_text("dog")
    (tmp_path / "pets").symlink_to("disk")
    upload(volume, tmp_path / "pets", "pets")
    assert (volume.place / "pets" / "dog" / "1.txt").read_text() == "dog"
    assert not (volume.place / "pets").is_symlink()
    (volume.place / "latest").symlink_to("pets/dog")
    download(volume, "latest", tmp_path / "back")
    assert (tmp_path / "back" / "1.txt").read_text() == "dog"


def test_a_folder_with_links_comes_back_without_those_that_lead_out(volume, tmp_path):
    run = volume.place / "run"
    run.mkdir()
    (run / "1.pt").write_text("one")
    (run / "latest").symlink_to("1.pt")
    os.link(run / "1.pt", run / "hard.pt")
    for name, target in {"log": "../log", "workspace": "/workspace/run/1.pt", "up": ".."}.items():
        (run / name).symlink_to(target)
    os.mkfifo(run / "pipe")
    log = download(volume, "run", tmp_path / "back")
    assert tree(tmp_path / "back") == {
        "1.pt": (None, b"one"),
        "hard.pt": (None, b"one"),
        "latest": ("1.pt", b"one"),
    }
    assert "4 left out" in log and "'run/log' leads out of it" in log
    (volume.place / "out").symlink_to("/")
    with pytest.raises(tarfile.ReadError):  # nothing came
        download(volume, "out", tmp_path / "root")


def test_any_name_goes_there_and_comes_back(volume, tmp_path):
    folder = tmp_path / "strange"
    folder.mkdir()
    for name in STRANGE:
        (folder / os.fsdecode(name)).write_bytes(name)
    upload(volume, folder, "strange")
    download(volume, "strange", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(folder) and len(tree(folder)) == len(STRANGE)
    assert len(copy.listing(copy.entries(volume, "strange"), empty="")) == len(STRANGE)
    download(volume, "strange/end\n", tmp_path / "end")
    upload(volume, tmp_path / "end", "once\nmore")
    assert (tmp_path / "end").read_bytes() == (volume.place / "once\nmore").read_bytes() == b"end\n"


def test_images_are_counted_as_they_will_lie_there(volume, tmp_path):
    """The case of a report: a class that is a link was counted, and dangled on the volume."""
    for place, name in (("disk", "dog"), ("mine", "cat"), ("mine", "bird")):
        (tmp_path / place / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8)).save(tmp_path / place / name / f"{number}.png")
    (tmp_path / "mine" / "dog").symlink_to("../disk/dog")
    (tmp_path / "mine" / "eagle").symlink_to("bird")
    (tmp_path / "mine" / "cat" / "again").symlink_to("..")
    (tmp_path / "mine" / "cat" / "5.png").symlink_to(tmp_path / "disk" / "dog" / "0.png")
    (tmp_path / "mine" / "gone").symlink_to("../nothing")
    counted = image_folder.read(tmp_path / "mine")
    upload(volume, tmp_path / "mine", "mine")
    assert (counted.classes, counted.train) == (["bird", "cat", "dog", "eagle"], 17)
    dataset = image_folder.read(volume.place / "mine")
    assert (dataset.classes, dataset.train) == (counted.classes, counted.train)


def test_a_walk_without_links_ends_where_folders_lead_to_each_other(tmp_path):
    for name, target in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "to").symlink_to(tmp_path / target)
    skipped = []
    assert [entry.path for entry in walk(tmp_path / "a", skipped=skipped, links=False)] == ["", "to"]
    assert skipped == ["'to/to' leads to a folder that it is in"]
