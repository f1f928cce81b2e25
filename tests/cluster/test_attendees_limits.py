"""What an attendee may not do even in a namespace of their own, tried with nothing but their kubeconfig."""

import secrets

import pytest
from kubernetes import client, config

import kitlib as kit
from kitlib.errors import Rejected

from ..node.clusters import pod
from ..patience import eventually, until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def attendee(local_cluster):
    name = f"mallory-{secrets.token_hex(2)}"
    yield kit.workshop.add(name, cluster=local_cluster, cpu="1", pods=3)
    kit.workshop.remove(name, cluster=local_cluster)


@pytest.fixture(scope="module")
def theirs(attendee):
    return kit.connect("existing", kubeconfig=attendee.kubeconfig).kube


def refusal(kube, item):
    """Try to create an object; return why it is refused, or nothing if it is there."""
    try:
        kube.create(item)
    except Rejected as error:
        return str(error)
    kube.delete(item["kind"], item["metadata"]["name"])
    return ""


def test_no_token_that_never_expires(theirs):
    account = {"kubernetes.io/service-account.name": "attendee"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "for-ever", "annotations": account}}
    token = secret | {"type": "kubernetes.io/service-account-token"}
    # the API server learns of a new policy a moment after it was written
    until(lambda: "never expire" in refusal(theirs, token), "the Secret to be refused")
    assert refusal(theirs, secret | {"metadata": {"name": "usual"}, "type": "Opaque"}) == ""


@pytest.fixture(scope="module")
def priorities(local_cluster):
    for name in ("low", "high"):
        local_cluster.apply(f"manifests/priority/{name}.yaml")


@pytest.mark.parametrize("name", ["system-node-critical", "system-cluster-critical", "high"])
def test_no_priority_over_the_pods_of_others(theirs, priorities, name):
    assert "exceeded quota: other-priorities" in refusal(
        theirs, pod("true", name="tried", priorityClassName=name)
    )


def test_a_priority_that_preempts_nobody_is_allowed(theirs, priorities, local_cluster):
    assert refusal(theirs, pod("true", name="tried", priorityClassName="low")) == ""
    assert local_cluster.kube.get("PriorityClass", "low")["preemptionPolicy"] == "Never"


def test_no_pod_that_takes_years_to_end(theirs):
    endless = pod("true", name="tried", terminationGracePeriodSeconds=946_080_000)
    words = "terminationGracePeriodSeconds of an attendee's pod is at most 600"
    until(lambda: words in refusal(theirs, endless), "the pod to be refused")


LABELS = {"app": "many"}
PODS = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
ONCE = {"spec": PODS["spec"] | {"restartPolicy": "Never"}}
OF_A_SET = {"selector": {"matchLabels": LABELS}, "template": PODS}
MANY = {
    "Service": (
        "v1",
        lambda count: {"ports": [{"name": f"p{n}", "port": n} for n in range(1, 1 + min(count, 300))]},
    ),
    "Deployment": ("apps/v1", lambda count: OF_A_SET | {"replicas": count}),
    "StatefulSet": ("apps/v1", lambda count: OF_A_SET | {"replicas": count, "serviceName": "many"}),
    "Job": ("batch/v1", lambda count: {"template": ONCE, "parallelism": count}),
    "CronJob": (
        "batch/v1",
        lambda count: {
            "schedule": "0 0 1 1 *",
            "jobTemplate": {"spec": {"template": ONCE, "parallelism": count}},
        },
    ),
}


@pytest.mark.parametrize("kind", MANY)
def test_no_object_of_more_replicas_or_ports_than_what_serves_all_has_memory_for(theirs, kind):
    version, spec = MANY[kind]

    def manifest_of(count):
        return {"apiVersion": version, "kind": kind, "metadata": {"name": "many"}, "spec": spec(count)}

    def is_refused():
        message = refusal(theirs, manifest_of(2147483647))
        return "an attendee's" in message and "at most" in message

    until(is_refused, "the object to be refused")
    assert refusal(theirs, manifest_of(2)) == ""


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"requests": {"memory": "0"}}, "minimum memory usage per Container is 4Mi"),
        ({"requests": {"cpu": "0"}}, "minimum cpu usage per Container is 1m"),
        ({"limits": {"memory": "17Gi"}}, "maximum memory usage per Container is 16Gi"),
        ({"limits": {"ephemeral-storage": "1Ti"}}, "maximum ephemeral-storage usage per Container is 16Gi"),
        ({"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}, "exceeded quota"),
        ({"limits": {"nvidia.com/gpu": "1"}}, "exceeded quota"),
    ],
)
def test_no_pod_whose_use_is_not_counted_or_more_than_the_quota(theirs, resources, message):
    manifest = pod("true", name="tried")
    manifest["spec"]["containers"][0]["resources"] = resources
    assert message in refusal(theirs, manifest)


