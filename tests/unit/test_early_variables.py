"""Programs that set variables before they import torch."""

import pytest

from kitlib.config import DATA
from localkube.runtime.forkserver.early_variables import sets_early

EARLY = [
    'import os\nos.environ["OMP_NUM_THREADS"] = "1"\nimport torch',
    'import os as o\no.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"\nimport torch',
    'from os import environ as e\ne["MKL_NUM_THREADS"] = "1"\nimport torch',
    'import os\nos.environ.update(OMP_NUM_THREADS="1")\nfrom torch import nn',
    'import os\nos.environ.setdefault("TORCH_LOGS", "x")\nimport torch',
    'import os\nfor name in ("OMP_NUM_THREADS",):\n    os.environ[name] = "1"\nimport torch',
    'import json, os\nos.environ.update(json.load(open("x")))\nimport torch',
    'import os, sys\nos.environ[sys.argv[1]] = "1"\nimport torch',
    'import os\nos.environ |= {"OMP_NUM_THREADS": "1"}\nimport torch',
    'import os\nif True:\n    os.environ["OMP_NUM_THREADS"] = "1"\n    import torch',
    'import os\nos.environ["OPENBLAS_NUM_THREADS"] = "1"\nimport numpy',
    "from dotenv import load_dotenv\nload_dotenv()\nimport torch",
    "from settings import threads\nimport torch",
    "import package.settings\nimport torch",
    'import os\nos.environ[b"OMP_NUM_THREADS".decode()] = "1"\nimport torch',
    '"""Has a line\nimport torch\n"""\nimport os\nos.environ["OMP_NUM_THREADS"] = "1"\nimport torch',
]
LATE = [
    "import torch",
    'import torch, os\nos.environ["OMP_NUM_THREADS"] = "1"',
    'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = ""\nos.environ["MASTER_ADDR"] = "x"\nimport torch',
    'import os\nrank = int(os.environ["RANK"])\nprint(os.environ.get("HOME"))\nimport torch',
    'import os\ndef late():\n    os.environ["MASTER_PORT"] = "1"\nimport torch',
    'from model import net\nimport os\nos.environ["OMP_NUM_THREADS"] = "1"',
    "not python",
]


@pytest.fixture
def modules(tmp_path):
    setting = 'import os\nos.environ["OMP_NUM_THREADS"] = threads = "1"\n'
    (tmp_path / "package").mkdir()
    for name in ("settings.py", "package/settings.py"):
        (tmp_path / name).write_text(setting)
    (tmp_path / "package" / "__init__.py").write_text("import package\n")
    (tmp_path / "model.py").write_text("import torch\nnet = 1\n")
    return [str(tmp_path)]


@pytest.mark.parametrize("source", EARLY)
def test_a_program_that_sets_a_variable_of_torch_before_its_import_is_found(source, modules):
    assert sets_early(source.encode(), modules)


@pytest.mark.parametrize("source", LATE)
def test_other_programs_are_forked(source, modules):
    assert not sets_early(source.encode(), modules)


@pytest.mark.parametrize("path", sorted((DATA / "trainers").glob("*.py")), ids=lambda path: path.stem)
def test_the_trainers_of_the_course_are_forked(path):
    assert not sets_early(path.read_bytes(), [str(path.parent)])
