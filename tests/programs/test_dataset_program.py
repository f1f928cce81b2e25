"""The program that prepares datasets, against a real HTTP server that refuses, cuts, lies and stalls."""

import dataclasses
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import tarfile
import threading
import zipfile

import pytest

from ..node import restrictions
from ..patience import until
from .forked import CONTEXT, Program, redirect, run_as_main
from .release_server import Release, serving
from .small_archive import DATASETS, PATH, archive, sources_for
from .small_data import read_events

MIRROR = "TRAINYARD_DATASET_MIRROR"


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def release(content):
    return Release(files={PATH: content})


@pytest.fixture
def source(prepare, content, monkeypatch):
    """Let the program take the small archive for the real one; return a function that changes the source."""
    import fetch
    import prepare_dataset

    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0.01)
    (real,) = prepare_dataset.SOURCES["cifar10"].downloads
    small = dataclasses.replace(real, size=len(content), checksum=hashlib.sha256(content).hexdigest())

    def change(**fields):
        fields = {"mirrors": (), "downloads": (small,), "room": 0} | fields
        changed = dataclasses.replace(prepare_dataset.SOURCES["cifar10"], **fields)
        monkeypatch.setitem(prepare_dataset.SOURCES, "cifar10", changed)

    change()
    return change


@pytest.fixture
def run(source, prepare, monkeypatch, tmp_path):
    """Prepare CIFAR-10 from a mirror; return the events and the error."""

    def run(mirror, *flags):
        monkeypatch.setenv(MIRROR, mirror)
        return prepare("cifar10", *flags)

    return run


@pytest.fixture
def start(content, tmp_path_factory, tmp_path):
    """Start the program as a process of its own, for which the small archive is the real one."""
    code = tmp_path_factory.mktemp("program") / "code"
    shutil.copytree(DATASETS, code)
    (code / "sources.py").write_text(sources_for(content))
    words = code / "prepare_dataset.py", "cifar10", f"--root={tmp_path}"
    return lambda mirror: Program(*words, environment=os.environ | {MIRROR: mirror})


def is_complete(root):
    facts = json.loads((root / "cifar10" / "dataset.json").read_text())
    assert (facts["synthetic"], facts["train_images"], facts["test_images"]) == (False, 200, 50)
    names = sorted(path.name for path in (root / "cifar10").iterdir())
    assert names == ["cifar-10-batches-py", "dataset.json", "sample.npz"]
    assert [path.name for path in (root / ".trainyard" / "cifar10").iterdir()] == ["lock"]
    return True


def test_a_dataset_is_fetched_verified_and_there_at_once_and_not_fetched_again(run, release, tmp_path):
    with serving(release) as url:
        events, error = run(url)
        assert not error
        assert is_complete(tmp_path)
        kinds = [event["event"] for event in events if event["event"] != "progress"]
        assert kinds == ["start", "source", "end"]
        assert events[1]["url"] == url + PATH
        downloading = [event for event in events if event.get("doing", "").startswith("downloading")]
        assert downloading[-1]["percent"] == 100
        assert "mb_per_s" in downloading[-1]
        assert all(event.keys() >= {"time", "rank", "world_size"} for event in events)
        events, _ = run(url)
    assert len(release.requests) == 1
    assert (events[-1]["event"], events[-1]["synthetic"]) == ("end", False)


def test_a_cut_download_goes_on_where_it_stopped(run, release, tmp_path):
    release.cuts[PATH] = [5000, 7000]
    with serving(release) as url:
        events, error = run(url)
    assert not error
    assert is_complete(tmp_path)
    assert [byte_range for _, byte_range in release.requests] == [None, "bytes=5000-", "bytes=12000-"]
    assert any("closed with" in event.get("doing", "") for event in events)


def test_a_server_that_knows_no_ranges_is_asked_for_all_of_it(run, release, tmp_path):
    release.cuts[PATH], release.ranges = [5000], False
    with serving(release) as url:
        assert not run(url)[1]
    assert is_complete(tmp_path)


def test_a_server_that_cuts_for_ever_is_given_up(run, release, tmp_path):
    release.cuts[PATH] = [5000] + [0] * 50
    with serving(release) as url:
        events, error = run(url, "--source=real")
    assert "interrupted 5 times in a row" in events[-1]["message"]
    assert events[-1]["message"] in error
    assert not (tmp_path / "cifar10").exists()


def test_a_wrong_checksum_is_an_error_and_nothing_of_it_stays(run, release, content, tmp_path):
    release.files[PATH] = content[:-1] + b"x"
    with serving(release) as url:
        events, error = run(url)  # nor is it a reason to make something up
    assert error
    assert events[-1]["message"].startswith("wrong checksum: http")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lock"]


def test_a_part_of_something_else_is_thrown_away(run, release, tmp_path):
    work = tmp_path / ".trainyard" / "cifar10"
    work.mkdir(parents=True)
    (work / f"{PATH[1:]}.part").write_bytes(b"x" * 5000)
    with serving(release) as url:
        assert not run(url)[1]
    assert is_complete(tmp_path)
    assert [byte_range for _, byte_range in release.requests] == ["bytes=5000-", None]


