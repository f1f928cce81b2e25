import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kitlib import config
from kitlib.errors import BadInput
from kitlib.k8s import manifests
from kitlib.k8s.api_errors import locate

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@hypothesis.settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_a_written_manifest_reads_back_the_same(item):
    assert list(yaml.safe_load_all(manifests.write([item, item]))) == [item, item]


def test_a_program_in_a_manifest_is_written_as_a_block():
    text = manifests.write([{"data": {"a.py": "import os\nprint(1)\n"}}])
    assert text == "data:\n  a.py: |\n    import os\n    print(1)\n"
    manifest = manifests.Manifest("a: 1\n")
    assert repr(manifest) == "a: 1"
    assert manifest._repr_markdown_() == "~~~~yaml\na: 1\n~~~~"


def test_dicts_merge_none_removes_and_named_lists_merge_by_name():
    base = {
        "a": {"b": 1, "c": 2},
        "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}],
        "args": [1],
    }
    patch = {"a": {"b": None, "d": 3}, "env": [{"name": "Y", "value": "3"}, {"name": "Z"}], "args": [2, 3]}
    assert manifests.merge(base, patch) == {
        "a": {"c": 2, "d": 3},
        "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "3"}, {"name": "Z"}],
        "args": [2, 3],
    }
    assert base["a"] == {"b": 1, "c": 2}


YAML = """\
kind: Service
metadata: {name: a}
---
kind: Job
spec:
  template:
    spec:
      containers:
        - name: x
        - name: pytorch
          comand: [a]
"""


@pytest.mark.parametrize(
    ("path", "document", "line"),
    [
        ("spec.template.spec.containers[1].comand", 1, 11),
        ("spec.template", 1, 6),
        ("metadata.name", 0, 2),
        ("spec.nothing", 1, None),
        ("spec.template.spec.containers[7]", 1, None),
        ("kind", 9, None),
    ],
)
def test_the_line_of_a_field_is_found_also_from_the_api_servers_words(path, document, line):
    assert manifests.line_of(YAML, path, document=document) == line
    words = 'unknown field "spec.template.spec.containers[1].comand", unknown field "spec.no"'
    assert locate(words, YAML, document=1) == "line 11: comand: [a]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "not valid YAML"),
        ("- 1", "apiVersion"),
        ("kind: Pod\napiVersion: v1", "metadata"),
        (None, "nothing.yaml"),
    ],
)
def test_a_file_that_is_no_manifest_or_is_not_there_is_refused(text, words, tmp_path):
    path = tmp_path / "nothing.yaml"
    if text is not None:
        path = path.with_name("x.yaml")
        path.write_text(text)
    with pytest.raises(BadInput, match=words):
        manifests.read(path)


SHIPPED = sorted(config.manifests("indexed-job").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_manifest_that_comes_with_the_kit_is_one_object(path):
    (item,) = manifests.read(path)
    assert item["kind"].lower() == path.stem
