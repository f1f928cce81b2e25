"""Images go into files and come from them, are listed, removed and pruned."""

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from localkube.kubelet.images import store as reader

from ..unit.image_registry import serve
from ..unit.oci_images import Image, digest, entry, folder, image, images, index, layer, link, names, program

BOTH = (
    layer(folder("bin"), entry("bin/a", b"program", mode=0o755), link("bin/b", "a")),
    layer(folder("bin"), entry("bin/.wh.b"), entry("bin/c", b"more")),
)


@pytest.fixture(scope="module")
def registry():
    program()
    with serve() as serving:
        yield serving


@pytest.fixture
def pulled(registry, store):
    """The reference of an image of two layers that is in the store."""
    reference = registry.add("team/tool:1", image(*BOTH, config={"Cmd": ["/bin/a"]}))
    assert images(store, "pull", reference).status == 0
    return reference


def tar(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            archive.addfile(*(lambda info, text: (info, io.BytesIO(text)))(*entry(name, content)))
        for name, to in (links or {}).items():
            archive.addfile(link(name, to)[0])
    return out.getvalue()


def layout(
    layout_image: Image, name: str = "docker.io/library/tool:1", **annotations: str
) -> dict[str, bytes]:
    """The files of an OCI layout."""
    blobs = {**layout_image.blobs, layout_image.digest: layout_image.manifest}
    blobs |= {digest: text for digest, (_, text) in layout_image.manifests.items()}
    listed = {
        "mediaType": layout_image.media,
        "digest": layout_image.digest,
        "size": len(layout_image.manifest),
    }
    annotations = annotations or {"io.containerd.image.name": name}
    return {
        **{f"blobs/{digest.replace(':', '/')}": text for digest, text in blobs.items()},
        "index.json": json.dumps(
            {"schemaVersion": 2, "manifests": [listed | {"annotations": annotations}]}
        ).encode(),
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
    }


def docker_save(
    saved_image: Image, layers: tuple[bytes, ...], *tags: str
) -> tuple[dict[str, bytes], dict[str, str]]:
    """The files and links of an archive as docker save wrote them until version 25."""
    config = saved_image.id.partition(":")[2]
    files, links, listed, digests = {f"{config}.json": saved_image.blobs[saved_image.id]}, {}, [], {}
    for number, content in enumerate(layers):
        name = f"{number:064x}/layer.tar"
        if content in digests:
            links[name] = f"../{digests[content]}"
        else:
            files[name] = content
        digests.setdefault(content, name)
        listed.append(name)
    entry = {"Config": f"{config}.json", "RepoTags": list(tags) or None, "Layers": listed}
    return {**files, "manifest.json": json.dumps([entry]).encode()}, links


def load(store: Path, content: bytes, tmp_path: Path, *options: str):
    (tmp_path / "archive").write_bytes(content)
    return images(store, "load", *options, str(tmp_path / "archive"))


# Loading.


@pytest.mark.parametrize("packed", [False, True])
def test_an_archive_of_docker_save_is_loaded(store, tmp_path, packed):
    layers = (*BOTH, BOTH[0])
    source = image(*layers, config={"Cmd": ["a"]})
    content = tar(*docker_save(source, layers, "tool:1", "other/tool:2"))
    done = load(store, gzip.compress(content) if packed else content, tmp_path)
    record = done.image
    assert done.last("loaded")["new"] is True
    assert record["id"] == source.id
    assert record["names"] == ["docker.io/library/tool:1", "docker.io/other/tool:2"]
    assert record["layers"][0] == record["layers"][2]
    assert reader.find("tool:1", store=store) == record
    assert load(store, content, tmp_path).last("loaded")["new"] is False


def test_an_oci_layout_is_loaded_from_a_tar_a_folder_and_a_pipe(tmp_path):
    source = image(*BOTH)
    files = layout(source)
    for name, content in files.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(content)
    (tmp_path / "tar").write_bytes(tar(files))
    for number, place in enumerate(("tar", "folder")):
        record = images(tmp_path / f"store{number}", "load", str(tmp_path / place)).image
        assert (record["id"], record["names"]) == (source.id, ["docker.io/library/tool:1"])
    done = subprocess.run(
        [program(), "load", "--store", str(tmp_path / "piped"), "-"],
        input=tar(files),
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(done.stdout)["image"]["id"] == source.id


def test_an_index_in_a_layout_is_searched_for_the_platform(store, tmp_path):
    by_platform = {f"linux/{name}": image(*BOTH, architecture=name) for name in ("amd64", "arm64")}
    content = tar(layout(index(by_platform)))
    record = load(store, content, tmp_path, "--platform", "linux/arm64").image
    assert record["architecture"] == "arm64"
    assert load(store, content, tmp_path, "--platform", "linux/s390x").reason == "platform"


@pytest.mark.parametrize(
    ("annotations", "references"),
    [
        ({"org.opencontainers.image.ref.name": "quay.io/a/b:1"}, ["quay.io/a/b:1"]),
        ({"org.opencontainers.image.ref.name": "tool:1"}, ["docker.io/library/tool:1"]),
        ({"org.opencontainers.image.ref.name": "latest"}, []),
        ({"unrelated": "x"}, []),
    ],
)
def test_a_layout_names_its_images_by_annotations(store, tmp_path, annotations, references):
    record = load(store, tar(layout(image(*BOTH), **annotations)), tmp_path).image
    assert record["names"] == references
    assert reader.find(record["id"], store=store) == record


@pytest.mark.parametrize("kind", ["blob", "config", "layer", "nothing", "text", "cut"])
def test_an_incomplete_archive_is_refused_and_leaves_nothing(store, tmp_path, kind):
    source = image(*BOTH)
    files = layout(source)
    if kind == "blob":
        del files[next(name for name in files if name.startswith("blobs/") and source.id[7:] not in name)]
    elif kind == "config":
        files[f"blobs/{source.id.replace(':', '/')}"] = b"{}"
    elif kind == "layer":
        manifest = json.loads(source.manifest)
        files[f"blobs/{manifest['layers'][0]['digest'].replace(':', '/')}"] = b"x"
    elif kind == "nothing":
        files = {"unrelated": b"x"}
    content = {"text": b"this is a text " * 100, "cut": tar(files)[:2000]}.get(kind) or tar(files)
    done = load(store, content, tmp_path)
    assert done.reason == "archive", done
    assert reader.records(store=store) == []
    assert names(store, "layers") == []


def test_names_in_an_archive_do_not_leave_it(store, tmp_path):
    victim = tmp_path / "victim"
    files = {**layout(image(*BOTH)), "../../victim": b"x", str(victim): b"x"}
    assert load(store, tar(files, {"blobs": "/etc"}), tmp_path).status == 0
    assert not victim.exists()


# Saving.


def test_a_saved_image_is_loaded_elsewhere_with_its_names(store, tmp_path, pulled):
    goal = tmp_path / "saved.tar"
    assert images(store, "save", "-o", str(goal), pulled).last("saved")["bytes"] == goal.stat().st_size
    record = images(tmp_path / "other", "load", str(goal)).image
    assert record["names"] == [pulled]
    assert record["id"] == reader.find(pulled, store=store)["id"]


def test_layers_of_several_images_are_saved_once(store, tmp_path, registry, pulled):
    second = registry.add("team/second:1", image(BOTH[0], layer(entry("x"))))
    images(store, "pull", second)
    images(store, "save", "-o", str(tmp_path / "saved.tar"), pulled, second)
    with tarfile.open(tmp_path / "saved.tar") as archive:
        members = archive.getnames()
        assert len(members) == len(set(members))
        assert len(json.load(archive.extractfile("manifest.json"))) == 2
    assert len(images(tmp_path / "other", "load", str(tmp_path / "saved.tar")).events) == 2


def test_a_missing_image_is_neither_saved_nor_loaded(store, tmp_path):
    assert images(store, "load", "/nonexistent").reason == "archive"
    assert images(store, "save", "-o", str(tmp_path / "x"), "nosuch").reason == "notfound"
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="there is no skopeo (Debian's package)")
@pytest.mark.parametrize("kind", ["docker-archive", "oci-archive"])
def test_skopeo_reads_what_is_saved(store, tmp_path, pulled, kind):
    images(store, "save", "-o", str(tmp_path / "saved.tar"), pulled)
    source = f"{kind}:{tmp_path / 'saved.tar'}"
    goal = tmp_path / "copied"
    done = subprocess.run(
        ["skopeo", "--insecure-policy", "copy", source, f"oci:{goal}:tool"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # And what skopeo writes is loaded.
    record = images(tmp_path / "other", "load", str(goal)).image
    assert record["config"]["Cmd"] == ["/bin/a"]
    if umoci := shutil.which("umoci"):
        bundle = tmp_path / "bundle"
        subprocess.run([umoci, "unpack", "--rootless", "--image", f"{goal}:tool", bundle], check=True)
        assert sorted(path.name for path in (bundle / "rootfs/bin").iterdir()) == ["a", "c"]


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="there is no skopeo (Debian's package)")
def test_a_docker_archive_of_skopeo_is_loaded(store, tmp_path, pulled):
    images(store, "save", "-o", str(tmp_path / "saved.tar"), pulled)
    source, goal = f"oci-archive:{tmp_path / 'saved.tar'}", tmp_path / "docker.tar"
    subprocess.run(
        ["skopeo", "--insecure-policy", "copy", source, f"docker-archive:{goal}:x/tool:3"],
        capture_output=True,
        check=True,
    )
    record = images(tmp_path / "other", "load", str(goal)).image
    assert record["names"] == ["docker.io/x/tool:3"]


# Listing, removing, pruning.


def test_images_are_listed_with_their_users(store, tmp_path, pulled):
    (event,) = images(store, "list").events
    assert (event["image"]["names"], event["users"]) == ([pulled], 0)
    use(store, event["image"], tmp_path)
    assert images(store, "list").events[0]["users"] == 1


def use(store: Path, record: dict, path: Path, name: str = "container") -> Path:
    link = store / "users" / f"{record['id'][7:]}.{name}"
    link.symlink_to(path)
    return link


def test_a_removed_image_leaves_nothing_but_what_others_share(store, registry, pulled):
    reference = registry.add("team/other:1", image(BOTH[0], layer(entry("x"))))
    remaining = images(store, "pull", reference).image
    done = images(store, "remove", pulled).last("removed")
    assert done["untagged"] == [pulled] and len(done["images"]) == 1 and done["freed"] > 0
    assert names(store, "layers") == sorted(remaining["layers"])
    assert [record["id"] for record in reader.records(store=store)] == [remaining["id"]]
    manifest = json.loads((store / "blobs/sha256" / remaining["manifest"][7:]).read_text())
    blobs = {blob["digest"][7:] for blob in [*manifest["layers"], manifest["config"]]}
    assert set(names(store, "blobs/sha256")) == blobs | {remaining["manifest"][7:]}
    assert [
        manifest["digest"] for manifest in json.loads((store / "index.json").read_text())["manifests"]
    ] == [remaining["manifest"]]
    assert images(store, "remove", remaining["id"]).status == 0
    assert names(store, "layers") == names(store, "blobs/sha256") == names(store, "names") == []


def test_one_of_several_names_is_removed_alone(store, registry, pulled):
    again = registry.add("team/again:1", image(*BOTH, config={"Cmd": ["/bin/a"]}))
    images(store, "pull", again)
    done = images(store, "remove", pulled).last("removed")
    assert (done["untagged"], done["images"]) == ([pulled], [])
    assert reader.find(pulled, store=store) is None
    assert reader.find(again, store=store)["names"] == [again]


def test_an_image_in_use_is_neither_removed_nor_pruned(store, tmp_path, pulled):
    record = reader.find(pulled, store=store)
    use(store, record, tmp_path)
    assert images(store, "remove", pulled).reason == "inuse"
    assert images(store, "prune", "--all", "--min-age", "0s").last("pruned")["images"] == []
    assert reader.find(pulled, store=store) == record


def test_links_of_containers_that_are_gone_are_removed_and_count_as_a_use(store, tmp_path, pulled):
    record = reader.find(pulled, store=store)
    old = time.time() - 3600
    link = use(store, record, tmp_path / "gone")
    path = store / "images" / f"{record['id'][7:]}.json"
    path.write_text(json.dumps(record | {"pulled": int(old)}))
    os.utime(path, (old, old))
    assert images(store, "prune", "--all").last("pruned")["images"] == []
    assert not link.is_symlink()
    assert images(store, "prune", "--all", "--min-age", "0s").last("pruned")["images"] == [record["id"]]


def test_the_image_that_was_not_used_for_longest_goes_first(store, registry):
    records = []
    for number in range(4):
        large = image(layer(entry("large", os.urandom(1 << 20))))
        record = images(store, "pull", registry.add(f"age/{number}x:1", large)).image
        records.append(record)
        path = store / "images" / f"{record['id'][7:]}.json"
        moment = time.time() - 3600 + (1000 if number == 0 else number)
        path.write_text(json.dumps(record | {"pulled": int(moment) - 1}))
        os.utime(path, (moment, moment))
    done = images(store, "prune", "--all", "--target-bytes", str(3 << 20)).last("pruned")
    assert done["images"] == [records[1]["id"], records[2]["id"]]
    assert done["freed"] >= 3 << 20
    assert [record["id"] for record in reader.records(store=store)] != []


def test_a_loaded_image_is_not_removed_for_room_as_no_registry_may_have_it(store, tmp_path, pulled):
    content = layer(entry("mine", b"x"))
    loaded = load(store, tar(*docker_save(image(content), [content], "mine:1")), tmp_path).image
    room = ("--all", "--min-age", "0s", "--target-bytes", str(1 << 40))
    assert images(store, "prune", *room).last("pruned")["untagged"] == [pulled]
    assert images(store, "prune", *room[:3]).last("pruned")["images"] == [loaded["id"]]


def test_without_all_only_what_no_image_needs_is_pruned(store, pulled):
    record = reader.find(pulled, store=store)
    (store / "layers" / "77").mkdir()
    (store / "layers" / "78.partial").mkdir()
    (store / "layers" / "78.partial" / "file").write_bytes(bytes(1 << 20))
    (store / "blobs/sha256" / ("0" * 64)).write_bytes(b"x")
    (store / "diff-ids" / f"sha256-{'0' * 64}").symlink_to("../layers/77")
    (store / "work" / f"sha256-{'1' * 64}").write_bytes(b"half")
    assert images(store, "prune").last("pruned")["freed"] >= 1 << 20
    assert names(store, "layers") == sorted(record["layers"])
    assert len(names(store, "diff-ids")) == 2
    assert f"sha256-{'1' * 64}" in names(store, "work"), "a pull may go on with it"
    images(store, "prune", "--min-age", "0s")
    assert f"sha256-{'1' * 64}" not in names(store, "work")
    assert reader.find(pulled, store=store) == record


def test_nothing_is_pruned_while_somebody_pulls(store, pulled):
    import fcntl

    with (store / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        pruning = subprocess.Popen(
            [program(), "prune", "--store", str(store), "--all", "--min-age", "0s"], stdout=subprocess.PIPE
        )
        with pytest.raises(subprocess.TimeoutExpired):
            pruning.communicate(timeout=1)
        assert reader.find(pulled, store=store)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert json.loads(pruning.communicate(timeout=20)[0])["images"]


def test_a_store_that_is_not_there_yet_is_empty(store):
    assert images(store, "list").events == []
    assert images(store, "prune").last("pruned")["freed"] == 0


# Checking out.


def test_an_image_is_checked_out_as_its_layers_merged(registry, store, tmp_path):
    source = image(
        layer(
            folder("a", 0o750),
            entry("a/one", b"1", mode=0o4755),
            link("a/hard", "a/one", hard=True, mode=0o4755),
            folder("b"),
            entry("b/old"),
            entry("gone"),
            link("way", "a"),
            entry("type"),
        ),
        layer(entry(".wh.gone"), folder("b"), entry("b/.wh..wh..opq"), entry("b/new"), folder("type")),
        layer(entry("way", b"a file")),
    )
    record = images(store, "pull", registry.add("merged/x:1", source)).image
    goal = tmp_path / "goal"
    goal.mkdir()
    done = images(store, "checkout", record["id"], str(goal))
    assert done.last("checkedout")["image"] == record["id"]
    paths = {str(path.relative_to(goal)) for path in goal.rglob("*")}
    assert paths == {"a", "a/one", "a/hard", "b", "b/new", "way", "type"}
    assert (goal / "way").read_bytes() == b"a file" and (goal / "type").is_dir()
    assert (goal / "a/one").samefile(goal / "a/hard")
    assert (goal / "a").stat().st_mode & 0o7777 == 0o750
    assert (goal / "a/one").stat().st_mode & 0o7777 == 0o4755
    assert (goal / "a/one").stat().st_mtime == 1_700_000_000
    assert "user.overlay.opaque" not in os.listxattr(goal / "b")
    (goal / "a/one").write_bytes(b"changed")
    assert (store / "layers" / record["layers"][0] / "a/one").read_bytes() == b"1"


def test_a_link_in_a_lower_layer_is_not_followed_when_checking_out(registry, store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    source = image(layer(link("way", str(outside))), layer(folder("way"), entry("way/file", b"x")))
    record = images(store, "pull", registry.add("hostile/x:1", source)).image
    goal = tmp_path / "goal"
    goal.mkdir()
    assert images(store, "checkout", record["id"], str(goal)).status == 0
    assert list(outside.iterdir()) == []
    assert (goal / "way/file").read_bytes() == b"x"


def test_only_an_empty_folder_is_checked_out_into(store, tmp_path, pulled):
    record = reader.find(pulled, store=store)
    assert images(store, "checkout", record["id"], str(tmp_path)).reason == "store"
    assert digest(b"")  # the program has ended by itself