def test_the_next_mirror_is_tried_where_one_has_nothing(run, source, release, tmp_path):
    with serving(Release()) as nothing, serving(release) as url:
        source(mirrors=(url,))
        events, error = run(nothing)
    assert not error
    assert is_complete(tmp_path)
    first, second = (event for event in events if event["event"] == "source")
    assert (first["reached"], first["why"]) == (False, "HTTP status 404 Not Found")
    assert second["reached"]


def test_where_no_source_answers_stand_ins_are_drawn_at_once_and_said(run, tmp_path):
    events, error = run("http://127.0.0.1:9/", "--limit=40")
    assert not error
    assert events[-1]["synthetic"]
    assert any("STAND-IN" in event.get("note", "") for event in events)
    _, error = run("http://127.0.0.1:9/", "--source=real")
    assert "Connection refused" in error
    assert json.loads((tmp_path / "cifar10" / "dataset.json").read_text())["synthetic"]


def test_a_server_that_says_nothing_is_not_waited_for(run, monkeypatch):
    monkeypatch.setattr("fetch.RESPONSE_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _, error = run(f"http://127.0.0.1:{silent.getsockname()[1]}", "--source=real")
    assert "timed out" in error


def test_a_volume_without_room_is_refused_before_anything_is_fetched(run, source, release):
    source(room=10**18)
    with serving(release) as url:
        _, error = run(url)
    assert "the volume is full: cifar10 needs" in error
    assert release.requests == []


def test_proxies_of_the_environment_are_used(run, content, monkeypatch, tmp_path):
    with serving(Release(files={f"http://images.example{PATH}": content})) as url:
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.setattr("urllib.request._opener", None)  # which keeps the proxies of the first request
        events, error = run("http://images.example")
    assert not error
    assert events[-1]["source"] == "http://images.example"
    assert is_complete(tmp_path)


def test_two_at_once_fetch_once(start, release, tmp_path):
    release.holds[PATH] = threading.Event()
    with serving(release) as url:
        first = start(url)
        until(lambda: release.requests, "a request")
        second = start(url)
        assert "waiting" in json.loads([second.stdout.readline(), second.stdout.readline()][1])["doing"]
        release.holds[PATH].set()
        for program in (first, second):
            program.communicate()
            assert program.returncode == 0
    assert len(release.requests) == 1
    assert is_complete(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_is_killed_in_the_middle_is_taken_up_by_the_next(start, run, release, number, tmp_path):
    release.holds[PATH] = threading.Event()
    with serving(release) as url:
        first = start(url)
        part = tmp_path / ".trainyard" / "cifar10" / f"{PATH[1:]}.part"
        until(lambda: part.exists() and part.stat().st_size > 5000, "half of it")
        first.kill(number)
        first.communicate()
        assert not (tmp_path / "cifar10").exists()
        release.holds[PATH].set()
        assert not run(url)[1]
    assert release.requests[1][1].startswith("bytes=")
    assert is_complete(tmp_path)


def prepare_on_a_small_disk(program, root, size, log, mirror):
    """Run the program on a volume of this process's own; write the files that are left."""
    redirect(log, 1)
    os.environ[MIRROR] = mirror
    restrictions.disk(root, size=size)()
    try:
        run_as_main(str(program), ["cifar10", f"--root={root}"])
    finally:
        print(json.dumps({"left": [str(path) for path in root.rglob("*") if path.is_file()]}), flush=True)


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="a small disk needs root")
@pytest.mark.parametrize("size", ["64k", "400k"], ids=["for the download", "for what is unpacked"])
def test_a_full_volume_is_said_and_nothing_half_made_stays(content, release, size, tmp_path):
    code, root, log = (tmp_path / name for name in ("code", "volume", "log"))
    shutil.copytree(DATASETS, code)
    (code / "sources.py").write_text(sources_for(content))
    root.mkdir()
    with serving(release) as url:
        words = code / "prepare_dataset.py", root, size, log, url
        process = CONTEXT.Process(target=prepare_on_a_small_disk, args=words)
        process.start()
        process.join(60)
    *_, error, left = read_events(log.read_text().splitlines())
    assert process.exitcode == 1
    assert error["message"].startswith("the volume is full")
    assert left["left"] == [f"{root}/.trainyard/cifar10/lock"]


def _tar(path, name, link=None):
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(name)
        if link:
            member.type, member.linkname = tarfile.SYMTYPE, link
        tar.addfile(member, io.BytesIO())


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside-of-it.txt"])
def test_no_member_of_an_archive_leaves_its_folder(prepare, tmp_path, name):
    from events import PreparationError
    from unpack import unpack

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr(name, "x")
    with pytest.raises(PreparationError, match="would be outside the folder"):
        unpack(tmp_path / "a.zip", tmp_path / "in" / "zip")
    _tar(tmp_path / "a.tar.gz", name if ".." in name else "link", None if ".." in name else "/etc/passwd")
    with pytest.raises(PreparationError, match="was not unpacked"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "in" / "tar")
    assert not list(tmp_path.rglob("outside*"))
    (tmp_path / "b.tar.gz").write_bytes(b"no archive")
    with pytest.raises(PreparationError, match="is damaged"):
        unpack(tmp_path / "b.tar.gz", tmp_path / "in")
