"""An etcd that starts after the API server is dialled again within milliseconds, and not a second later."""

import re
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

from localkube.controlplane import binaries

from .bare_control_plane import bare

FAILURE = re.compile(r"^W\d+ (\S+) .*(SubChannel #\d+)\] grpc: addrConn.createTransport failed", re.MULTILINE)
WAIT = 'until [ "$(grep -c createTransport "$0")" -ge 9 ]; do sleep 0.05; done; exec "$@"'


def test_the_api_server_dials_a_late_etcd_again_within_milliseconds(tmp_path):
    log = tmp_path / "logs" / "kube-apiserver.log"

    def late(component):
        if component.name != "etcd":
            return component
        return replace(component, argv=("/bin/sh", "-c", WAIT, str(log), *component.argv))

    control_plane = binaries.obtain(report=lambda text: None)
    with bare(tmp_path, control_plane, components=("etcd", "kube-apiserver"), change=late) as running:
        assert running.run("get", "--raw", "/readyz") == "ok"
    times: dict[str, list[datetime]] = {}
    for time, channel in FAILURE.findall(log.read_text()):
        times.setdefault(channel, []).append(datetime.strptime(time, "%H:%M:%S.%f"))
    gaps = [later - earlier for channel in times.values() for earlier, later in pairwise(channel)]
    assert min(gap.total_seconds() for gap in gaps) < 0.5
