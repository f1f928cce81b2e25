"""The cluster's own Service leads to the API server, as objects that the API server itself would write."""

import json

from localkube.kubelet.cluster_objects import publish_api_server


def slices(control_plane):
    listed = json.loads(
        control_plane.run(
            "get", "endpointslices", "-l", "kubernetes.io/service-name=kubernetes", "-o", "json"
        )
    )
    return [
        (item["metadata"]["name"], item["endpoints"][0]["addresses"], item["ports"][0]["port"])
        for item in listed["items"]
    ]


async def test_the_endpoints_of_the_api_server_are_written_and_corrected(bare_control_plane):
    async with bare_control_plane.api() as api:
        await publish_api_server(api, address="10.244.0.1", port=6443)
        assert slices(bare_control_plane) == [("kubernetes", ["10.244.0.1"], 6443)]
        await publish_api_server(api, address="10.244.0.9", port=6444)
        assert slices(bare_control_plane) == [("kubernetes", ["10.244.0.9"], 6444)]
    endpoints = json.loads(bare_control_plane.run("get", "endpoints", "kubernetes", "-o", "json"))
    (subset,) = endpoints["subsets"]
    assert (subset["addresses"], subset["ports"][0]["port"]) == ([{"ip": "10.244.0.9"}], 6444)
