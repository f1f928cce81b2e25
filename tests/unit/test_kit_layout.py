"""Projects as they lie: what is carried of each, and that the program finds it in a pod as it does here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kitlib as kit
from kitlib.errors import BadInput

UP = "os.path.dirname(os.path.dirname(os.path.abspath(__file__)))"
ADDS = f"import os, sys\nsys.path.insert(0, {UP})\n"
# Files, the program, and what it prints.
PROJECTS = {
    "tools folder that adds the root": (
        {"mylib/__init__.py": "", "mylib/model.py": "def build(): return 'built'"},
        ("tools/train.py", ADDS + "from mylib.model import build\nprint(build())"),
        "built",
    ),
    "the same by pathlib, and ..": (
        {"lib/one.py": "ONE = 1", "two.py": "TWO = 2"},
        (
            "a/b/train.py",
            "import os, sys\nfrom pathlib import Path\nROOT = Path(__file__).resolve().parents[2]\n"
            "sys.path.append(str(ROOT / 'lib'))\n"
            "sys.path.append(os.path.join(os.path.dirname(__file__), '..', '..'))\n"
            "from one import ONE\nfrom two import TWO\nprint(ONE, TWO)",
        ),
        "1 2",
    ),
    "a root with a pyproject.toml": (
        {"pyproject.toml": "", "mylib/__init__.py": "X = 1", "mylib/a.json": "{}"},
        (
            "tools/train.py",
            "import mylib, pathlib\nhere = pathlib.Path(mylib.__file__).parent\n"
            "print(mylib.X, (here / 'a.json').read_text())",
        ),
        "1 {}",
    ),
    "a src layout": (
        {".git/HEAD": "", "src/mylib/__init__.py": "X = 2"},
        ("scripts/train.py", "import mylib\nprint(mylib.X)"),
        "2",
    ),
    "relative imports": (
        {"engine/__init__.py": "", "engine/model.py": "from .sizes import S", "engine/sizes.py": "S = 3"},
        ("engine/train.py", "from .model import S\nfrom . import sizes\nprint(S, __package__)"),
        "3 engine",
    ),
    "relative imports of the package above": (
        {"pkg/__init__.py": "", "pkg/common.py": "C = 4", "pkg/tools/__init__.py": ""},
        ("pkg/tools/train.py", "from ..common import C\nprint(C, __name__)"),
        "4 __main__",
    ),
    "modules by name": (
        {"models/__init__.py": "", "models/small.py": "N = 5", "models/big.py": "N = 50"},
        ("train.py", "import importlib\nname = 'small'\nprint(importlib.import_module('models.' + name).N)"),
        "5",
    ),
    "modules by a format": (
        {"nets/resnet.py": "N = 6"},
        (
            "train.py",
            "from importlib import import_module\nn = 'resnet'\nprint(import_module(f'nets.{n}').N)",
        ),
        "6",
    ),
    "data in a package": (
        {
            "nets/__init__.py": "",
            "nets/sizes.json": '{"small": 3}',
            "nets/sizes.py": "import importlib.resources, json\n"
            "SIZES = json.loads(importlib.resources.files('nets').joinpath('sizes.json').read_text())",
        },
        ("train.py", "from nets.sizes import SIZES; print(SIZES)"),
        "{'small': 3}",
    ),
    "data beside the script": (
        {"labels.txt": "cat", "conf/a.yaml": "x"},
        (
            "train.py",
            "import os\nhere = os.path.dirname(__file__)\n"
            "print(open(os.path.join(here, 'labels.txt')).read())",
        ),
        "cat",
    ),
    "a folder with an installed package's name": (
        {"yaml/big.bin": "x" * 100, "numpy/run.txt": "a run", "torchvision/loss.py": "raise ValueError"},
        ("train.py", "import yaml, numpy\nprint(bool(yaml.safe_load), bool(numpy.ones))"),
        "True True",
    ),
    "an example in the repository of an installed package": (
        {"pyproject.toml": "", "yaml/__init__.py": "raise ImportError('of the repository')"},
        ("examples/train.py", "import yaml\nprint(bool(yaml.safe_load))"),
        "True",
    ),
    "a script beside a package with an installed one's name": (
        {"pyproject.toml": "", "yaml/__init__.py": "X = 8"},
        ("train.py", "import yaml\nprint(yaml.X)"),
        "8",
    ),
    "a namespace package": (
        {"parts/left/a.py": "A = 7", "parts/right/b.py": "from parts.left.a import A"},
        ("train.py", "from parts.right.b import A\nprint(A)"),
        "7",
    ),
}


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def run_as_in_a_pod(job: kit.IndexedJob, place: Path) -> str:
    """Lay out what a job carries as its pods see it, and run what torchrun would start."""
    for name, content in job.sources.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content.encode() if isinstance(content, str) else content)
    (container,) = job.objects[-1]["spec"]["template"]["spec"]["containers"]
    target = container["command"][-2:] if "--module" in container["command"] else container["command"][-1:]
    words = [word.replace("/trainyard/trainer", str(place)) for word in target]
    words = ["-m", words[1]] if len(words) == 2 else words
    path = next((item["value"] for item in container["env"] if item["name"] == "PYTHONPATH"), "")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path.replace("/trainyard/trainer", str(place))}
    elsewhere = place.parent / "workspace"
    elsewhere.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, *words], cwd=elsewhere, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("project", PROJECTS)
def test_a_project_runs_in_pods_as_it_lies_here(project, tmp_path):
    files, (name, text), output = PROJECTS[project]
    lay(tmp_path / "lab", {**files, name: text, "unused.py": "", "runs/big.bin": "x"})
    job = kit.IndexedJob(tmp_path / "lab" / name, name="mine")
    assert run_as_in_a_pod(job, tmp_path / "pod") == output
    assert not {"unused.py", "runs/big.bin", "yaml/big.bin", "torchvision/loss.py"} & job.sources.keys()


def test_a_module_is_named_in_the_place_of_a_file(tmp_path, monkeypatch):
    lab = tmp_path / "lab"
    lay(
        lab,
        {
            "engine/__init__.py": "",
            "engine/net.py": "N = 1",
            "engine/train.py": "from engine.net import N\nprint(N)",
        },
    )
    lay(lab, {"src/other/__main__.py": "from .inner import X; print(X)", "src/other/inner.py": "X = 2"})
    monkeypatch.chdir(lab)
    job = kit.IndexedJob(module="engine.train")
    assert job.name.startswith("train-")
    assert run_as_in_a_pod(job, tmp_path / "one") == "1"
    assert run_as_in_a_pod(kit.IndexedJob(module="other", root=lab), tmp_path / "two") == "2"
    with pytest.raises(BadInput, match="no such module"):
        kit.IndexedJob(module="engine.nothing")
    with pytest.raises(BadInput, match="a module is named in the trainer's place"):
        kit.IndexedJob("engine/train.py", module="engine.train")


def test_a_root_that_is_named_is_searched(tmp_path):
    lay(tmp_path, {"a/lib.py": "X = 1", "a/b/train.py": "import lib\nprint(lib.X)"})
    alone = kit.IndexedJob(tmp_path / "a" / "b" / "train.py")
    assert set(alone.sources) == {"train.py"}
    job = kit.IndexedJob(tmp_path / "a" / "b" / "train.py", root=tmp_path / "a")
    assert set(job.sources) == {"b/train.py", "lib.py"}
    assert run_as_in_a_pod(job, tmp_path / "pod") == "1"
    (tmp_path / "c").mkdir()
    with pytest.raises(BadInput, match="not below the root"):
        kit.IndexedJob(tmp_path / "a" / "b" / "train.py", root=tmp_path / "c")


def test_what_git_ignores_stays_here(tmp_path):
    lay(
        tmp_path, {".gitignore": "*.ckpt\n", "nets/__init__.py": "", "nets/a.ckpt": "large", "nets/a.txt": ""}
    )
    lay(tmp_path, {"train.py": "import nets"})
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert set(kit.IndexedJob(tmp_path / "train.py").sources) == {
        "train.py",
        "nets/__init__.py",
        "nets/a.txt",
    }


def test_files_beside_a_trainer_below_its_root_are_copied_by_their_own_names(tmp_path):
    lay(tmp_path, {"lib.py": "", "tools/train.py": ADDS + "import lib", "tools/conf.yaml": "x"})
    job = kit.IndexedJob(tmp_path / "tools" / "train.py", files=["conf.yaml"])
    assert set(job.sources) == {"lib.py", "tools/train.py", "tools/conf.yaml"}
    (init,) = job.objects[-1]["spec"]["template"]["spec"]["initContainers"]
    assert init["args"] == ["", "tools", "conf.yaml"]


@pytest.mark.parametrize("kind", [kit.PyTorchJob, kit.ElasticJob, kit.TrainJob, kit.TorchElastic])
def test_every_kind_of_job_starts_a_module(kind, tmp_path):
    lay(tmp_path, {"engine/__init__.py": "", "engine/train.py": "from . import net", "engine/net.py": ""})
    text = kind(module="engine.train", root=tmp_path).manifest()
    assert "- --module" in text and "- engine.train" in text and "PYTHONPATH" in text


def test_a_project_larger_than_a_config_map_is_copied_to_where_local_nodes_see_it(tmp_path, monkeypatch):
    lay(tmp_path, {"nets/__init__.py": "", "nets/weights.bin": "x" * 2_000_000, "train.py": "import nets"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job = kit.IndexedJob(tmp_path / "train.py")
    with pytest.raises(BadInput, match="a ConfigMap carries at most"):
        job.manifest()
    source = kit.clusters.LocalCluster("none").share_files(job.sources, {"train.py": 0o755})
    place = Path(source["hostPath"]["path"])
    assert (place / "nets" / "weights.bin").stat().st_size == 2_000_000
    assert [oct((place / name).stat().st_mode)[-3:] for name in ("train.py", "nets")] == ["755", "755"]
    job.shared = source
    volumes = job.objects[-1]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "trainer", **source} in volumes
    job_volume = next(volume for volume in volumes if volume["name"] == "trainer")
    assert "configMap" not in job_volume
    assert job.objects[0]["data"] == {}
