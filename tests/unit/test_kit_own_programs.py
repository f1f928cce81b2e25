"""Programs and functions of a learner's own: what is sent, and what is refused."""

import base64
import builtins
import linecache
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kitlib as kit
from kitlib.errors import BadInput
from kitlib.jobs import sources


@pytest.fixture
def program(tmp_path):
    """A program with a package, a module and data beside it."""
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "__init__.py").write_text("")
    (tmp_path / "utils" / "data.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "unused.py").write_text("")
    (tmp_path / "config.yaml").write_text("lr: 0.1\n")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "ä 1.png").write_bytes(b"\x89PNG\xff")
    path = tmp_path / "train.py"
    path.write_text("from utils.data import load\nimport torch\n")
    return path


def objects_of(job):
    return {item["kind"]: item for item in job.objects}


def fit(steps, name="mine"):
    import torch

    values = torch.arange(3)
    print(f"{name}: loss {1 / steps}")
    return values[steps]


def test_named_files_are_beside_the_program_and_copied_into_the_working_directory(program):
    objects = objects_of(kit.IndexedJob(program, name="mine", files=["config.yaml", "pictures"]))
    config_map, spec = objects["ConfigMap"], objects["Job"]["spec"]["template"]["spec"]
    assert config_map["data"]["config.yaml"] == "lr: 0.1\n"
    ((key, picture),) = config_map["binaryData"].items()
    assert base64.b64decode(picture) == b"\x89PNG\xff" and key.isascii()
    for container in (*spec["containers"], *spec["initContainers"]):
        assert {"/trainyard/trainer", "/workspace"} <= {
            mount["mountPath"] for mount in container["volumeMounts"]
        }
    assert spec["initContainers"][0]["args"] == ["", ".", "config.yaml", "pictures"]
    resources = spec["initContainers"][0]["resources"]
    assert resources["requests"].keys() >= resources["limits"].keys(), "a limit alone is the request as well"


KINDS = [kit.IndexedJob, kit.TorchElastic, kit.PyTorchJob, kit.ElasticJob, kit.TrainJob]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_job_takes_a_function_files_and_a_workspace(kind, program):
    assert "import torch" in kind(fit, args={"steps": 2}).sources["fit.py"]
    job = kind(program, name="mine", files=["config.yaml"], workspace="shared")
    assert "config.yaml" in job.sources and job.claims == ("shared",)
    text = job.manifest()
    assert (
        "subPath: runs/mine\n" in text and "claimName: shared" in text and "mountPath: /workspace\n" in text
    )
    assert not re.search(r"- emptyDir: \{\}\n +name: workspace|- name: workspace\n +emptyDir", text)


def test_a_program_that_is_too_large_names_its_files_and_a_fix(program):
    (program.parent / "big.bin").write_bytes(bytes(sources.CONFIG_MAP_BYTES))
    with pytest.raises(BadInput, match=r"largest: big.bin 1,044,480") as error:
        kit.IndexedJob(program, files=["big.bin"]).manifest()
    assert "volume.upload" in error.value.fix


@pytest.mark.parametrize("file", ["absent.txt", "../elsewhere.txt", "."])
def test_files_lie_beside_the_program(program, file):
    (program.parent.parent / "elsewhere.txt").touch()
    with pytest.raises(BadInput, match="no such file or folder beside"):
        kit.IndexedJob(program, files=[file])


@pytest.mark.parametrize("trainer", [fit, "s3://bucket/train.py"], ids=["function", "address"])
@pytest.mark.parametrize("argument", [{"files": ["config.yaml"]}, {"root": "."}, {"module": "pkg.train"}])
def test_files_root_and_module_are_refused_for_a_trainer_that_is_no_file_here(trainer, argument):
    ((name, value),) = argument.items()
    with pytest.raises(BadInput, match=f"{name}= needs a trainer that is a file") as error:
        kit.IndexedJob(trainer, name="mine", **argument)
    assert error.value.about == f"{name}={value!r}"


@pytest.mark.parametrize("files", ["config.yaml", "tests"])
def test_files_are_a_list(program, files):
    with pytest.raises(BadInput, match="list"):
        kit.IndexedJob(program, files=files)


@pytest.mark.parametrize("words", ["torchrun train.py", "train.py --epochs 3", "run.sh", "config.yaml"])
def test_a_command_is_told_how_its_program_is_launched(words):
    with pytest.raises(BadInput, match="not a command") as error:
        kit.IndexedJob(words)
    assert 'args=["--epochs=3"]' in error.value.fix


def test_a_function_keeps_the_numbers_of_its_lines(tmp_path):
    text = kit.IndexedJob(fit, args={"steps": 2}).sources["fit.py"]
    source_lines, sent = Path(__file__).read_text().splitlines(), text.splitlines()
    line = source_lines.index("    values = torch.arange(3)")
    assert sent[line] == source_lines[line]
    assert text.endswith("fit(**{'steps': 2})\n")


def test_a_function_that_is_defined_inside_another_keeps_its_texts():
    def inner():
        text = """first
second"""
        print(text)

    exec(kit.IndexedJob(inner).sources["inner.py"], scope := {"__name__": "elsewhere"})
    assert scope["inner"]() is None


