"""Reports on a pod while others write to it: the last word that is heard is the one that is answered to."""

import asyncio

from localkube.kubelet.pods.status_manager import StatusManager


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


def status_manager(server, **rest):
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return StatusManager(server, client=None, turns=asyncio.Semaphore(1), status=lambda: status, **rest)


async def test_a_change_that_is_heard_before_the_answer_to_a_report_is_reported_on():
    server, known = Server(), {"pod": pod(1, "False")}
    reports = status_manager(
        server,
        path="/api/v1/namespaces/default/pods/steady",
        pod=lambda: known["pod"],
        answered=lambda answer: known.update(pod=answer),
    )

    def hear(newer):
        known["pod"] = newer
        reports.soon()

    server.heard = hear
    reports.soon()
    await reports.sent()
    assert len(server.patches) == 2, "the node controller's word stays otherwise"
    assert known["pod"] == pod(20, "True")


async def test_nothing_is_reported_on_a_pod_that_the_api_has_no_more():
    server = Server()
    reports = status_manager(server, path="/pods/gone", pod=lambda: pod(1, "False"), answered=None)
    reports.soon()
    reports.gone()
    reports.soon(ended="u.main.0")
    await reports.sent()
    assert server.patches == []
