"""The program that prepares datasets, against a real HTTP server that refuses, cuts, lies and stalls."""

import io
import json
import os
import signal
import tarfile
import threading
import zipfile

import pytest

from ..node import restrictions
from ..patience import until
from .release_server import Release, serving
from .small_archive import DATASETS, PATH, Program, archive


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def program(tmp_path, content):
    return Program(tmp_path, content)


@pytest.fixture
def release(content):
    return Release(files={PATH: content})


@pytest.fixture
def modules(monkeypatch):
    """Let the program's modules be imported."""
    monkeypatch.syspath_prepend(str(DATASETS))


def ended(process):
    out, err = process.communicate(timeout=60)
    return [json.loads(line) for line in out.splitlines()], err, process.returncode


def run(program, *flags, **more):
    return ended(program.start(*flags, **more))


def is_complete(program):
    facts = json.loads((program.root / "cifar10" / "dataset.json").read_text())
    assert (facts["synthetic"], facts["train_images"], facts["test_images"]) == (
        False,
        200,
        50,
    )
    assert sorted(path.name for path in (program.root / "cifar10").iterdir()) == [
        "cifar-10-batches-py",
        "dataset.json",
        "sample.npz",
    ]
    assert [path.name for path in (program.root / ".trainyard" / "cifar10").iterdir()] == ["lock"]
    return True


def is_empty(program):
    """Nothing but the lock is left: neither the dataset nor half of it."""
    left = [path.name for path in program.root.rglob("*") if path.is_file()]
    return left in ([], ["lock"])


def test_a_dataset_is_fetched_verified_and_there_at_once(program, release):
    with serving(release) as url:
        events, _, status = run(program, mirror=url)
    assert status == 0
    assert is_complete(program)
    assert [event["event"] for event in events if event["event"] != "progress"] == ["start", "source", "end"]
    assert events[1]["url"] == url + PATH
    downloading = [event for event in events if event.get("doing", "").startswith("downloading")]
    assert downloading[-1]["percent"] == 100
    assert "mb_per_s" in downloading[-1]
    assert all(event.keys() >= {"time", "rank", "world_size"} for event in events)


def test_what_is_there_is_not_fetched_again(program, release):
    with serving(release) as url:
        run(program, mirror=url)
        events, _, _ = run(program, mirror=url)
    assert len(release.requests) == 1
    assert events[-1]["event"] == "end"
    assert not events[-1]["synthetic"]


def test_a_cut_download_goes_on_where_it_stopped(program, release, content):
    release.cuts[PATH] = [5000, 7000]
    with serving(release) as url:
        events, _, status = run(program, mirror=url)
    assert status == 0
    assert is_complete(program)
    assert [byte_range for _, byte_range in release.requests] == [None, "bytes=5000-", "bytes=12000-"]
    assert any("closed with" in event.get("doing", "") for event in events)


def test_a_server_that_knows_no_ranges_is_asked_for_all_of_it(program, release):
    release.cuts[PATH], release.ranges = [5000], False
    with serving(release) as url:
        assert run(program, mirror=url)[2] == 0
    assert is_complete(program)


def test_a_server_that_cuts_for_ever_is_given_up(program, release):
    release.cuts[PATH] = [5000] + [0] * 50
    with serving(release) as url:
        events, err, status = run(program, "--source=real", mirror=url)
    assert status == 1
    assert "interrupted 5 times in a row" in events[-1]["message"]
    assert events[-1]["message"] in err
    assert not (program.root / "cifar10").exists()


def test_a_wrong_checksum_is_an_error_and_nothing_of_it_stays(program, release, content):
    release.files[PATH] = content[:-1] + b"x"
    with serving(release) as url:
        events, _, status = run(program, mirror=url)  # nor is it a reason to make something up
    assert status == 1
    assert events[-1]["message"].startswith("wrong checksum: http")
    assert is_empty(program)


def test_a_part_of_something_else_is_thrown_away(program, release, content):
    work = program.root / ".trainyard" / "cifar10"
    work.mkdir(parents=True)
    (work / f"{PATH[1:]}.part").write_bytes(b"x" * 5000)
    with serving(release) as url:
        assert run(program, mirror=url)[2] == 0
    assert is_complete(program)
    assert [byte_range for _, byte_range in release.requests] == ["bytes=5000-", None]


