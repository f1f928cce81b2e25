"""Shared volumes on a real cluster: files go there and come back, whole or not at all."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

import kitlib as kit
from kitlib import config
from kitlib.clusters import cleanup
from kitlib.errors import BadInput, FileMissing, Interrupted, TransferFailed, VolumeInUse, VolumeNotFound
from kitlib.storage.helper_pod import HelperPod
from trainyard_kit.cli import main

from ..patience import eventually, until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def volume(local_cluster):
    """A volume of these tests, deleted with them."""
    created = local_cluster.create_volume("files", size="1Gi")
    yield created
    created.delete()


@pytest.fixture
def folder(tmp_path):
    """A folder with a nested, an empty, an executable and a link."""
    place = tmp_path / "pets"
    (place / "cats" / "big ones").mkdir(parents=True)
    (place / "empty").mkdir()
    (place / "cats" / "big ones" / "-tiger.bin").write_bytes(os.urandom(300_000))
    (place / "run.sh").write_text("echo hello\n")
    (place / "run.sh").chmod(0o700)
    (place / "link").symlink_to("run.sh")
    return place


def content(place):
    return {
        str(path.relative_to(place)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() or path.is_symlink()
    }


def helpers(cluster):
    return [pod for pod in cluster.pods() if str(pod["pod"]).startswith("volume-")]


def test_a_folder_comes_back_as_it_was_sent_and_nothing_else_is_left(volume, folder, tmp_path, local_cluster):
    assert volume.upload(folder) == "pets"
    (tmp_path / "back").mkdir()
    back = volume.download("pets", tmp_path / "back")
    assert back == tmp_path / "back" / "pets"
    assert content(back) == content(folder)
    assert (back / "empty").is_dir()
    assert os.access(back / "run.sh", os.X_OK)
    assert [entry["name"] for entry in volume.ls("pets/cats")] == ["big ones"]
    assert list((tmp_path / "back").iterdir()) == [back]
    until(lambda: not helpers(local_cluster), "the helpers to go")


def test_a_file_replaces_a_file_and_a_folder_only_when_asked_to(volume, folder, tmp_path):
    for text in ("one", "two"):
        (tmp_path / "note.txt").write_text(text)
        volume.upload(tmp_path / "note.txt", to="notes/today.txt")
    assert volume.download("notes/today.txt", tmp_path / "x.txt").read_text() == "two"
    volume.upload(folder, to="again")
    (folder / "run.sh").unlink()
    with pytest.raises(BadInput, match="a folder of that name exists"):
        volume.upload(folder, to="again")
    assert "run.sh" in [entry["name"] for entry in volume.ls("again")]
    volume.upload(folder, to="again", replace=True)
    assert "run.sh" not in [entry["name"] for entry in volume.ls("again")]


def test_missing_files_and_volumes_are_named(volume, local_cluster, tmp_path):
    with pytest.raises(FileMissing, match="no such file or folder on the volume"):
        volume.ls("no/such")
    with pytest.raises(FileMissing):
        volume.download("no such.txt", tmp_path)
    with pytest.raises(BadInput, match="no such file or folder here"):
        volume.upload(tmp_path / "nothing")
    with pytest.raises(VolumeNotFound, match="files"):
        local_cluster.volume("nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_volume_is_found_again_and_not_made_smaller_or_larger(volume, local_cluster):
    assert repr(local_cluster.create_volume("files", size="1Gi")) == repr(volume)
    with pytest.raises(BadInput, match="exists already, with 1Gi"):
        local_cluster.create_volume("files", size="2Gi")
    with pytest.raises(BadInput, match="no such StorageClass") as refused:
        local_cluster.create_volume("other", storage_class="fast")
    assert "standard" in refused.value.fix


def test_a_volume_that_a_pod_uses_is_not_deleted(volume, local_cluster):
    pod = HelperPod(local_cluster, "files").manifest()
    pod["metadata"] = {"name": "user-of-files"}
    local_cluster.kube.create(pod)
    try:
        with pytest.raises(VolumeInUse, match="user-of-files"):
            volume.delete()
    finally:
        local_cluster.kube.delete("Pod", "user-of-files")
    assert "Bound" in repr(volume)


def test_a_volume_that_exists_already_is_mounted_by_where_it_is(volume, local_cluster, tmp_path):
    (tmp_path / "seen.txt").write_text("by both")
    volume.upload(tmp_path / "seen.txt")
    second = local_cluster.create_volume("by-hand", size="1Gi", source=volume.source)
    try:
        assert "seen.txt" in [entry["name"] for entry in second.ls()]
    finally:
        second.delete()
    assert local_cluster.kube.find("PersistentVolume", "default-by-hand") is None
    assert "seen.txt" in [entry["name"] for entry in volume.ls()]


def test_a_sender_that_is_killed_leaves_nothing_half_made(volume, local_cluster, tmp_path):
    """The pipe never ends, so the sender is in the middle when it is killed."""
    script = (
        "import sys, kitlib as kit\n"
        "from kitlib.storage import copy\n"
        "class Slow(copy._Counted):\n"
        "    def write(self, data):\n"
        "        size = super().write(data)\n"
        "        if self.bytes > 2_000_000: print('half', flush=True); sys.stdin.read()\n"
        "        return size\n"
        "copy._Counted = Slow\n"
        f"kit.connect({local_cluster.name!r}).volume('files').upload({str(tmp_path / 'large.bin')!r})\n"
    )
    (tmp_path / "large.bin").write_bytes(os.urandom(8_000_000))
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender:
        assert sender.stdout.readline() == b"half\n"
        sender.kill()
    (left,) = helpers(local_cluster)
    local_cluster.kube.delete("Pod", left["pod"])  # as its deadline would

    def halves():
        with HelperPod(local_cluster, "files") as helper:
            return [word for word in helper.output("ls -A").split() if word.startswith((".train", "large"))]

    eventually(halves, expected=[])


def test_a_lost_connection_is_said_and_the_file_is_not_there(volume, local_cluster, tmp_path, monkeypatch):
    from kitlib.storage import copy

    class Cut(copy._Counted):
        def write(self, data):
            size = super().write(data)
            if self.bytes > 2_000_000:
                for pod in local_cluster.kube.get_all("Pod", labels="trainyard/volume=files"):
                    local_cluster.kube.delete("Pod", pod["metadata"]["name"])
            return size

    monkeypatch.setattr(copy, "_Counted", Cut)
    (tmp_path / "cut.bin").write_bytes(os.urandom(20_000_000))
    with pytest.raises(TransferFailed):
        volume.upload(tmp_path / "cut.bin")
    monkeypatch.undo()
    assert "cut.bin" not in [entry["name"] for entry in volume.ls()]


def test_an_interrupted_copy_says_that_nothing_is_left(volume, tmp_path, monkeypatch):
    from kitlib.storage import copy

    def interrupt(counted, data):
        raise KeyboardInterrupt

    (tmp_path / "stopped.bin").write_bytes(b"x" * 1000)
    monkeypatch.setattr(copy._Counted, "write", interrupt)
    with pytest.raises(Interrupted, match="the partial copy was removed"):
        volume.upload(tmp_path / "stopped.bin")
    monkeypatch.undo()
    assert "stopped.bin" not in [entry["name"] for entry in volume.ls()]


def test_an_attendee_has_volumes_and_copies_files_in_a_namespace_of_their_own(
    local_cluster, tmp_path, monkeypatch
):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nexec {shlex.join(local_cluster.kubectl_command())} "$@"\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    ada = kit.workshop.add("with-files", cluster=local_cluster)
    try:
        theirs = kit.connect("with-files", kubeconfig=ada.kubeconfig)
        volume = theirs.create_volume("shared", size="1Mi")
        volume.upload(kubectl, to="bin/")
        assert [entry["name"] for entry in volume.ls("bin")] == ["kubectl"]
        volume.delete()
        theirs.forget()
    finally:
        kit.workshop.remove("with-files", cluster=local_cluster)


def test_a_terminal_has_the_same_verbs(volume, local_cluster, tmp_path):
    def kit_volume(*words):
        done = CliRunner().invoke(main.main, ["volume", *map(str, words), "-c", local_cluster.name])
        assert done.exit_code == 0, done.output
        return done.stdout

    (tmp_path / "by-hand.txt").write_text("typed")
    assert "files" in kit_volume("list")
    assert kit_volume("upload", "files", tmp_path / "by-hand.txt", "typed/") == "typed/by-hand.txt\n"
    assert "by-hand.txt" in kit_volume("ls", "files", "typed")
    kit_volume("download", "files", "typed/by-hand.txt", tmp_path / "back.txt")
    assert (tmp_path / "back.txt").read_text() == "typed"


def test_cleaning_up_knows_of_volumes(local_cluster):
    local_cluster.create_volume("leftover", size="1Mi")
    assert "PersistentVolumeClaim/leftover" in repr(cleanup.owned(local_cluster.kube))
    local_cluster.volume("leftover").delete()
    assert "leftover" not in repr(cleanup.owned(local_cluster.kube))


def test_kubernetes_accepts_the_volumes_and_classes_of_every_provider_as_they_stand(local_cluster):
    manifests = [
        path for path in config.manifests().rglob("*.yaml") if path.parent.name in ("volume", "eks", "gke")
    ]
    kinds = ("kind: PersistentVolume\n", "kind: StorageClass\n")
    texts = {path: path.read_text() for path in sorted(manifests) if not path.name.startswith("storage-f")}
    texts.pop(config.manifests("volume", "storage.yaml"))  # of whole file systems, filled in below
    files = [path for path, text in texts.items() if any(kind in text for kind in kinds)]
    assert len(files) >= 4
    output = local_cluster.kubectl(f"apply --dry-run=server {' '.join(f'-f {path}' for path in files)}")
    assert output.count("created (server dry run)") == len(files)


@pytest.mark.parametrize(("manifest", "pv"), [("storage", "efs-pv"), ("storage-filestore", "filestore-pv")])
def test_a_manifest_for_a_file_system_that_exists_binds_its_claim_to_that_volume(
    manifest, pv, local_cluster, tmp_path
):
    """The header's sed fills it in; a claim that gets another volume would be empty."""
    text = config.manifests("volume", f"{manifest}.yaml").read_text()
    (command,) = re.findall(r"^#     (sed (?:.|\\\n)+?) \| kubectl", text, re.M)
    command = command.replace("\\\n#", "")
    sed = [*shlex.split(command)[:-1], "-e", "s/name: shared/name: given/"]
    sed.insert(1, "-e")
    filled = subprocess.run(sed, input=text, capture_output=True, text=True, check=True).stdout
    assert "<" not in re.sub(r"#.*", "", filled)
    path = tmp_path / "storage.yaml"
    path.write_text(filled)
    try:
        local_cluster.kubectl(f"apply -f {path}")
        local_cluster.kubectl("wait pvc/given --for=jsonpath={.status.phase}=Bound --timeout=60s")
        assert local_cluster.kubectl("get pvc given -o jsonpath={.spec.volumeName}") == pv
        claimed = local_cluster.kubectl(f"get pv {pv} -o jsonpath={{.spec.claimRef.name}}")
        assert claimed == "given"
    finally:
        local_cluster.kubectl(f"delete --ignore-not-found --wait=false -f {path}")
