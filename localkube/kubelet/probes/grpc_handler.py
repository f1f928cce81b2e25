"""One call of gRPC's health service, for probes. Imported only where a pod asks for it.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import asyncio

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc


async def check(
    host: str, port: int, *, named: str, service: str, timeout: float, agent: str
) -> tuple[bool, str]:
    """Return whether a server says that it serves, and the sentence for people.

    Args:
        host: Where to connect.
        port: The same.
        named: What the address is called in the cluster.
        service: Which of the server's services is asked for; empty for all of it.
        timeout: Seconds for all of it.
        agent: The user agent.
    """
    # Without a pool of channels: the probe also tells whether new connections are accepted.
    options = [
        ("grpc.primary_user_agent", agent),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    async with grpc.aio.insecure_channel(f"{host}:{port}", options=options) as channel:
        try:
            async with asyncio.timeout_at(end):
                await channel.channel_ready()
        except TimeoutError:
            late = (
                f'timeout: failed to connect service "{named}" within {timeout:g}s: context deadline exceeded'
            )
            return False, late
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            left = max(0.001, end - loop.time())
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=left)
        except grpc.aio.AioRpcError as error:
            return False, _problem(error, timeout)
    state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    if state != "SERVING":
        return False, f'service unhealthy (responded with "{state}")'
    return True, "service healthy"


def _problem(error: grpc.aio.AioRpcError, timeout: float) -> str:
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        missing = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health)"
        return f"{missing}: {error.details()}"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"timeout: health rpc did not complete within {timeout:g}s"
    code = error.code().name.title().replace("_", "")
    return f"error: health rpc probe failed: rpc error: code = {code} desc = {error.details()}"
