"""A device plugin: two devices, of which the file /state/sick makes one unhealthy. Run in a pod.

It is a DRA driver too, which fails while there is /state/broken.
"""

import asyncio
import json
import sys
from pathlib import Path

import grpc

sys.path.insert(0, "/messages")
import messages_pb2 as m

FOLDER, RESOURCE = Path("/var/lib/kubelet/device-plugins"), "example.com/flux"
DEVICES = ("flux-1", "flux-2")
DRIVER, KUBELET = "flux.example.com", Path("/var/lib/kubelet")


def method(handle, request):
    return grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


async def list_and_watch(request, context):
    before = None
    while True:
        sick = Path("/state/sick").exists()
        if sick != before:
            health = ["Healthy", "Unhealthy" if sick else "Healthy"]
            devices = [m.Device(ID=name, health=device) for name, device in zip(DEVICES, health, strict=True)]
            yield m.ListAndWatchResponse(devices=devices)
        before = sick
        await asyncio.sleep(0.1)


async def allocate(request, context):
    answers = []
    for container_request in request.container_requests:
        ids = ",".join(container_request.devices_ids)
        mount = m.AllocateResponse.Mount(container_path="/flux", host_path=f"{FOLDER}/shared", read_only=True)
        zero = m.AllocateResponse.DeviceSpec(
            container_path="/dev/flux", host_path="/dev/zero", permissions="rw"
        )
        answers.append(m.AllocateResponse.Container(envs={"FLUX": ids}, mounts=[mount], devices=[zero]))
    return m.AllocateResponse(container_responses=answers)


async def prefer(request, context):
    """Prefer the last ones."""
    answers = []
    for container_request in request.container_requests:
        must = list(container_request.must_include_deviceIDs)
        rest = sorted(set(container_request.available_deviceIDs) - set(must), reverse=True)
        ids = [*must, *rest][: container_request.allocation_size]
        answers.append(m.PreferredAllocationResponse.Container(deviceIDs=ids))
    return m.PreferredAllocationResponse(container_responses=answers)


async def prepare(request, context):
    print("prepared", *request.devices_ids, flush=True)
    return m.Empty()


def answer_claims(word):
    """Answer for claims, each of which has a device for the request a and one for b."""

    async def answer(request, context):
        response = m.ClaimsResponse() if word == "prepare" else m.UnprepareResponse()
        error = "no flux" if Path("/state/broken").exists() else ""
        for claim in request.claims:
            print(word, claim.name, error, flush=True)
            response.claims[claim.uid].error = error
            for name in "ab" if word == "prepare" else "":
                ids = [f"{DRIVER}/part={name}"]
                response.claims[claim.uid].devices.add(
                    request_names=[name], pool_name="p", device_name=name, cdi_device_ids=ids
                )
        return response

    return method(answer, m.ClaimsRequest)


async def serve_claims():
    """Serve as a DRA driver, which the kubelet finds by the socket of its registration."""
    devices = [{"name": name, "containerEdits": {"env": [f"PART_{name}={name}"]}} for name in "ab"]
    spec = {"cdiVersion": "0.6.0", "kind": f"{DRIVER}/part", "devices": devices}
    Path("/var/run/cdi/flux.json").write_text(json.dumps(spec))
    endpoint = KUBELET / "plugins" / "dra.sock"
    info = m.PluginInfo(
        type="DRAPlugin", name=DRIVER, endpoint=str(endpoint), supported_versions=["v1.DRAPlugin"]
    )

    async def register(request, context):
        return info if isinstance(request, m.Empty) else m.Empty()

    registration = {
        "GetInfo": method(register, m.Empty),
        "NotifyRegistrationStatus": method(register, m.RegistrationStatus),
    }
    driver = {
        "NodePrepareResources": answer_claims("prepare"),
        "NodeUnprepareResources": answer_claims("unprepare"),
    }
    servers = []
    for socket, service, methods in (
        (endpoint, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", driver),
        (KUBELET / "plugins_registry" / "flux-reg.sock", "pluginregistration.Registration", registration),
    ):
        socket.unlink(missing_ok=True)
        servers.append(grpc.aio.server())
        servers[-1].add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        servers[-1].add_insecure_port(f"unix:{socket}")
        await servers[-1].start()
    return servers


async def register(options):
    channel = grpc.aio.insecure_channel(f"unix:{FOLDER}/kubelet.sock")
    call = channel.unary_unary(
        "/v1beta1.Registration/Register",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=m.Empty.FromString,
    )
    request = m.RegisterRequest(
        version="v1beta1", endpoint="flux.sock", resource_name=RESOURCE, options=options
    )
    await call(request, wait_for_ready=True)
    await channel.close()


async def main():
    (FOLDER / "shared").mkdir(exist_ok=True)
    (FOLDER / "shared" / "capacitor").write_text("1.21 GW")
    watch = grpc.unary_stream_rpc_method_handler(
        list_and_watch,
        request_deserializer=m.Empty.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    methods = {
        "ListAndWatch": watch,
        "Allocate": method(allocate, m.AllocateRequest),
        "GetPreferredAllocation": method(prefer, m.PreferredAllocationRequest),
        "PreStartContainer": method(prepare, m.PreStartContainerRequest),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
    server.add_insecure_port(f"unix:{FOLDER}/flux.sock")
    await server.start()
    serving = await serve_claims()  # noqa: F841 - they end with the last reference
    options = m.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
    registered = None
    while True:
        try:
            now = (FOLDER / "kubelet.sock").stat().st_mtime_ns
        except FileNotFoundError:
            now = None
        if now and now != registered:
            await register(options)
            registered = now
        await asyncio.sleep(0.1)


asyncio.run(main())
