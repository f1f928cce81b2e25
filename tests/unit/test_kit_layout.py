"""Projects as they lie: what is carried of each, and that the program finds it in a pod as it does here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kitlib as kit
from kitlib.errors import BadInput
from kitlib.jobs import layout, sources
from kitlib.jobs.referenced_files import add_referenced_files, find_referenced_files

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
    "the other ways to add to sys.path": (
        {f"lib{number}/m{number}.py": f"M = {number}" for number in range(6)},
        (
            "tools/train.py",
            "import os, site, sys\nimport os.path as osp\nHERE = osp.dirname(osp.abspath(__file__))\n"
            "def add_path(path):\n    sys.path.insert(0, path)\n"
            "sys.path += [osp.join(HERE, '..', 'lib0')]\nsys.path.extend([f'{HERE}/../lib1'])\n"
            "sys.path.append(HERE + '/../lib2')\nsite.addsitedir(osp.join(HERE, '..', 'lib3'))\n"
            "add_path(osp.join(HERE, '..', 'lib4'))\nimport _init_paths\n"
            "import m0, m1, m2, m3, m4, m5\nprint(m0.M, m1.M, m2.M, m3.M, m4.M, m5.M)",
        ),
        "0 1 2 3 4 5",
    ),
    "modules that texts name": (
        {
            "models/__init__.py": "",
            "models/a.py": "class Net: N = 5",
            "tasks/b.py": "N = 6",
            "data/c.bin": "x",
        },
        (
            "train.py",
            "from importlib import import_module\n"
            "NETS = {'a': 'models.a:Net', 'b': 'tasks.b', 'data': 'data'}\n"
            "module, name = NETS['a'].split(':')\n"
            "print(getattr(import_module(module), name).N, import_module(NETS['b']).N)",
        ),
        "5 6",
    ),
    "data that a path is put together for": (
        {"assets/vocab.txt": "cat", "conf/a.txt": "dog", "lib/__init__.py": "", "lib/d/x.txt": "hen"},
        (
            "train.py",
            "import os, pkgutil\nfrom pathlib import Path\n"
            "here = os.path.dirname(os.path.abspath(__file__))\n"
            "print(open(os.path.join(here, 'assets', 'vocab.txt')).read(),\n"
            "    (Path(__file__).parent / 'conf' / 'a.txt').read_text(),\n"
            "    pkgutil.get_data('lib', 'd/x.txt').decode())",
        ),
        "cat dog hen",
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
    init = "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'lib5'))"
    lay(tmp_path / "lab", {"tools/_init_paths.py": init} if "_init_paths" in text else {})
    job = kit.IndexedJob(tmp_path / "lab" / name, name="mine")
    assert run_as_in_a_pod(job, tmp_path / "pod") == output
    assert (
        not {"unused.py", "runs/big.bin", "yaml/big.bin", "torchvision/loss.py", "data/c.bin"}
        & job.sources.keys()
    )


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
    with pytest.raises(BadInput, match="a module is not a trainer's path"):
        kit.IndexedJob("engine/train.py", module="engine.train")


@pytest.mark.parametrize(("folder", "entry"), [("tools", ".."), (".", ".")])
def test_pods_get_the_relative_entries_of_a_scripts_import_path(folder, entry, tmp_path, monkeypatch):
    lay(tmp_path / "lab", {"m.py": "X = 1"})
    lay(tmp_path / "lab", {"tools/train.py": f"import sys\nsys.path.append('{entry}')\nimport m\nprint(m.X)"})
    monkeypatch.chdir(tmp_path / "lab" / folder)
    job = kit.IndexedJob(tmp_path / "lab" / "tools" / "train.py", name="mine")
    assert run_as_in_a_pod(job, tmp_path / "pod") == "1"


def test_modules_that_settings_name_are_carried(tmp_path):
    """As hydra's ``_target_``; what no setting refers to is not sent."""
    lay(tmp_path, {"models/__init__.py": "", "models/net.py": "N = 3", "other.py": ""})
    lay(tmp_path, {"conf/a.yaml": "net:\n  _target_: models.net.N\n"})
    for name, call in (("train", "hydra.utils.instantiate(config)"), ("plain", "build(config)")):
        lay(tmp_path, {f"{name}.py": f"import hydra\nprint({call})"})
    carried = kit.IndexedJob(tmp_path / "train.py", files=["conf"]).sources
    assert set(carried) == {"train.py", "conf/a.yaml", "models/__init__.py", "models/net.py"}
    assert set(kit.IndexedJob(tmp_path / "plain.py", files=["conf"]).sources) == {"plain.py", "conf/a.yaml"}


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


