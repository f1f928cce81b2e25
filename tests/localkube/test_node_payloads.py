"""From ConfigMaps, Secrets and the pod itself to files."""

import base64

import pytest

from localkube.kubelet.containers.expansion import ConfigError
from localkube.kubelet.volumes.projected import (
    MAX_FILES,
    PodPayload,
    VolumeFile,
    count_files,
    object_files,
    write_atomically,
)

BINARY = bytes(range(256))
CONFIGMAP = {
    "data": {"train.py": "print('é')\n", "empty": ""},
    "binaryData": {"weights.bin": base64.b64encode(BINARY).decode()},
}


def configmap_files(source, item, *, mode):
    return object_files("configMap", source, item, mode=mode, contents=PodPayload())


def secret_files(source, item, *, mode):
    return object_files("secret", source, item, mode=mode, contents=PodPayload())


def test_all_keys_become_files():
    assert configmap_files({}, CONFIGMAP, mode=0o644) == {
        "train.py": VolumeFile("print('é')\n".encode()),
        "empty": VolumeFile(b""),
        "weights.bin": VolumeFile(BINARY),
    }


def test_items_choose_keys_paths_and_modes():
    items = [{"key": "train.py", "path": "code/main.py", "mode": 0o755}, {"key": "empty", "path": "none"}]
    files = configmap_files({"items": items}, CONFIGMAP, mode=0o400)
    assert {path: file.mode for path, file in files.items()} == {"code/main.py": 0o755, "none": 0o400}


def test_a_pods_files_are_counted_and_limited_before_they_are_computed():
    items = [{"key": "empty", "path": str(number)} for number in range(1000)]
    assert [count_files(source, CONFIGMAP) for source in ({}, {"items": items})] == [3, 1000]
    assert count_files({"optional": True}, None) == 0
    contents = PodPayload()
    contents.count(MAX_FILES)
    with pytest.raises(ConfigError, match=f"more than {MAX_FILES} files"):
        contents.count(1)


def test_a_missing_key_is_named_unless_it_is_optional():
    wish = {"items": [{"key": "absent", "path": "x"}]}
    with pytest.raises(ConfigError, match="configmap references non-existent config key: absent"):
        configmap_files(wish, CONFIGMAP, mode=0o644)
    with pytest.raises(ConfigError, match="references non-existent secret key: absent"):
        secret_files(wish, {"data": {}}, mode=0o644)
    assert configmap_files(wish | {"optional": True}, CONFIGMAP, mode=0o644) == {}
    assert secret_files({"optional": True}, {}, mode=0o644) == {}


@pytest.mark.parametrize(
    "path", ["../up", "a/../../token", "/etc", "a/../b", "..data", "..token", "a//b", ""]
)
def test_a_path_that_leads_out_is_refused(tmp_path, path):
    files = configmap_files({"items": [{"key": "empty", "path": path}]}, CONFIGMAP, mode=0o644)
    with pytest.raises(ConfigError, match="out of the volume"):
        write_atomically(tmp_path / "volume", files)
    assert not (tmp_path / "volume").exists()
