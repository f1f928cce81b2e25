"""Reports on a pod while others write to it: the last word that is heard is the one that is answered to."""

import asyncio
from types import SimpleNamespace

from localkube.kubelet.pods.pod.status_manager import StatusManager


def pod(version, ready):
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"uid": "u", "resourceVersion": str(version)}, "status": {"conditions": conditions}}


class Server:
    """An API server to which somebody else writes as soon as the first report has come."""

    def __init__(self):
        self.patches, self.heard = [], None

    async def patch(self, path, patch):
        self.patches.append(patch)
        version = 10 * len(self.patches)
        if len(self.patches) == 1:
            self.heard(pod(version + 1, "False"))
            await asyncio.sleep(0)
        return pod(version, "True")


class Driver:
    """The pod of which a server has a version; what it answers is remembered."""

    path, runtime = "/api/v1/namespaces/default/pods/steady", SimpleNamespace(client=None)

    def __init__(self, server):
        self.node, self.record = (
            SimpleNamespace(api=server),
            SimpleNamespace(pod=pod(1, "False"), is_gone=False),
        )
        self.reports = StatusManager(self, turns=asyncio.Semaphore(1))

    def status(self):
        return {"conditions": [{"type": "Ready", "status": "True"}]}

    def apply_newer(self, newer):
        self.record.pod = newer


async def test_a_change_that_is_heard_before_the_answer_to_a_report_is_reported_on():
    server = Server()
    driver = Driver(server)

    def hear(newer):
        driver.apply_newer(newer)
        driver.reports.schedule()

    server.heard = hear
    driver.reports.schedule()
    await driver.reports.wait_until_sent()
    assert len(server.patches) == 2, "the node controller's word stays otherwise"
    assert driver.record.pod == pod(20, "True")


async def test_nothing_is_reported_on_a_pod_that_the_api_has_no_more():
    server = Server()
    driver = Driver(server)
    driver.reports.schedule()
    driver.record.is_gone = True
    driver.reports.schedule(ended="u.main.0")
    await driver.reports.wait_until_sent()
    assert server.patches == []
