"""Undoing a notebook in a cluster: what it made goes, what has its name and is somebody else's stays."""

import pytest
from click.testing import CliRunner

import kitlib as kit_api
from kitlib.errors import VolumeInUse
from trainyard_kit import workshop
from trainyard_kit.cli import main

pytestmark = pytest.mark.cluster


def kit(*words):
    return CliRunner().invoke(main.main, words)


def test_reset_deletes_a_notebooks_objects_and_can_be_repeated(launch, plain, local_cluster):
    launch(plain("import time; time.sleep(60)", name="forgotten", nodes=1))
    local_cluster.kubectl("create configmap mine --from-literal=a=b")
    local_cluster.kubectl("label configmap mine trainyard/notebook=13")
    became = {step["object"]: step["result"] for step in workshop.reset("13", cluster=local_cluster)}
    assert became["run/forgotten"] == became["configmap/mine"] == "deleted"
    assert became["run/left-over-0"] == "did not exist"
    left = local_cluster.kubectl("get configmaps,jobs,pods -o name")
    assert "forgotten" not in left
    assert "configmap/mine" not in left
    again = kit("reset", "13_clean_up", "-c", local_cluster.name)
    assert again.exit_code == 0, again.output
    assert "deleted" not in again.output.replace("deleted: 0", "")


def test_reset_keeps_objects_without_the_notebooks_label(local_cluster):
    local_cluster.kubectl("create configmap mine --from-literal=a=b")
    try:
        done = kit("reset", "--all", "-c", local_cluster.name)
        assert "kept: it has no label" in done.output
        assert "configmap/mine" in local_cluster.kubectl("get configmaps -o name")
    finally:
        local_cluster.kubectl("delete configmap mine")


def test_datasets_and_volumes_go_and_the_volume_last(local_cluster, tmp_path):
    (tmp_path / "dataset.json").write_text("{}")
    volume = local_cluster.create_volume("shared", size="10Mi")
    volume.upload(tmp_path, to="mnist")
    rows = workshop.reset(cluster=local_cluster)
    became = {row["object"]: row["result"] for row in rows}
    assert became["dataset/mnist"] == became["volume/shared"] == "deleted"
    assert len(local_cluster.volumes()) == 0


def test_a_pod_that_has_ended_is_named_as_what_holds_a_volume(launch, plain, local_cluster):
    volume = local_cluster.create_volume("held", size="10Mi")
    kit_api.prepare_dataset("digits", volume=volume)  # its pod ends, and holds nothing for long
    run = launch(plain("pass", nodes=1, name="holder", volumes={"/data": volume}))
    run.wait(timeout=120)
    with pytest.raises(VolumeInUse, match="holder-0-"):
        volume.delete()
    run.delete()
    volume.delete()
    assert "held" not in repr(local_cluster.volumes())


def test_without_a_cluster_there_is_nothing_to_delete(state_home):
    now = {step["result"] for step in workshop.reset("05", cluster="never-made")}
    assert {text for text in now if not text.startswith("kept: it belongs")} == {"did not exist"}


def test_one_notebook_or_all_of_them_must_be_meant(local_cluster):
    assert "--all" in kit("reset", "-c", local_cluster.name).output
    assert kit("reset", "05", "--all", "-c", local_cluster.name).exit_code == 2
