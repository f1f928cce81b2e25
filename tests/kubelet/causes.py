"""The causes of tests/cluster/causes/waits.yaml on a real kubelet: which of them ``why`` names there.

Example:
    .venv/bin/python -m tests.kubelet --command ".venv/bin/python -m tests.kubelet.causes"
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kitlib as kit
from kitlib.k8s.client import Kube

from ..cluster.provoked import ROWS, provoke

SECONDS = 120
# They need registries that the local cluster alone is told of, a second node, or a kubelet of ours.
ELSEWHERE = (
    "image-forbidden",
    "image-architecture",
    "image-no-command",
    "registry-down",
    "image-missing",
    "rwop",
)


def main() -> int:
    """Provoke all rows at the same time; print those that are not named, and what is."""
    kube = Kube(Path(os.environ["KUBECONFIG"]), cluster="real")
    rows = {row["name"]: row for row in ROWS if row["name"] not in ELSEWHERE}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda row: provoke(kube, row, {}), rows.values()))
    end, shown = time.monotonic() + SECONDS, {}
    count = len(rows)
    while rows and time.monotonic() < end:
        for name, row in list(rows.items()):
            shown[name] = kit.Run(kube.in_namespace(f"w-{name}"), f"w-{name}").why()
            first = shown[name].first
            if first and first.kind == row["kind"] and row["says"] in first.line:
                del rows[name]
    for name, row in rows.items():
        sys.stdout.write(f"{name}: wanted {row['kind']}: {row['says']}; {shown[name]!r}\n")
    sys.stdout.write(f"{count - len(rows)} of {count} causes are named\n")
    return bool(rows)


if __name__ == "__main__":
    sys.exit(main())
