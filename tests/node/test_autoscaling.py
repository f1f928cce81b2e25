"""A HorizontalPodAutoscaler on CPU: the real controller, fed by the real metrics-server."""

import pytest

from .clusters import eventually, python

BUSY = "while True: sum(range(100000))"


@pytest.mark.slow
@pytest.mark.long
def test_an_autoscaler_adds_pods_to_a_deployment_that_computes(cluster):
    container = {"name": "main", **python(BUSY)}
    container["resources"] = {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "busy"},
        "spec": {
            "selector": {"matchLabels": {"app": "busy"}},
            "template": {
                "metadata": {"labels": {"app": "busy"}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
            },
        },
    }
    cluster.kubectl("apply", "-f", "-", stdin=deployment)
    try:
        cluster.kubectl("autoscale", "deployment", "busy", "--cpu=50%", "--min=1", "--max=3")

        def replicas():
            return cluster.apps.read_namespaced_deployment("busy", "default").spec.replicas

        for _ in range(3):  # the autoscaler looks every 15 s, and waits 30 s before it believes a new pod
            try:
                eventually(lambda: replicas() > 1)
                return
            except AssertionError:
                continue
        pytest.fail(cluster.kubectl("describe", "hpa", "busy"))
    finally:
        cluster.kubectl("delete", "hpa,deployment", "busy", "--ignore-not-found")
