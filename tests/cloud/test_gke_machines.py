"""Machines that a cluster at Google Cloud can have: refused with the reason before Google is asked."""

import pytest

from kitlib.clusters.shape import Shape
from kitlib.errors import BadInput
from trainyard_kit.clouds.gke.cluster import GkeCluster
from trainyard_kit.clouds.gke.machines import choose, disk_type

ZONE = {"zone": "us-central1-c", "project": "p"}


def chosen(**options):
    all_options = dict.fromkeys(("machine_type", "accelerator", "gpus", "spot")) | options
    return choose(nodes=2, disk_gb=100, **all_options)


@pytest.mark.parametrize(
    ("machine", "disk"),
    [
        ("c4-standard-8", "hyperdisk-balanced"),
        ("n4-highmem-4", "hyperdisk-balanced"),
        ("a3-ultragpu-8g", "hyperdisk-balanced"),
        ("a4-highgpu-8g", "hyperdisk-balanced"),
        ("a3-highgpu-8g", "pd-balanced"),
        ("c3-standard-8", "pd-balanced"),
        ("g2-standard-8", "pd-balanced"),
        ("n1-standard-4", "pd-balanced"),
    ],
)
def test_a_boot_disk_is_of_a_type_that_the_machine_family_takes(machine, disk):
    assert disk_type(machine) == disk


@pytest.mark.parametrize(
    "kind", ["nvidia-tesla-k80", "nvidia-tesla-p4", "nvidia-tesla-p100", "nvidia-tesla-v100"]
)
def test_gpus_older_than_turing_are_refused_with_the_reason(kind):
    with pytest.raises(BadInput, match=r"older than Turing.*CUDA 13") as caught:
        chosen(accelerator=kind)
    assert "nvidia-tesla-t4" in caught.value.fix


@pytest.mark.parametrize("machine", ["t2a-standard-4", "c4a-standard-8", "n4a-standard-4", "a4x-highgpu-4g"])
def test_arm_machines_are_refused_because_the_images_are_for_amd64(machine):
    with pytest.raises(BadInput, match="amd64"):
        chosen(machine_type=machine)


def test_a_machine_with_one_h100_is_taken_as_spot_only():
    with pytest.raises(BadInput, match="spot only") as caught:
        chosen(accelerator="nvidia-h100-80gb")
    assert "spot=True" in caught.value.fix
    assert chosen(accelerator="nvidia-h100-80gb", spot=True).type == "a3-highgpu-1g"


@pytest.mark.parametrize(
    ("options", "machine", "gpus"),
    [
        ({}, "e2-standard-4", 0),
        ({"accelerator": "nvidia-tesla-t4"}, "n1-standard-4", 1),
        ({"accelerator": "nvidia-l4"}, "g2-standard-8", 1),
        ({"accelerator": "nvidia-l4", "gpus": 2, "machine_type": "g2-standard-24"}, "g2-standard-24", 2),
        ({"accelerator": "nvidia-l4", "gpus": 2}, "g2-standard-24", 2),
        ({"accelerator": "nvidia-h100-80gb", "gpus": 8}, "a3-highgpu-8g", 8),
        ({"accelerator": "nvidia-h100-mega-80gb"}, "a3-megagpu-8g", 8),
        ({"accelerator": "nvidia-h200-141gb"}, "a3-ultragpu-8g", 8),
        ({"accelerator": "nvidia-b200"}, "a4-highgpu-8g", 8),
        ({"accelerator": "nvidia-rtx-pro-6000"}, "g4-standard-48", 1),
        ({"machine_type": "a3-ultragpu-8g"}, "a3-ultragpu-8g", 8),
        ({"accelerator": "nvidia-later", "machine_type": "z9-standard-8"}, "z9-standard-8", 1),
    ],
)
def test_options_that_are_left_out_are_chosen(options, machine, gpus):
    machines = chosen(**options)
    assert (machines.type, machines.gpus, machines.count) == (machine, gpus, 2)


@pytest.mark.parametrize(
    ("options", "words", "fix"),
    [
        ({"accelerator": "nvidia-h200-141gb", "gpus": 1}, "machine types have 8 of them", "gpus=8"),
        ({"accelerator": "nvidia-l4", "gpus": 3}, "1 or 2 or 4 or 8", "gpus=1"),
        ({"accelerator": "nvidia-t4"}, "does not know a machine type", "nvidia-tesla-t4"),
        ({"accelerator": "nvidia-later"}, "does not know a machine type", "machine_type="),
        ({"accelerator": "nvidia-gb200"}, "CPUs are ARM", "machine_type"),
        ({"machine_type": "a3-megagpu-8g", "gpus": 2}, "no GPU type", "it has 8 nvidia"),
    ],
)
def test_gpus_that_no_machine_type_comes_with_are_refused(options, words, fix):
    with pytest.raises(BadInput, match=words) as caught:
        chosen(**options)
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zone": None}, "no zone is given"),
        ({"region": "us-central1"}, "no option region"),
        ({"hours": 0}, "hours are a number"),
        ({"disk_gb": 5}, "disk_gb"),
        ({"min_nodes": 3}, "min_nodes is a whole number from 0 to 2"),
        ({"admins": ["ada@example.org"]}, "not an IAM member"),
        ({"admins": "user:ada@example.org"}, "admins are a list"),
        ({"request": {"subnetwork": "mine"}}, "a subnetwork needs its network"),
        ({"request": {"name": "mine"}}, "the kit sets name"),
        ({"request": ["network"]}, "a dict"),
        ({"allowed_cidrs": ["203.0.113.0/33"]}, "203.0.113.0/33"),
        ({"allowed_cidrs": "everywhere"}, "everywhere"),
    ],
)
def test_options_that_cannot_be_are_refused_before_google_is_asked(google, state_home, options, words):
    with pytest.raises(BadInput, match=words):
        GkeCluster.create("unheard-of", Shape(2, options=ZONE | options))
    assert google.calls == []


def test_a_name_that_begins_with_a_digit_and_gpus_of_no_kind_are_refused(google, state_home):
    with pytest.raises(BadInput, match="begins with a letter"):
        GkeCluster.create("1lab", Shape(2, options=ZONE))
    with pytest.raises(BadInput, match="no GPU type"):
        GkeCluster.create("lab", Shape(2, gpus=1, options=ZONE))
    assert google.calls == []


@pytest.mark.parametrize("options", [{}, {"accelerator": "nvidia-l4", "spot": True}])
def test_flex_start_is_refused_without_a_gpu_and_with_spot(options):
    with pytest.raises(BadInput, match="flex-start is for GPUs"):
        chosen(flex_start=True, **options)