def test_a_folder_that_is_not_there_and_a_job_without_a_program_are_refused(tmp_path):
    (tmp_path / "train.py").touch()
    with pytest.raises(BadInput, match="there is no such folder"):
        kit.IndexedJob(tmp_path / "train.py", root=tmp_path / "absent")
    with pytest.raises(BadInput, match="no trainer is named"):
        kit.IndexedJob()


def test_files_ignored_by_git_are_not_sent(tmp_path):
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
    lay(tmp_path, {"engine/train.py": "", "tests/text.txt": "x"})
    job = kit.IndexedJob(module="engine.train", root=tmp_path, files=["tests"])  # is started in the root
    assert set(job.sources) == {"engine/train.py", "tests/text.txt"}
    (init,) = job.objects[-1]["spec"]["template"]["spec"]["initContainers"]
    assert init["args"] == ["", ".", "tests"]
    with pytest.raises(BadInput, match="looked for in .*engine"):
        kit.IndexedJob(tmp_path / "engine" / "train.py", files=["tests"])


def test_a_package_is_listed_once_however_many_of_its_modules_import_it(tmp_path, monkeypatch):
    modules = {f"nets/m{number}.py": f"import nets.m{(number + 1) % 9}" for number in range(9)}
    lay(tmp_path, {"nets/__init__.py": "", "train.py": "import nets.m0", **modules})
    listed = []
    monkeypatch.setattr(sources, "files_of", lambda folder: listed.append(folder) or layout.files_of(folder))
    assert len(kit.IndexedJob(tmp_path / "train.py").sources) == 11
    assert listed == [tmp_path / "nets"]


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


@pytest.mark.parametrize(
    ("source", "args", "start", "paths"),
    [
        ("open('data/x.csv')", [], ".", ["data/x.csv"]),
        ("open(os.path.join('data', name))", [], ".", ["data"]),
        ("open(f'data/part{rank}.npy')", [], ".", ["data"]),
        ("row['data'], {'data': 1}, ('data', 2)", [], ".", []),
        ("open(Path(__file__).with_name('x.toml'))", [], ".", []),
        ("open(a.config)", ["--config=x.toml", "--out", "/tmp", "../up.csv"], ".", ["x.toml"]),
        (
            "open('data/x.csv'), open(a.config)",
            ["--config", "tools/x.toml"],
            "..",
            ["tools/x.toml", "data/x.csv"],
        ),
        ("open('settings.json')", [], ".", ["settings.json", "data/x.csv"]),
        ("open('nothing.csv'), os.makedirs('runs')", [], ".", []),
    ],
)
def test_files_that_a_program_opens_are_sent_with_it(
    source, args, start, paths, tmp_path, monkeypatch, caplog
):
    here = tmp_path / "tools"
    for name in ("data/x.csv", "x.toml", "runs/old.txt"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("x")
    (here / "settings.json").write_text('{"table": "data/x.csv"}')
    (here / "train.py").write_text(source)
    monkeypatch.chdir(here / start)
    job = kit.IndexedJob(here / "train.py", args=args)
    named = find_referenced_files(job.layout, job.args, job.sources, folders=True, literals=True)
    sources, files = add_referenced_files(job.layout, job.sources, [], named, local=True)
    assert files == paths
    assert ("sent with it" in caplog.text) == bool(paths)
    assert set(paths) <= {name for path in sources for name in (path, path.rpartition("/")[0])}
    assert [*find_referenced_files(job.layout, job.args, job.sources, folders=False, literals=False)] == [
        path for path in paths if any(path in word for word in args)
    ]
