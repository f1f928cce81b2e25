"""A CSI driver that binds directories of its data volume, or mounts a tmpfs. Run in a privileged pod."""

import asyncio
import ctypes
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import grpc

sys.path.insert(0, "/messages")
import messages_pb2 as m

NAME, KUBELET = "test.csi.example.com", Path("/var/lib/kubelet")
ENDPOINT, DATA = KUBELET / "plugins" / NAME / "csi.sock", KUBELET / "plugins" / NAME / "data"
MS_BIND, MNT_DETACH, STAGE_UNSTAGE = 0x1000, 2, 1
libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind, flags):
    target.mkdir(parents=True, exist_ok=True)
    if libc.mount(os.fsencode(source), os.fsencode(target), kind, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(target))


def unmount(path):
    libc.umount2(os.fsencode(path), MNT_DETACH)
    if path.exists():
        path.rmdir()


def method(handle, request):
    async def answer(message, context):
        print(handle.__name__, getattr(message, "volume_id", ""), flush=True)
        try:
            return handle(message)
        except (OSError, ValueError) as error:
            await context.abort(grpc.StatusCode.INTERNAL, repr(error))

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


def get_plugin_info(request):
    return m.PluginInfo(type="CSIPlugin", name=NAME, endpoint=str(ENDPOINT), supported_versions=["1.0.0"])


def notify(request):
    print("registered", request.plugin_registered, request.error, flush=True)
    return m.Empty()


def get_info(request):
    topology = m.Topology(segments={"topology.test/rack": "7"})
    return m.NodeGetInfoResponse(
        node_id="id-of-" + os.environ["NODE"], max_volumes_per_node=9, accessible_topology=topology
    )


def get_capabilities(request):
    rpc = m.NodeServiceCapability.Rpc(type=STAGE_UNSTAGE)
    return m.NodeGetCapabilitiesResponse(capabilities=[m.NodeServiceCapability(rpc=rpc)])


def stage(request):
    place = DATA / request.volume_id
    place.mkdir(exist_ok=True)
    place.chmod(0o777)
    mount(place, Path(request.staging_target_path), None, MS_BIND)
    return m.Empty()


def unstage(request):
    unmount(Path(request.staging_target_path))
    return m.Empty()


def publish(request):
    target, context = Path(request.target_path), dict(request.volume_context)
    if context.get("refuse"):
        raise ValueError(context["refuse"])
    if context.get("kind") == "tmpfs":
        mount("tmpfs", target, b"tmpfs", 0)
        target.chmod(0o777)
    elif request.staging_target_path:
        mount(request.staging_target_path, target, None, MS_BIND)
    else:
        place = DATA / request.volume_id
        place.mkdir(exist_ok=True)
        place.chmod(0o777)
        mount(place, target, None, MS_BIND)
    (target / "context.json").write_text(json.dumps(context | dict(request.secrets)))
    return m.Empty()


def unpublish(request):
    unmount(Path(request.target_path))
    if request.volume_id.startswith("csi-"):
        shutil.rmtree(DATA / request.volume_id, ignore_errors=True)
    return m.Empty()


async def serve(path, service, methods):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


async def main():
    node = {
        "NodeGetInfo": method(get_info, m.Empty),
        "NodeGetCapabilities": method(get_capabilities, m.Empty),
        "NodeStageVolume": method(stage, m.NodeStageVolumeRequest),
        "NodeUnstageVolume": method(unstage, m.NodeUnstageVolumeRequest),
        "NodePublishVolume": method(publish, m.NodePublishVolumeRequest),
        "NodeUnpublishVolume": method(unpublish, m.NodeUnpublishVolumeRequest),
    }
    registration = {
        "GetInfo": method(get_plugin_info, m.Empty),
        "NotifyRegistrationStatus": method(notify, m.RegistrationStatus),
    }
    DATA.mkdir(parents=True, exist_ok=True)
    driver = await serve(ENDPOINT, "csi.v1.Node", node)
    socket = KUBELET / "plugins_registry" / "test-reg.sock"
    registrar = await serve(socket, "pluginregistration.Registration", registration)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    try:
        await asyncio.gather(driver.wait_for_termination(), registrar.wait_for_termination())
    finally:
        socket.unlink(missing_ok=True)


asyncio.run(main())
