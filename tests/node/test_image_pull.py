"""Images are pulled from registries, good and bad ones, into a store that always works."""

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from localkube.kubelet.images import store as reader
from localkube.paths import target

from ..patience import PATIENCE
from ..unit.oci_images import (
    Image,
    command,
    entry,
    folder,
    image,
    images,
    index,
    layer,
    link,
    names,
    small,
)

LARGE = os.urandom(1 << 20) * 12
pytestmark = pytest.mark.usefixtures("no_configuration")


def layer_of(store: Path, record: dict, number: int) -> Path:
    return store / "layers" / record["layers"][number]


def test_a_pulled_image_is_a_record_and_unpacked_layers(registry, store):
    source = image(
        layer(folder("bin"), entry("bin/a", b"program", mode=0o755), link("bin/b", "a")),
        layer(folder("bin"), entry("bin/.wh.b"), entry("bin/c", b"more")),
        config={"Entrypoint": ["/bin/a"], "Env": ["X=1"], "User": "1000"},
    )
    reference = registry.add("team/tool:1", source)
    done = images(store, "pull", reference)
    record = done.image
    assert done.last("pulled")["new"] is True
    assert record["id"] == source.id
    assert record["names"] == [reference]
    assert record["digests"] == [f"{registry.address}/team/tool@{source.digest}"]
    assert record["config"] == {"Entrypoint": ["/bin/a"], "Env": ["X=1"], "User": "1000"}
    assert (record["os"], record["architecture"]) == ("linux", target()[1])
    manifest = json.loads(source.manifest)
    assert record["size"] == sum(item["size"] for item in manifest["layers"])
    assert (layer_of(store, record, 0) / "bin/a").read_bytes() == b"program"
    assert (layer_of(store, record, 0) / "bin/b").readlink() == Path("a")
    removed = os.lstat(layer_of(store, record, 1) / "bin/b")
    assert (removed.st_mode & 0o170000, removed.st_rdev) == (0o020000, 0)


def test_layers_are_shared_between_images_and_fetched_once(registry, store):
    base = layer(entry("base", b"of both"))
    first = image(base, layer(entry("one", b"1")))
    second = image(base, layer(entry("two", b"2")))
    first_image = images(store, "pull", registry.add("a:1", first)).image
    two = images(store, "pull", registry.add("b:1", second)).image
    assert first_image["layers"][0] == two["layers"][0]
    assert len(names(store, "layers")) == 3
    fetched = [path for _, path in registry.requests if "/blobs/" in path]
    assert len(fetched) == len({path.rpartition("/")[2] for path in fetched}) == 5


def test_an_unchanged_image_is_not_fetched_again(registry, store):
    reference = registry.add("a:1", small())
    images(store, "pull", reference)
    before = registry.downloads()
    again = images(store, "pull", reference)
    assert again.last("pulled")["new"] is False
    assert registry.downloads() == before


def test_a_tag_that_moves_leaves_the_old_image_without_that_name(registry, store):
    old = images(store, "pull", registry.add("a:1", small(b"old"))).image
    reference = registry.add("a:1", small(b"new"))
    new = images(store, "pull", reference)
    assert new.last("pulled")["new"] is True
    assert reader.find(reference, store=store)["id"] == new.image["id"] != old["id"]
    assert reader.find(old["id"], store=store)["names"] == []
    assert reader.find(old["digests"][0], store=store)["id"] == old["id"]


def test_a_registry_that_states_no_digest_is_asked_for_the_manifest(registry, store):
    registry.head = False
    source = small()
    assert images(store, "pull", registry.add("a:1", source)).image["id"] == source.id


def test_a_digest_is_pulled_as_it_is(registry, store):
    source = small()
    registry.add("a:1", source)
    name = f"{registry.address}/a@{source.digest}"
    record = images(store, "pull", name).image
    assert (record["names"], record["digests"]) == ([], [name])
    assert reader.find(name, store=store) == record


@pytest.mark.parametrize("docker", [False, True])
def test_an_index_is_searched_for_the_platform(registry, store, docker):
    source = {
        "linux/amd64": small(b"amd64", architecture="amd64", docker=docker),
        "linux/arm64": small(b"arm64", architecture="arm64", docker=docker),
        "windows/amd64": small(b"windows", architecture="amd64", docker=docker),
    }
    whole = index(source, docker=docker)
    reference = registry.add("a:1", whole)
    for platform in ("linux/arm64", "linux/amd64"):
        record = images(store, "pull", "--platform", platform, reference).image
        assert record["id"] == source[platform].id
        assert record["digests"] == [f"{registry.address}/a@{whole.digest}"]
        assert reader.find(reference, store=store)["id"] == source[platform].id


