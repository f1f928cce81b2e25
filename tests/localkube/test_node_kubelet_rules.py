"""References to variables, and files of variables, judged by the kubelet's own code."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from localkube.controlplane import build
from localkube.kubelet.containers.env_file import EnvFile
from localkube.kubelet.containers.expansion import expand

MODULE = Path(__file__).parents[1] / "kubelet" / "module"
TEXTS = st.text(st.sampled_from("$$$(()AB c\n\u6570\U0001f600"), max_size=12)
LINES = st.sampled_from(
    [b"A", b"B", b"=", b"'", b"'", b" ", b"\t", b"#", b"\n", b"\r", b"\r\n", b"x", b"\xff"]
)
FILES = st.lists(LINES, max_size=16).map(b"".join)

pytestmark = pytest.mark.skipif(not shutil.which("go"), reason="there is no Go on PATH")


class Kubelet:
    """The program that answers with the kubelet's functions."""

    def __init__(self, folder: Path) -> None:
        env = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
        command = ["go", "build", *build.COMPILING, "-o", str(folder / "rules"), "./rules"]
        subprocess.run(command, cwd=MODULE, env=env, check=True)
        command = [str(folder / "rules"), str(folder / "file")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, **question) -> str | None:
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        value = base64.b64decode(answer["value"] or "").decode(errors="surrogateescape")
        return None if answer["failed"] else value


@pytest.fixture(scope="module")
def kubelet(tmp_path_factory):
    running = Kubelet(tmp_path_factory.mktemp("rules"))
    yield running
    running.process.stdin.close()
    running.process.wait()


@given(TEXTS)
@example("$($(A)")
@example("$(A")
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_references_expand_as_in_the_kubelet(kubelet, text):
    variables = {"A": "1", "B": "$(A)", " ": "blank"}
    assert expand(text, variables) == kubelet.call(Expand=text, Variables=variables)


@given(FILES, st.sampled_from(["A", "AB", "x"]))
@example(b"# made\n\n  A='1' # one\nB='2'", "A")
@example(b"A='1\n2'\r\nA='3'\n", "A")
@example(b"A='1'\nB = '2'\n", "A")
@example(b"A= '1'\n", "A")
@example(b"A='" + 70_000 * b"x" + b"'\n", "A")
@settings(max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_files_of_variables_are_read_as_by_the_kubelet(kubelet, text, key):
    try:
        value = EnvFile(text).value(key)
    except ValueError:
        value = None
    assert value == kubelet.call(EnvFile=base64.b64encode(text).decode(), Key=key)
