"""The course's training, as its notebooks have it: data on a volume, workers that share it, and the test Job.

The data are few and drawn, so that it is quick. What is slow here is the walk-throughs' own size.
"""

import pytest

import kitlib as kit

pytestmark = pytest.mark.cluster


@pytest.fixture
def volume(local_cluster):
    """A volume of this test alone."""
    volume = local_cluster.create_volume("training-course", size="1Gi")
    yield volume
    for run in local_cluster.runs():
        if run["run"].startswith("prepare-"):
            local_cluster.run(run["run"]).delete()
    volume.delete()


def test_two_workers_share_the_steps_and_leave_a_model_that_a_job_tests(volume, launch):
    kit.prepare_dataset("cifar10", volume=volume, synthetic=True, limit=600)
    common = {"data_dir": "/data/cifar10", "model_file": "/data/models/cifar10.pt"}
    flags = common | {"epochs": 3, "batch_size": 20}
    pair = launch(kit.IndexedJob("trainers/cifar10_ddp.py", nodes=2, args=flags, volumes={"/data": volume}))
    assert pair.wait(timeout=240).phase == "Succeeded"
    epochs = pair.metrics("epoch")
    assert set(epochs.steps) == {15}, "300 images each"
    assert set(pair.metrics("start").synthetic) == {True}
    trained = pair.metrics("eval").iloc[-1]
    assert [each["name"] for each in volume.ls("models")] == ["cifar10.pt"], "written once, and whole"
    pair.delete()  # the model outlives the pods that made it

    test = launch(kit.IndexedJob("trainers/evaluate.py", nodes=1, args=common, volumes={"/data": volume}))
    assert test.wait(timeout=120).phase == "Succeeded"
    (tested,) = test.metrics("eval").to_dict("records")
    assert tested["accuracy"] == trained.accuracy >= 0.2
    assert tested["images"] == sum(map(sum, tested["confusion"])) == trained.images
    assert len(tested["per_class"]) == 10
    wrong = tested["images"] - tested["correct"]
    assert len(tested["mistakes"]) == min(12, wrong)
    assert all(len(each["png"]) > 1000 for each in tested["mistakes"]), "the log carries the pictures"


def test_a_script_of_ones_own_runs_its_words_are_shown_and_so_is_its_error(launch, write_trainer):
    source = """
        import os
        print("hello from", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
        print({"event": "a dict, but no JSON"})
        raise ValueError("and this is where it ends")
    """
    run = launch(kit.IndexedJob(trainer=write_trainer(source, "my.py"), nodes=1))
    with pytest.raises(kit.RunFailed, match="ValueError: and this is where it ends") as failed:
        run.wait(timeout=120)
    assert 'raise ValueError("and this' in failed.value.detail
    assert "hello from 0 of 1\n" in run.logs(rank=0)
    assert len(run.metrics()) == 0
    assert "no steps were reported" in repr(run.plot())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_epoch_of_mnist_on_four_pods(volume, launch):
    found = kit.prepare_dataset("mnist", volume=volume)
    flags = {"dataset": "mnist", "data_dir": found.path, "epochs": 1, "log_every": 50}
    run = launch(kit.IndexedJob("trainers/digits_ddp.py", nodes=4, args=flags, volumes={"/data": volume}))
    assert run.wait(timeout=600).phase == "Succeeded"
    result = run.metrics("eval").iloc[-1]
    assert result.images == found.test_images
    assert result.accuracy >= (0.95 if found.synthetic else 0.97)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_epochs_of_cifar10_on_two_workers(volume, launch):
    found = kit.prepare_dataset("cifar10", volume=volume)
    flags = {"data_dir": found.path, "epochs": 10, "batch_size": 128, "model_file": "/data/model.pt"}
    run = launch(kit.IndexedJob("trainers/cifar10_ddp.py", nodes=2, args=flags, volumes={"/data": volume}))
    assert run.wait(timeout=3300).phase == "Succeeded"
    assert run.metrics("eval").accuracy.iloc[-1] >= 0.74
    flags = {"data_dir": found.path, "model_file": "/data/model.pt"}
    test = launch(kit.IndexedJob("trainers/evaluate.py", nodes=1, args=flags, volumes={"/data": volume}))
    test.wait(timeout=300)
    assert min(test.metrics("eval").per_class.iloc[-1].values()) >= 0.4
