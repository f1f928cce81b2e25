"""RuntimeClasses: the handlers that a local node supports.

Source: https://kubernetes.io/docs/concepts/containers/runtime-class/
"""

from collections.abc import Mapping
from typing import Any

from localkube.api_client import Api, find
from localkube.api_path import api_path
from localkube.runtime.client import RuntimeCallError

# Each is this runtime. The GPU operator's adds devices, which device plugins request as well; the conformance
# suite expects the last. Handlers with stronger isolation, such as ``runsc`` or ``kata``, are not supported.
HANDLERS = ("runc", "crun", "nvidia", "test-handler")


async def check_runtime_class(api: Api, pod: Mapping[str, Any]) -> None:
    """Check that a node can run the pod's RuntimeClass.

    Raises:
        RuntimeCallError: There is no such class or handler; with the kubelet's or containerd's message.
    """
    name = pod["spec"].get("runtimeClassName")
    if not name:
        return
    runtime_class = await find(api, api_path("node.k8s.io/v1/runtimeclasses", name=name))
    if runtime_class is None:
        raise RuntimeCallError("sandbox", f'runtimeclass.node.k8s.io "{name}" not found')
    if runtime_class["handler"] not in HANDLERS:
        message = f'failed to get sandbox runtime: no runtime for "{runtime_class["handler"]}" is configured'
        raise RuntimeCallError("sandbox", f"{message}; those that are: {', '.join(HANDLERS)}")