def test_the_next_mirror_is_tried_where_one_has_nothing(program, release):
    with serving(Release()) as nothing, serving(release) as url:
        text = (program.code / "sources.py").read_text()
        (program.code / "sources.py").write_text(text.replace("mirrors=(),", f"mirrors=({url!r},),"))
        events, _, status = run(program, mirror=nothing)
    assert status == 0
    assert is_complete(program)
    first, second = (event for event in events if event["event"] == "source")
    assert (first["reached"], first["why"]) == (False, "HTTP status 404 Not Found")
    assert second["reached"]


def test_where_no_source_answers_stand_ins_are_drawn_at_once_and_said(program):
    events, _, status = run(program, "--limit=40", mirror="http://127.0.0.1:9/")
    assert status == 0
    assert events[-1]["synthetic"]
    assert any("STAND-IN" in event.get("note", "") for event in events)
    events, _, status = run(program, "--source=real", mirror="http://127.0.0.1:9/")
    assert status == 1
    assert "Connection refused" in events[-1]["message"]
    assert json.loads((program.root / "cifar10" / "dataset.json").read_text())["synthetic"]


def test_a_server_that_says_nothing_is_not_waited_for(program):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        mirror = f"http://127.0.0.1:{silent.getsockname()[1]}"
        before = "fetch.RESPONSE_SECONDS = 0.3"
        events, _, status = run(program, "--source=real", mirror=mirror, before=before)
    assert status == 1
    assert "timed out" in events[-1]["message"]


def test_two_at_once_fetch_once(program, release):
    release.holds[PATH] = threading.Event()
    with serving(release) as url:
        first = program.start(mirror=url)
        until(lambda: release.requests, "a request")
        second = program.start(mirror=url)
        assert "waiting" in json.loads([second.stdout.readline(), second.stdout.readline()][1])["doing"]
        release.holds[PATH].set()
        assert ended(first)[2] == 0
        assert ended(second)[2] == 0
    assert len(release.requests) == 1
    assert is_complete(program)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_is_killed_in_the_middle_is_taken_up_by_the_next(program, release, number):
    release.holds[PATH] = threading.Event()
    with serving(release) as url:
        first = program.start(mirror=url)
        part = program.root / ".trainyard" / "cifar10" / f"{PATH[1:]}.part"
        until(lambda: part.exists() and part.stat().st_size > 5000, "half of it")
        first.send_signal(number)
        first.communicate()
        assert not (program.root / "cifar10").exists()
        release.holds[PATH].set()
        assert run(program, mirror=url)[2] == 0
    assert release.requests[1][1].startswith("bytes=")
    assert is_complete(program)


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="a small disk needs root")
@pytest.mark.parametrize("size", ["64k", "400k"], ids=["for the download", "for what is unpacked"])
def test_a_full_volume_is_said_and_nothing_half_made_stays(program, release, size):
    look = f"import os; os.system('find {program.root} -type f 1>&2')"
    before = f"import atexit; atexit.register(lambda: exec({look!r}))"
    with serving(release) as url:
        events, err, status = run(
            program, mirror=url, before=before, preexec_fn=restrictions.disk(program.root, size=size)
        )
    assert status == 1
    assert events[-1]["message"].startswith("the volume is full")
    assert [line for line in err.splitlines() if line.startswith("/")] == [
        f"{program.root}/.trainyard/cifar10/lock"
    ]


def test_a_volume_without_room_is_refused_before_anything_is_fetched(program, release):
    text = (program.code / "sources.py").read_text().replace("room=0", f"room={10**18}")
    (program.code / "sources.py").write_text(text)
    with serving(release) as url:
        events, _, status = run(program, mirror=url)
    assert status == 1
    assert "the volume is full: cifar10 needs" in events[-1]["message"]
    assert release.requests == []


def test_proxies_of_the_environment_are_used(program, content):
    proxy = Release(files={f"http://images.example{PATH}": content})
    with serving(proxy) as url:
        events, _, status = run(program, mirror="http://images.example", environment={"http_proxy": url})
    assert status == 0
    assert events[-1]["source"] == "http://images.example"
    assert is_complete(program)


def _tar(path, name, link=None):
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(name)
        if link:
            member.type, member.linkname = tarfile.SYMTYPE, link
        tar.addfile(member, io.BytesIO())


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside-of-it.txt"])
def test_no_member_of_an_archive_leaves_its_folder(modules, tmp_path, name):
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
