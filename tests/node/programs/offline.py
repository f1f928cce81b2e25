"""Use a bundle, make a cluster and run a pod in it; run where there is no network: ``offline.py BUNDLE``.

Prints what the pod has written.
"""

import json
import subprocess
import sys

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "etcd"},
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {"name": "main", "image": "quay.io/coreos/etcd:v3.5.9", "command": ["etcd", "--version"]}
        ],
    },
}


def run(*command, **options):
    """Run a command that must succeed and return what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def localkube(*words):
    """Return the result of one verb of the local cluster."""
    return json.loads(run(sys.executable, "-m", "localkube", *words).splitlines()[-1])["result"]


run("ip", "link", "set", "lo", "up")
assert subprocess.run(["getent", "hosts", "example.org"], check=False).returncode, "there is a network"
localkube("bundle", "use", sys.argv[1])
try:
    created = localkube("create", "offline", "--nodes", "1", "--no-warm")
    kubectl = [*created["kubectl"], "--kubeconfig", created["kubeconfig"]]
    run(*kubectl, "apply", "-f", "-", input=json.dumps(POD))
    run(*kubectl, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/etcd", "--timeout=120s")
    sys.stdout.write(run(*kubectl, "logs", "etcd"))
finally:
    localkube("delete", "offline")
