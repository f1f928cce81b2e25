"""A workshop of many on a cluster at Amazon: what is missing is priced, agreed to, and then there."""

import pytest

import kitlib as kit
from clouds.reconciler import reconcile
from kitlib import clusters
from kitlib.errors import BadInput, PreflightFailed
from workshop import rehearsal

from .aws.machines import files_of, nodes_of
from .backing_cluster import BackingCluster
from .simulated_clock import SimulatedClock

NAME, REGION = "classroom", "us-west-2"
HERE = {"name": NAME, "nodes": 1, "region": REGION, "instance_type": "m5.xlarge"}
PEOPLE = ["ada", "bob", "eve"]
QUOTA = {"cpu": "2", "memory": "1Gi"}
SHAPE = ("--cpus", "2.5", "--memory", "8Gi")


@pytest.fixture
def there(amazon, state_home, monkeypatch):
    """The fake Amazon with machines and files behind it, and the machines."""
    monkeypatch.setattr(reconcile, "Clock", lambda: SimulatedClock(amazon.clock.advance))
    with (
        BackingCluster(amazon.token_webhook(NAME), nodes=3, options=SHAPE) as behind,
        files_of(amazon, behind, region=REGION) as files,
    ):
        amazon.backing(NAME, endpoint=behind.endpoint, ca=behind.ca, on_nodes=nodes_of(behind))
        yield behind
        assert files.refused == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_workshop_is_rehearsed_scaled_held_and_deleted(amazon, there):
    cluster = clusters.create_cluster("eks", confirm=True, **HERE)
    there.settled()
    cluster.wait_ready(timeout=120)
    told = kit.workshop.rehearse(3, cluster=cluster, datasets=["digits"], hours=8, **QUOTA)
    rows = {each["what"]: each for each in told}
    assert "1 nodes are missing" in rows["capacity for all"]["found"]
    assert [each["what"] for each in told if each["verdict"] != rehearsal.READY] == ["capacity for all"]
    assert "with 1 nodes more" in rows["price of 8 hours"]["found"]

    amazon.quota("L-1216C47A", 2 + 4, region=REGION)  # the vCPUs of the two machines that it has
    with pytest.raises(PreflightFailed, match="2 × m5.xlarge"):
        kit.workshop.create(PEOPLE, cluster=cluster, scale=True, confirm=True, **QUOTA)
    amazon.quota("L-1216C47A", 64, region=REGION)
    with pytest.raises(BadInput, match="agreed to"):
        kit.workshop.create(PEOPLE, cluster=cluster, scale=True, **QUOTA)
    assert len(kit.workshop.list_attendees(cluster=cluster)) == 0, (
        "nothing is made before the price is agreed to"
    )
    given = {"datasets": ["digits"], "scale": True, "confirm": True, **QUOTA}
    made = kit.workshop.create(PEOPLE, cluster=cluster, **given)
    facts = {each["what"]: each for each in made.facts}
    assert "1 nodes are on their way" in facts["capacity"]["note"]
    assert facts["data"]["is"] == "digits"
    amazon.clock.advance(600)  # nobody waits for them: they are on their way
    there.settled()
    cluster.wait_ready(timeout=120)
    assert len(cluster.nodes()) == 3
    again = kit.workshop.create(PEOPLE, cluster=cluster, **given)
    assert "enough for all at once" in {each["note"] for each in again.facts}

    ada = next(each for each in again.attendees if each.name == "ada")
    theirs = kit.connect("room-of-ada", kubeconfig=ada.kubeconfig)
    data = kit.prepare_dataset("digits", volume=theirs.create_volume("shared", size="1Gi"))
    job = kit.IndexedJob("trainers/digits_ddp.py", nodes=2, args={"epochs": 2}, volumes=data.volumes)
    kit.launch(job, cluster=theirs).wait(timeout=300)
    assert [each["attendee"] for each in kit.workshop.status(cluster=cluster)] == PEOPLE
    assert len(kit.workshop.delete(cluster=cluster)) == 0
    theirs.forget()
    cluster.delete()
    assert amazon.left() == []
