"""What a watch passes over unread is what it was told to, and nothing else."""

import json

import pytest

from localkube.api_client import is_on_simulated_node

HERE, THERE = {"nodeName": "node-1"}, {"nodeName": "simulated-1"}
SAID = {"name": "PATH", "value": json.dumps(THERE)}


def line(spec, **metadata):
    pod = {"metadata": {"name": "a", **metadata}, "spec": spec}
    return json.dumps({"type": "ADDED", "object": pod}, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize(
    ("event", "passed_over"),
    [
        (line(THERE), True),
        (line(HERE), False),
        (line(HERE | {"env": [SAID]}), False),
        (line(THERE | {"env": [SAID]}), True),
        (line(HERE, labels=THERE), False),
        (line(HERE | {"nominated": "simulated-1"}), False),
        (b'{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"5"}}}\n', False),
    ],
)
def test_a_pod_of_a_simulated_node_is_known_without_reading_its_json(event, passed_over):
    assert is_on_simulated_node(event) == passed_over