def pods_in_quota(kube):
    return max(int(quota["status"]["used"].get("pods", 0)) for quota in kube.get_all("ResourceQuota"))


def test_a_pod_that_says_nothing_has_limits_as_well_as_requests(theirs):
    eventually(lambda: pods_in_quota(theirs) < 3)  # those of the test before have been counted out
    created = theirs.create(pod("true", name="silent"))
    resources = created["spec"]["containers"][0]["resources"]
    theirs.delete("Pod", "silent", grace=0)
    assert resources["limits"] == {"memory": "2Gi", "ephemeral-storage": "4Gi"}
    assert resources["requests"] == {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "64Mi"}


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
        {"hostNetwork": True},
        {"hostPID": True},
        {"main": {"securityContext": {"privileged": True}}},
        {"main": {"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}},
    ],
    ids=["hostPath", "hostNetwork", "hostPID", "privileged", "NET_ADMIN"],
)
def test_no_pod_that_reaches_its_node(theirs, spec):
    assert 'violates PodSecurity "baseline' in refusal(theirs, pod("true", name="tried", **spec))


def test_no_more_objects_than_are_counted(theirs, local_cluster):
    """The database of all is one."""
    kube = local_cluster.kube.in_namespace(theirs.namespace)
    quota = kube.get("ResourceQuota", "attendee")["spec"]["hard"]
    assert quota["count/pods"] == "30"
    names = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"many-{number}"}}
        for number in range(int(quota["count/configmaps"]))
    ]
    with pytest.raises(Rejected, match="exceeded quota: attendee, requested: count/configmaps=1"):
        for config_map in names:
            theirs.create(config_map)
    for config_map in names:
        theirs.delete("ConfigMap", config_map["metadata"]["name"])


def may(attendee, verb, resource, group="", subresource=""):
    """Ask the API server whether this user may."""
    attributes = {"namespace": attendee.namespace, "verb": verb, "resource": resource, "group": group}
    review = {"spec": {"resourceAttributes": attributes | {"subresource": subresource}}}
    with config.new_client_from_config(str(attendee.kubeconfig)) as api:
        return client.AuthorizationV1Api(api).create_self_subject_access_review(review).status.allowed


def test_every_kind_that_an_attendee_may_create_is_counted(attendee, local_cluster):
    """Except for Events, which Kubernetes counts in no quota, and deletes after an hour."""
    counted = local_cluster.kube.in_namespace(attendee.namespace).get("ResourceQuota", "attendee")["spec"][
        "hard"
    ]
    listed = local_cluster.kubectl("api-resources --namespaced --verbs=create -o name").split()
    missing = []
    for name in listed:
        resource, _, group = name.partition(".")
        if f"count/{name}" not in counted and may(attendee, "create", resource, group):
            missing.append(name)
    assert sorted(missing) == ["events", "events.events.k8s.io"]


@pytest.mark.parametrize(
    "body",
    [
        ("create", "serviceaccounts", "", "token"),
        ("impersonate", "serviceaccounts"),
        ("escalate", "roles", "rbac.authorization.k8s.io"),
        ("update", "resourcequotas"),
        ("update", "limitranges"),
        ("update", "pods", "", "ephemeralcontainers"),
        ("create", "endpointslices", "discovery.k8s.io"),
        ("create", "networkpolicies", "networking.k8s.io"),
    ],
    ids=" ".join,
)
def test_no_way_around_what_was_granted(attendee, body):
    assert not may(attendee, *body)
