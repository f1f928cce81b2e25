"""What a ConfigMap carries: any name, any source that Python reads, arguments unchanged.

A ConfigMap's volume is laid out as the kubelet does, from what its validation accepts.
"""

import base64
import os
import re
import subprocess
import sys

import pytest
import yaml

import kitlib as kit
from kitlib.errors import BadInput
from kitlib.jobs.sources import flags, sources


def launched(program, **options):
    """The files of a job's volume by path, with their modes, and the names of what is copied."""
    job = kit.IndexedJob(program, name="mine", **options)
    by_kind = {item["kind"]: item for item in yaml.safe_load_all(job.manifest())}
    assert list(by_kind.values()) == job.objects
    config_map, spec = by_kind["ConfigMap"], by_kind["Job"]["spec"]["template"]["spec"]
    contents = {key: text.encode() for key, text in config_map["data"].items()}
    contents |= {key: base64.b64decode(text) for key, text in config_map.get("binaryData", {}).items()}
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) for key in contents)
    volumes = {volume["name"]: volume.get("configMap") for volume in spec["volumes"]}
    items = volumes["trainer"].get("items") or [{"key": key, "path": key} for key in contents]
    assert len({item["path"] for item in items}) == len(items) == len(contents)
    copied = spec["initContainers"][0]["args"][2:] if options.get("files") else []
    return {item["path"]: (contents[item["key"]], item.get("mode")) for item in items}, copied


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return path


def test_files_are_named_by_any_path_and_keep_their_modes(program, monkeypatch):
    for name, mode in {"run.sh": 0o755, "secret": 0o600, "~": 0o644, "empty": 0o444, "deep/x": 0o711}.items():
        (program.parent / name).parent.mkdir(exist_ok=True)
        (program.parent / name).write_bytes(b"\xff" if name == "run.sh" else b"")
        (program.parent / name).chmod(mode)
    monkeypatch.setenv("HOME", str(program.parent))
    paths = ["./run.sh", program.parent / "secret", "deep/../empty", "~/deep"]
    files, copied = launched(program, files=paths)
    assert files["run.sh"] == (b"\xff", 0o755)
    assert {name: files[name][1] for name in ("secret", "empty", "deep/x")} == {
        "secret": None,
        "empty": None,
        "deep/x": 0o755,
    }
    assert copied == ["run.sh", "secret", "empty", "deep"]


def test_links_are_followed_and_what_a_config_map_cannot_carry_is_named(program, tmp_path, caplog):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "a").write_text("a")
    (tmp_path / "data" / "empty").mkdir(parents=True)
    (tmp_path / "data" / "disk").symlink_to("../disk")
    (tmp_path / "data" / "gone").symlink_to("nowhere")
    files, _ = launched(program, files=["data"])
    assert files["data/disk/a"] == (b"a", None)
    assert "'gone' leads nowhere; 'data/empty' is an empty folder" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["a", "./a"], "named twice"),
        (["data", "data/x"], "named twice"),
        (["..a"], "two dots"),
        (["\udcff"], "is UTF-8"),
        (["many"], "2,002 files"),
        (["large"], "1,099,511,627,776 bytes"),  # and it is not read before
    ],
)
def test_a_trainer_that_cannot_be_sent_is_refused_before_the_launch(program, files, words):
    many = [f"many/{number}" for number in range(2001)] if "many" in files else []
    for name in ("a", "data/x", "..a", "large", "\udcff", *many):
        (program.parent / name).parent.mkdir(exist_ok=True)
        (program.parent / name).touch()
    os.truncate(program.parent / "large", 2**40)
    with pytest.raises(BadInput, match=words):
        kit.IndexedJob(program, files=files).manifest()


PROGRAMS = {
    "bom": b"\xef\xbb\xbfprint(1)\n",
    "latin-1": "# -*- coding: latin-1 -*-\nprint('é')\n".encode("latin-1"),
    "gbk": "#!/usr/bin/env python\n# vim: set fileencoding=gbk :\nprint('训练')\n".encode("gbk"),
    "carriage returns": b"x = '''a\r\nb'''\r\nprint(repr(x))\r\n",
    "old macintosh": b"x = 1\rprint(x)\r",
    "null byte": b"print(1)\n\0",
    "no utf-8": b"print('\xff')\n",
    "unknown encoding": b"# coding: klingon\n",
    "mixed": b"\xef\xbb\xbf# coding: latin-1\nprint(1)\n",
    "unfinished": b"print(\n",
}


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
def test_valid_programs_are_sent_unchanged_and_others_refused(program, source):
    program.write_bytes(source)
    if subprocess.run([sys.executable, program], capture_output=True, check=False).returncode:
        with pytest.raises(BadInput, match="not valid Python"):
            launched(program)
    else:
        assert launched(program)[0]["train.py"] == (source, None)


def test_a_package_is_carried_whole_and_judged_where_it_is_imported(program):
    files = {
        "net/__init__.py": "from . import layers",
        "net/layers.py": "from .deep.wide import x\nimport helper",
        "net/deep/__init__.py": "",
        "net/deep/wide.py": "x = 1",
        "net/template.py": "print {{ name }}",
        "net/old.py": "import other\n",
        "helper.py": "",
        "other.py": "print 'two'",
    }
    for name, text in files.items():
        (program.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (program.parent / name).write_text(text)
    program.write_text("import net")
    assert set(sources(program)) == {"train.py", *files}
    for name in ("net/__init__.py", "net/layers.py", "net/deep/__init__.py", "net/deep/wide.py", "helper.py"):
        (program.parent / name).write_text("print 'two'")
        with pytest.raises(BadInput, match=f"{name}, line 1"):
            sources(program)
        (program.parent / name).write_text(files[name])


@pytest.mark.parametrize("word", ["a\0b", "\udcff"])
def test_an_argument_that_no_container_can_get_is_refused(word):
    with pytest.raises(BadInput, match="UTF-8 text"):
        flags([word])
