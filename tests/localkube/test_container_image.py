"""What an image of the store decides about a container, and reading a file through its layers."""

import os

import pytest

from localkube.kubelet.images.container_image import ResolvedImage, from_record


@pytest.fixture
def image(tmp_path):
    numbers = iter(range(9))

    def make(*layers):
        store = tmp_path / f"store-{next(numbers)}"
        for number, files in enumerate(layers):
            for path, content in files.items():
                place = store / str(number) / path
                place.parent.mkdir(parents=True, exist_ok=True)
                if content is None:
                    os.mknod(place, 0o20000)
                elif isinstance(content, tuple):
                    place.symlink_to(content[0])
                else:
                    place.write_text(content)
            (store / str(number)).mkdir(parents=True, exist_ok=True)
        return ResolvedImage("i", layers=tuple(map(str, range(len(layers)))), store=store)

    return make


def test_the_highest_layer_that_has_a_file_decides(image):
    assert image({"etc/passwd": "old"}, {"etc/passwd": "new"}, {"etc/other": ""}).read("/etc/passwd") == "new"
    assert image({"etc/hosts": ""}).read("/etc/nothing") is None


def test_a_file_deleted_by_a_higher_layer_is_absent(image):
    assert image({"etc/passwd": "old"}, {"etc/passwd": None}).read("/etc/passwd") is None
    assert image({"etc/group": "old"}, {"etc": None}).read("/etc/group") is None


def test_no_link_of_an_image_is_followed(image, tmp_path):
    (tmp_path / "secret").write_text("of the host")
    assert image({"etc/passwd": (str(tmp_path / "secret"),)}).read("/etc/passwd") is None
    (tmp_path / "above").mkdir()
    (tmp_path / "above" / "group").write_text("of the host")
    assert image({"bin/x": ""}, {"etc": (str(tmp_path / "above"),)}).read("/etc/group") is None


def test_a_record_of_the_store_becomes_what_a_container_needs(tmp_path):
    digests = ["quay.io/a/b@sha256:1", "docker.io/library/web@sha256:2"]
    config = {"Entrypoint": ["/go"], "Cmd": None, "Env": ["A=b=c", "broken"]}
    config |= {"User": "5", "StopSignal": "SIGQUIT"}
    record = {"id": "sha256:0", "digests": digests, "config": config, "layers": ["1", "2"]}
    web = from_record(record, "docker.io/library/web:3", tmp_path)
    assert (web.id, web.layers, web.store) == (digests[1], ("1", "2"), tmp_path / "layers")
    assert web.command_line({}) == ["/go"]
    assert web.env["A"] == "b=c" and "/bin" in web.env["PATH"] and "broken" not in web.env
    assert (web.directory, web.user, web.stop_signal) == ("/", "5", "SIGQUIT")
    assert from_record(record | {"digests": []}, "web", tmp_path).id == "sha256:0"
