"""Others who administer a cluster of EKS, and the pods that read its bucket: all gone with the cluster."""

import pytest

from clouds.aws.access import POLICY, check_principal
from clouds.aws.eks import EksCluster
from clouds.aws.permissions import needed
from clouds.aws.roles import roles
from kitlib.errors import BadInput, ClusterNotFound

from .eks_lifecycle import EksLifecycle, session

ROLE, ADA = "arn:aws:iam::123456789012:role/staff/teachers", "arn:aws:iam::123456789012:user/ada"


@pytest.fixture
def eks(amazon):
    return session(amazon.endpoint).client("eks")


def pods(eks):
    """Return which pods have which role, but for those of add-ons."""
    listed = eks.list_pod_identity_associations(clusterName="lab")["associations"]
    ids = [each["associationId"] for each in listed if not each.get("ownerArn")]
    told = (eks.describe_pod_identity_association(clusterName="lab", associationId=each) for each in ids)
    return {
        (each["namespace"], each["serviceAccount"]): each["roleArn"]
        for each in (one["association"] for one in told)
    }


def test_others_administer_a_cluster_and_rooms_read_its_bucket_until_it_goes_with_all_of_them(
    amazon, eks, state_home
):
    life = EksLifecycle(amazon, admins=(ROLE,))
    life.create()
    lab = EksCluster("lab", life.plan.session)
    said = lab.add_admin(ADA)
    assert 'kit.connect("lab", provider="eks", region="us-west-2")' in said and "eks:DescribeCluster" in said
    lab.add_admin(ADA)  # once more is fine
    for arn in (ROLE, ADA):
        (given,) = eks.list_associated_access_policies(clusterName="lab", principalArn=arn)[
            "associatedAccessPolicies"
        ]
        assert given["policyArn"].endswith(f"/{POLICY}") and given["accessScope"]["type"] == "cluster"
    written = life.written()
    life.create()
    assert life.written() == written  # those who are there are not asked for again

    reads = roles(life.plan)["pods"].arn
    lab.grant_pod_access("attendee-ada")
    lab.grant_pod_access("attendee-ada")
    lab.grant_pod_access("attendee-bob")
    assert pods(eks) == {
        ("default", "default"): reads,
        ("attendee-ada", "default"): reads,
        ("attendee-bob", "default"): reads,
    }
    lab.revoke_pod_access("attendee-ada")
    lab.revoke_pod_access("attendee-ada")
    assert set(pods(eks)) == {("default", "default"), ("attendee-bob", "default")}
    rooms = [each for each in lab.resources() if each["what"] == "pod identities of rooms"]
    assert len(rooms) == 1

    eks.delete_nodegroup(clusterName="lab", nodegroupName="system")
    eks.delete_nodegroup(clusterName="lab", nodegroupName="train")
    amazon.clock.advance(3600)
    eks.delete_cluster(name="lab")  # by hand, as in the console
    assert "AWS says it is deleting" in lab.explain("refused").what
    amazon.clock.advance(3600)
    gone = lab.explain("refused")
    assert isinstance(gone, ClusterNotFound) and "create_cluster" in gone.fix
    life.create()
    lab.grant_pod_access("attendee-bob")
    life.delete()
    assert amazon.left() == []
    assert {each for each in amazon.actions() if each.startswith("eks:")} <= set(needed())
    with pytest.raises(ClusterNotFound):
        lab.add_admin(ADA)


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("ada", "sts get-caller-identity"),
        ("arn:aws:iam::123456789012:group/teachers", "role/teachers"),
        ("arn:aws:sts::123456789012:assumed-role/teachers/ada", '"arn:aws:iam::123456789012:role/teachers"'),
        (7, "sts get-caller-identity"),
    ],
)
def test_who_is_no_user_and_no_role_cannot_administer_and_is_told_what_is_meant(given, fix):
    with pytest.raises(BadInput) as error:
        check_principal(given)
    assert fix in error.value.fix
