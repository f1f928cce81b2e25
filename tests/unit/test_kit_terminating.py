"""A namespace that cannot go names what holds it: objects, finalizers, pods that may take their time."""

from kitlib.errors import Rejected
from kitlib.k8s.terminating import held_namespaces, holders

MESSAGE = (
    "Some resources are remaining: configmaps. has 1 resource instances, pods. has 1 resource instances, "
    "widgets.example.com has 1 resource instances, gone.example.org has 1 resource instances"
)
NAMESPACE = {
    "metadata": {"name": "attendee-ada"},
    "status": {
        "conditions": [
            {"type": "NamespaceContentRemaining", "status": "True", "message": MESSAGE},
            {"type": "NamespaceDeletionDiscoveryFailure", "status": "False", "message": "discovered"},
        ]
    },
}
INSIDE = "/namespaces/attendee-ada"
ANSWERS = {
    f"/api/v1{INSIDE}/configmaps": [{"name": "notes", "finalizers": ["example.com/hold"]}],
    f"/api/v1{INSIDE}/pods": [{"name": "slow", "deletionGracePeriodSeconds": 946080000}],
    f"/apis/example.com/v2{INSIDE}/widgets": [{"name": "wheel"}],
}


class FakeKube:
    def raw(self, path):
        if path == "/apis/example.com":
            return {"preferredVersion": {"groupVersion": "example.com/v2"}}
        if path not in ANSWERS:
            raise Rejected("there is none", about=path, fix="", status=404, reason="NotFound")
        return {"items": [{"metadata": metadata} for metadata in ANSWERS[path]]}


def test_objects_that_hold_a_namespace_are_named_with_their_finalizers():
    assert holders(FakeKube(), NAMESPACE) == (
        "configmaps/notes (finalizers example.com/hold), pods/slow (946080000 s to end), widgets/wheel"
    )


def test_a_namespace_whose_conditions_say_nothing_yet_names_its_pods():
    assert holders(FakeKube(), {"metadata": {"name": "attendee-ada"}}) == "pods/slow (946080000 s to end)"
    assert holders(FakeKube(), {"metadata": {"name": "attendee-bob"}, "status": {}}) == ""


class FakeCluster(FakeKube):
    def __init__(self, *namespaces):
        self._namespaces = namespaces

    def in_namespace(self, namespace):
        return self

    def get_all(self, kind):
        return list(self._namespaces)


def test_the_status_of_a_cluster_lists_the_namespaces_that_cannot_go():
    deleted = NAMESPACE | {"metadata": {"name": "attendee-ada", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    (line,) = held_namespaces(FakeCluster({"metadata": {"name": "default"}}, NAMESPACE, deleted))
    assert line.startswith("namespace attendee-ada waits until these are gone: configmaps/notes (finalizers")