@pytest.mark.parametrize("listed", [True, False])
def test_another_machines_image_is_refused(registry, store, listed):
    source = small(architecture="s390x")
    reference = registry.add("a:1", index({"linux/s390x": source}) if listed else source)
    done = images(store, "pull", reference)
    assert done.reason == "platform"
    assert "linux/s390x" in done.message
    assert names(store, "images") == []


@pytest.mark.parametrize("compress", ["", "gzip", "zstd"])
def test_layers_are_compressed_by_gzip_zstd_or_not(registry, store, compress):
    if compress == "zstd" and shutil.which("zstd") is None:
        pytest.skip("there is no zstd to make the layer with")
    record = images(store, "pull", registry.add("a:1", small(compress=compress))).image
    assert (layer_of(store, record, 0) / "etc/motd").read_bytes() == b"hello"


def test_an_image_may_have_empty_layers_no_config_and_many_layers(registry, store):
    source = image(layer(), *(layer(entry(f"{n}", b"x")) for n in range(200)))
    record = images(store, "pull", registry.add("a:1", source)).image
    assert len(record["layers"]) == 201
    assert record["config"] == {}
    assert (layer_of(store, record, 200) / "199").exists()


def test_progress_is_told_in_bytes(registry, store):
    source = image(layer(entry("large", LARGE)), compress="")
    blob = max(source.blobs, key=lambda digest: len(source.blobs[digest]))
    registry.fault = lambda request, path: (
        path.endswith(blob) and (request.drip(registry.blobs[blob], pieces=12, seconds=1.5) or True)
    )
    done = images(store, "pull", registry.add("a:1", source))
    progress = [event for event in done.events if event["event"] == "layer"]
    assert {(event["digest"], event["size"]) for event in progress} == {(blob, len(registry.blobs[blob]))}
    bytes_told = [event["bytes"] for event in progress]
    assert bytes_told == sorted(bytes_told) and bytes_told[-1] == len(registry.blobs[blob])
    assert len(progress) > 1


# Registries that misbehave.


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_is_cut_goes_on_where_it_was_if_the_registry_knows_ranges(registry, store, ranges):
    source = image(layer(entry("large", LARGE)), compress="")
    blob = max(source.blobs, key=lambda digest: len(source.blobs[digest]))
    cuts = iter([1 << 20, 5 << 20] if ranges else [1 << 20])

    def cut(request, path):
        if not path.endswith(blob):
            return False
        request.blob(registry.blobs[blob], cut=next(cuts, None), ranges=ranges)
        return True

    registry.fault = cut
    record = images(store, "pull", registry.add("a:1", source)).image
    assert (layer_of(store, record, 0) / "large").read_bytes() == LARGE
    starts = [int(range_.removeprefix("bytes=").rstrip("-")) for range_ in registry.ranges if range_]
    first, *later = starts
    assert 0 < first <= 1 << 20
    assert len(later) == ranges and all(start > 1 << 20 for start in later)


@pytest.mark.parametrize("corrupted", ["layer", "config", "manifest"])
def test_content_of_another_digest_is_refused_and_leaves_nothing(registry, store, corrupted):
    source = small()
    reference = registry.add("a:1", source)
    if corrupted == "manifest":
        media, text = registry.manifests[f"a/{source.digest}"]
        registry.manifests[f"a/{source.digest}"] = (media, text + b" ")
    else:
        is_config = lambda digest: digest == source.id  # noqa: E731
        blob = next(blob for blob in source.blobs if is_config(blob) == (corrupted == "config"))
        registry.blobs[blob] = bytes(len(registry.blobs[blob]))
    done = images(store, "pull", reference)
    assert done.reason == "digest"
    assert "unexpected commit digest" in done.message
    assert reader.find(reference, store=store) is None
    assert names(store, "layers") == []


def test_a_layer_whose_content_is_not_what_the_config_says_is_refused(registry, store):
    right, wrong = layer(entry("a", b"right")), layer(entry("a", b"wrong"))
    source, wrong_image = image(right), image(wrong)
    manifest = json.loads(source.manifest)
    manifest["layers"] = json.loads(wrong_image.manifest)["layers"]
    text = json.dumps(manifest).encode()
    done = images(
        store, "pull", registry.add("a:1", Image(text, source.media, {**wrong_image.blobs, **source.blobs}))
    )
    assert done.reason == "digest"
    assert names(store, "layers") == names(store, "diff-ids") == []


def test_a_failure_that_passes_is_waited_out(registry, store):
    left = {"manifests": 2, "blobs": 2}

    def fail(request, path):
        kind = path.split("/")[-2]
        left[kind] -= 1
        if left[kind] >= 0:
            request.refuse(500 if left[kind] else 503, "UNKNOWN")
        return left[kind] >= 0

    registry.fault = fail
    assert images(store, "pull", registry.add("a:1", small())).status == 0