CELLS = """
import torch.nn as nn
import numpy as np
from pathlib import Path
import os.path
from functools import wraps
RATE = 0.1
helper = lambda: 1
class Net(nn.Module): pass
def other(): pass
def timed(f):
    @wraps(f)
    def timing(*a): return f(*a)
    return timing
"""
# What a cell may define: the names that are found, and the fix; nothing where it can be sent.
FUNCTIONS = {
    "def f(): return RATE": ("RATE", 'args={"RATE": …}'),
    "def f(): return nn.Linear": ("nn", "inside the function: from torch import nn"),
    "def f(): return np.ones(1)": ("np", "import numpy as np"),
    "def f(): return Path('x')": ("Path", "from pathlib import Path"),
    "def f(): return Net()": ("Net", "define Net inside the function, or in a module beside"),
    "def f():\n    class Big(Net): pass": ("Net", "define Net"),
    "def f(): return helper()": ("helper", "define helper"),
    "def f(): return (lambda: (lambda: RATE))": ("RATE", "args="),
    "def f(rate=RATE): return rate": ("RATE", "leave RATE out of decorators, defaults"),
    "def f(net: Net = None): return net": ("Net", "leave Net out"),
    "@timed\ndef f(): pass": ("timed", "leave timed out"),
    "def f():\n    global RATE\n    RATE += 1": ("RATE", "args="),
    "def f(): get_ipython().run_line_magic('time', '')": ("get_ipython", "leave out magics"),
    "def f(): display(1)": ("display", "print what"),
    "def f(): return super().x": ("__class__", "no super()"),
    "def outer():\n  n = 1\n  def f():\n    nonlocal n\n    n += 1\n  return f\nf = outer()": (
        "nonlocal",
        "top",
    ),
    "def outer():\n  n = 1\n  def f(): return n\n  return f\nf = outer()": ("n", "args="),
    "async def f(): pass": ("async, or a generator", "plain function"),
    "def f(): yield 1": ("async, or a generator", "plain function"),
    "def json(): pass\nf = json": ("hides the module json", "another name"),
    "def f():\n  import math as m\n  class A(m.B):\n    def g(self): return super().g()\n  return A": (
        "",
        "",
    ),
    "def f(n: int = 3, *a: str, **k) -> None: return [(z := y) for y in a], [w for w in k], z": ("", ""),
    "def f():\n  try: import x\n  except ImportError as e: print(e, __file__, __name__, f)": ("", ""),
    "def f():\n  global made\n  made = 1\n  made += 1\n  with open('x') as g: del g": ("", ""),
}


@pytest.mark.parametrize("cell", FUNCTIONS)
def test_names_of_the_notebook_that_a_pod_lacks_are_named_with_a_fix(cell, tmp_path, monkeypatch):
    names, fix = FUNCTIONS[cell]
    (tmp_path / "cells.py").write_text(CELLS + cell)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtins, "display", print, raising=False)  # as in a kernel
    monkeypatch.setattr(builtins, "get_ipython", print, raising=False)
    monkeypatch.delitem(sys.modules, "cells", raising=False)
    torch, nn = (ModuleType(name) for name in ("torch", "torch.nn"))  # whose import takes two seconds
    torch.nn, nn.Module = nn, type("Module", (), {"__module__": "torch.nn"})
    for module in (torch, nn):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    scope = dict.fromkeys(["__name__"], "__main__")
    exec(compile(CELLS + cell, tmp_path / "cells.py", "exec"), scope)
    linecache.checkcache()
    if not names:
        kit.IndexedJob(scope["f"])
        return
    with pytest.raises(BadInput, match=re.escape(names)) as error:
        kit.IndexedJob(scope["f"])
    assert fix in error.value.fix


def test_modules_beside_the_notebook_that_a_function_imports_go_along(tmp_path, monkeypatch):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "__init__.py").write_text("from . import layers")
    (tmp_path / "net" / "layers.py").write_text("import settings\nWIDTH = settings.WIDTH")
    (tmp_path / "settings.py").write_bytes("# coding: latin-1\nWIDTH = 4  # é\n".encode("latin-1"))
    monkeypatch.chdir(tmp_path)

    def train():
        from net.layers import WIDTH

        print("width", WIDTH)

    assert set(kit.IndexedJob(train).sources) == {
        "train.py",
        "net/__init__.py",
        "net/layers.py",
        "settings.py",
    }


@pytest.mark.parametrize(
    ("function", "args", "words"),
    [
        (lambda: None, (), "cannot be sent"),
        (print, (), "cannot be sent"),
        (fit, {"epochs": 2}, "other arguments"),
        (fit, ["--steps=2"], "arguments are a dict"),
        (fit, {"steps": object()}, "numbers, texts"),
    ],
)
def test_programs_that_cannot_be_sent_are_refused(function, args, words):
    with pytest.raises(BadInput, match=words):
        kit.IndexedJob(function, args=args)


def test_arguments_belong_to_a_program_and_not_to_a_job(program):
    with pytest.raises(BadInput, match="has its arguments already"):
        kit.launch(kit.IndexedJob(program), nodes=3)
    with pytest.raises(BadInput, match="nodes is a whole number from 1"):
        kit.launch(program, nodes=0)
