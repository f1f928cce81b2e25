"""A cluster in the user's own kubeconfig, as kubectl reads it: merged, merged again, refused, removed."""

import base64
import itertools
import json
import os
import random
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from kitlib.clusters import kubeconfigs
from kitlib.clusters.kubectl import find_kubectl
from kitlib.display.tables import Text
from kitlib.errors import BadInput
from kitlib.k8s.kubeconfig import PARTS, choose, load

OTHER = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "work", "cluster": {"server": "https://work.example"}}],
    "users": [{"name": "me", "user": {"token": "secret"}}],
    "contexts": [{"name": "work", "context": {"cluster": "work", "user": "me", "namespace": "mine"}}],
    "current-context": "work",
}


def cluster(name, server="https://127.0.0.1:6443"):
    content = {
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": "admin", "user": {"token": "own"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "admin"}}],
    }
    return SimpleNamespace(
        name=name, kubeconfig=f"/state/{name}", kubectl=lambda words: Text(yaml.safe_dump(content))
    )


@pytest.fixture
def file(monkeypatch, tmp_path):
    path = tmp_path / "kube" / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return path


def view(file):
    """Read the file as kubectl does."""
    command = [*find_kubectl(), f"--kubeconfig={file}", "config", "view", "--raw", "-o", "json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_cluster_is_merged_beside_what_is_there_and_removed_without_a_trace(file):
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(OTHER))
    before = view(file)
    assert kubeconfigs.merge(cluster("lab")) == file
    assert file.stat().st_mode & 0o777 == 0o600
    merged = view(file)
    assert merged["current-context"] == "work"
    assert {item["name"] for item in merged["contexts"]} == {"work", "lab"}
    (context,) = (item["context"] for item in merged["contexts"] if item["name"] == "lab")
    assert (context["cluster"], context["user"]) == ("lab", "lab")
    kubeconfigs.merge(cluster("lab", "https://127.0.0.1:7443"))
    servers = {item["name"]: item["cluster"]["server"] for item in view(file)["clusters"]}
    assert servers == {"work": "https://work.example", "lab": "https://127.0.0.1:7443"}
    kubeconfigs.remove("lab")
    assert view(file) == before
    kubeconfigs.remove("lab")
    assert sorted(path.name for path in file.parent.iterdir()) == ["config"]


@pytest.mark.parametrize("existing", [(), ("second",), ("first", "third")])
def test_of_several_files_the_one_that_kubectl_writes_is_merged_into(file, monkeypatch, existing):
    file.parent.mkdir()
    paths = [file.with_name(name) for name in ("first", "second", "third")]
    monkeypatch.setenv("KUBECONFIG", f"{os.pathsep}{os.pathsep.join(map(str, paths))}")
    for name in existing:
        file.with_name(name).touch()
    merged = kubeconfigs.merge(cluster("lab"))
    kubeconfigs.remove("lab")
    if not existing:
        merged.unlink()
    before = {path: path.exists() and path.read_text() for path in paths}
    subprocess.run([*find_kubectl(), "config", "set-cluster", "other"], check=True, capture_output=True)
    assert [path for path in paths if (path.exists() and path.read_text()) != before[path]] == [merged]


def test_a_new_file_has_the_cluster_as_its_context(file):
    kubeconfigs.merge(cluster("lab"))
    assert view(file)["current-context"] == "lab"


def test_an_entry_of_somebody_else_with_that_name_is_refused_and_stays(file):
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(OTHER))
    with pytest.raises(BadInput, match="which is not the kit's"):
        kubeconfigs.merge(cluster("work"))
    assert yaml.safe_load(file.read_text()) == OTHER
    kubeconfigs.remove("work")
    assert yaml.safe_load(file.read_text()) == OTHER


def test_a_file_that_another_program_holds_stays_and_the_lock_is_named(file, monkeypatch):
    monkeypatch.setattr(kubeconfigs, "LOCK_SECONDS", 0.1)
    lock = file.with_name(f"{file.name}.lock")
    lock.parent.mkdir()
    lock.touch()
    with pytest.raises(BadInput, match="another program is changing it") as error:
        kubeconfigs.merge(cluster("lab"))
    assert f"rm {lock}" in error.value.fix and lock.exists() and not file.exists()


@pytest.mark.parametrize("text", ["- a list", "clusters: [", "\x00"])
def test_a_file_that_is_no_kubeconfig_is_refused_and_stays(file, text):
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(BadInput):
        kubeconfigs.merge(cluster("lab"))
    assert file.read_text() == text


FILES = yaml.safe_load(Path(__file__).with_name("kubeconfigs.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("names", random.Random(1).sample([*itertools.permutations(FILES, 4)], 30))
def test_of_several_files_the_entries_are_those_that_kubectl_takes(tmp_path, names):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pem").write_text(f"of {folder}")
    for name in set(names) - {"a/missing"}:
        (tmp_path / name).write_text(yaml.safe_dump(FILES[name]) if FILES[name] else "")
    paths = os.pathsep.join(str(tmp_path / name) for name in names)
    command = [*find_kubectl(), "config", "view", "--merge", "--flatten", "--minify", "-o", "json", "--raw"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"KUBECONFIG": paths})
    expected = json.loads(done.stdout) if done.returncode == 0 else {}
    if not expected.get("clusters"):
        with pytest.raises(BadInput):
            choose(paths, context=None, namespace=None, cluster="lab")
        return
    chosen = choose(paths, context=None, namespace=None, cluster="lab")
    for part, kind in PARTS.items():
        for item in chosen[part]:
            for key in {"certificate-authority", "client-certificate", "client-key"} & {*item[kind]}:
                content = Path(item[kind].pop(key)).read_bytes()
                item[kind][f"{key}-data"] = base64.b64encode(content).decode()
        assert chosen[part] == (expected.get(part) or [])


PROXY, REMOTE = "http://proxy.example:3128", "https://api.example:6443"


@pytest.mark.parametrize(
    ("server", "fields", "environment", "proxy"),
    [
        (REMOTE, {}, {}, None),
        (REMOTE, {"proxy-url": PROXY}, {}, PROXY),
        (REMOTE, {"proxy-url": PROXY}, {"NO_PROXY": "api.example"}, PROXY),
        (REMOTE, {}, {"HTTPS_PROXY": PROXY}, PROXY),
        (REMOTE, {}, {"HTTPS_PROXY": PROXY, "NO_PROXY": ".example"}, None),
        ("https://127.0.0.1:6443", {}, {"HTTPS_PROXY": PROXY}, None),
        ("https://localhost:6443", {}, {"HTTPS_PROXY": PROXY, "NO_PROXY": ".example"}, None),
    ],
)
def test_a_proxy_is_taken_as_kubectl_does_and_none_to_this_machine(
    file, monkeypatch, server, fields, environment, proxy
):
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    connection = {"server": server, **fields}
    content = OTHER | {"clusters": [{"name": "work", "cluster": connection}]}
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(content))
    pool = load(file, "work")[0].rest_client.pool_manager
    assert (pool.proxy.url if pool.proxy else None) == proxy


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"token": "secret", "as": "root"}, "does not support impersonation: root"),
        (
            {
                "auth-provider": {
                    "name": "oidc",
                    "config": {"idp-issuer-url": "https://127.0.0.1:9", "id-token": "e30.eyJleHAiOjF9.x"},
                }
            },
            "cannot be used",
        ),
    ],
)
def test_a_user_whom_the_kit_cannot_be_is_refused(file, user, words):
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(OTHER | {"users": [{"name": "me", "user": user}]}))
    with pytest.raises(BadInput, match=words):
        load(file, "work")
