"""The API server accepts every status that is reported, and gives it back as it was sent."""

import pytest
import yaml

from localkube.api_client import ApiError
from localkube.kubelet.status.pod_status import pod_status, status_patch

from ..localkube.test_node_status import CASES, report

NODE = "node-of-a-test"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
async def test_a_report_is_accepted_and_read_back_unchanged(api, path):
    case = yaml.safe_load(path.read_text())
    spec = case["pod"]["spec"] | {"nodeName": NODE, "automountServiceAccountToken": False}
    ephemeral = spec.pop("ephemeralContainers", [])
    body = {"metadata": {"name": path.stem.lower().replace("_", "-")}, "spec": spec}
    pod = await api.post("/api/v1/namespaces/default/pods", body)
    url = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
    try:
        if ephemeral:  # there are none at creation
            pod = await api.patch(f"{url}/ephemeralcontainers", {"spec": {"ephemeralContainers": ephemeral}})
        early = pod_status(pod, records={}, pod_ip=None, host_ip="10.244.254.1", start_time=999, now=999)
        pod = await api.patch(f"{url}/status", status_patch(pod, early))
        change = status_patch(pod, report(case | {"pod": pod}))
        pod = await api.patch(f"{url}/status", change) if change else pod
        reported = report(case | {"pod": pod})
        assert status_patch(pod, reported) is None
        read = {key: pod["status"][key] for key in reported}
        # The API server keeps the order in which conditions came.
        assert _in_order(read) == _in_order(reported)
    finally:
        await api.delete(url, {"gracePeriodSeconds": 0})


async def test_a_patch_for_a_pod_that_was_replaced_is_refused(api):
    body = {
        "metadata": {"name": "twin"},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "x"}]},
    }
    first = await api.post("/api/v1/namespaces/default/pods", body)
    await api.delete("/api/v1/namespaces/default/pods/twin", {"gracePeriodSeconds": 0})
    await api.post("/api/v1/namespaces/default/pods", body)
    status = pod_status(first, records={}, pod_ip=None, host_ip="10.0.0.1", start_time=1, now=1)
    with pytest.raises(ApiError, match="422 Invalid: .* metadata.uid"):
        await api.patch("/api/v1/namespaces/default/pods/twin/status", status_patch(first, status))


def _in_order(status):
    return status | {"conditions": sorted(status["conditions"], key=lambda row: row["type"])}