@pytest.mark.parametrize(
    ("answer", "options", "reason", "words"),
    [
        ((500, "UNKNOWN"), {}, "registry", "500 Internal Server Error"),
        ((429, "TOOMANYREQUESTS"), {"Retry_After": "600"}, "ratelimited", "429 Too Many Requests"),
    ],
)
def test_a_failure_that_does_not_pass_is_reported(registry, store, answer, options, reason, words):
    registry.fault = lambda request, path: request.refuse(*answer, **options) or True
    done = images(store, "pull", registry.add("a:1", small()))
    assert done.reason == reason
    assert words in done.message


def test_too_many_requests_are_waited_for_as_long_as_the_registry_says(registry, store):
    left = [1, 1]

    def limit(request, path):
        if left:
            left.pop()
            request.refuse(429, "TOOMANYREQUESTS", Retry_After="1")
            return True
        return False

    registry.fault = limit
    began = time.monotonic()
    assert images(store, "pull", registry.add("a:1", small())).status == 0
    assert time.monotonic() - began > 2


def test_nobody_at_the_address_is_unreachable(store):
    for reference in ("127.0.0.1:1/a:1", "registry.invalid/a:1", "localhost:1/a"):
        done = images(store, "pull", reference)
        assert done.reason == "unreachable", done.message
        assert f'failed to resolve reference "{reader.normalize(reference)}"' in done.message


def test_a_proxy_that_refuses_is_unreachable(store, registry):
    proxy = f"http://{registry.address}"
    done = images(store, "pull", "registry.invalid/a:1", env={"HTTPS_PROXY": proxy, "https_proxy": proxy})
    assert done.reason == "unreachable"
    assert "proxy" in done.message


@pytest.mark.slow
def test_a_registry_that_drips_is_given_up(registry, store):
    def drip(request, path):
        if "/blobs/" not in path:
            return False
        request.send_response(200)
        request.send_header("Content-Length", str(len(LARGE)))
        request.end_headers()
        with contextlib.suppress(OSError):
            for byte in LARGE:
                request.wfile.write(bytes([byte]))
                request.wfile.flush()
                time.sleep(0.2)
        return True

    source = image(layer(entry("large", LARGE)), compress="")
    registry.fault = drip
    done = images(store, "pull", registry.add("a:1", source), seconds=PATIENCE)
    assert "sends less than a kilobyte a second" in done.message


def test_an_endless_error_is_not_read_to_its_end(registry, store):
    def endless(request, path):
        request.send_response(400)
        request.send_header("Content-Length", str(1 << 40))
        request.end_headers()
        try:
            while True:
                request.wfile.write(bytes(1 << 20))
        except OSError:
            return True

    registry.fault = endless
    assert images(store, "pull", registry.add("a:1", small()), seconds=20).reason == "registry"


def test_two_pulls_of_one_image_fetch_it_once(registry, store):
    source = image(layer(entry("large", LARGE)), layer(entry("x", b"x")), compress="")
    blob = max(source.blobs, key=lambda digest: len(source.blobs[digest]))
    registry.fault = lambda request, path: (
        path.endswith(blob) and (request.drip(registry.blobs[blob], pieces=5, seconds=1) or True)
    )
    reference = registry.add("a:1", source)
    pulling = [
        subprocess.Popen(command(store, "pull", reference), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        for _ in range(3)
    ]
    ended = [(process.communicate(timeout=60)[0], process.returncode) for process in pulling]
    assert [code for _, code in ended] == [0, 0, 0]
    records = [json.loads(out.splitlines()[-1])["image"] for out, _ in ended]
    assert len({tuple(record["layers"]) for record in records}) == 1
    assert names(store, "layers") == sorted(records[0]["layers"])
    assert sum(path.endswith(blob) for _, path in registry.requests) == 1


def test_a_killed_pull_is_continued_by_the_next(registry, store):
    source = image(layer(entry("large", LARGE)), compress="")
    blob = max(source.blobs, key=lambda digest: len(source.blobs[digest]))
    stop = threading.Event()

    def stall(request, path):
        if not path.endswith(blob) or stop.is_set():
            return False
        content = registry.blobs[blob]
        request.answer_part = request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content[: 4 << 20])
        request.wfile.flush()
        stop.wait(30)
        request.close_connection = True
        return True

    registry.fault = stall
    reference = registry.add("a:1", source)
    killed = subprocess.Popen(
        command(store, "pull", reference), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 20
    while sum(part.stat().st_size for part in (store / "work").glob(blob.replace(":", "-") + "*")) < 4 << 20:
        assert time.monotonic() < deadline, "the pull has not begun"
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    stop.set()
    assert reader.find(reference, store=store) is None
    record = images(store, "pull", reference).image
    assert (layer_of(store, record, 0) / "large").read_bytes() == LARGE
    assert f"bytes={4 << 20}-" in registry.ranges


# A real registry.
