"""The container API over gRPC: every method of `google.container.v1.ClusterManager`.

Messages are read and written by the serializers of google-cloud-container itself. A method that the fake does
not have answers UNIMPLEMENTED.
"""

from concurrent import futures

import grpc
from google.cloud.container_v1 import types
from google.protobuf import empty_pb2

from .api_errors import ApiError, LineCut
from .container import TITLE, Container
from .world import World

SERVICE = "google.container.v1.ClusterManager"


class RpcServer:
    """A gRPC server on a port of 127.0.0.1 that the system chooses."""

    def __init__(self, world: World, container: Container) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(16, thread_name_prefix="fake-gke"))
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                _behaviour(world, container, name),
                request_deserializer=getattr(types, f"{name}Request").deserialize,
                response_serializer=_serialize,
            )
            for name in dir(Container)
            if name[0].isupper()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def close(self) -> None:
        """Stop it."""
        self._server.stop(grace=None).wait()


def _behaviour(world: World, container: Container, name: str):
    method = getattr(container, name)

    def behave(request, context: grpc.ServicerContext):
        try:
            return world.serve(f"container.{name}", target_of(request), lambda: method(request), title=TITLE)
        except ApiError as error:
            error.abort(context)
        except LineCut:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    return behave


def target_of(request) -> str:
    """Return the resource that a request of the container API speaks of."""
    fields = type(request).meta.fields
    named = next(
        (getattr(request, key) for key in ("name", "parent") if key in fields and getattr(request, key)), ""
    )
    words = [named or f"projects/{request.project_id}/locations/{request.zone}"]
    if not named:
        olds = (("cluster_id", "clusters"), ("node_pool_id", "nodePools"), ("operation_id", "operations"))
        words += [f"{kind}/{getattr(request, key)}" for key, kind in olds if key in fields]
    if "cluster" in fields:
        words.append(f"clusters/{request.cluster.name}")
    elif "node_pool" in fields:
        words.append(f"nodePools/{request.node_pool.name}")
    return "/".join(words)


def _serialize(message) -> bytes:
    if isinstance(message, empty_pb2.Empty):
        return message.SerializeToString()
    return type(message).serialize(message)
