"""RuntimeClasses: which of their handlers a local node has.

Source: https://kubernetes.io/docs/concepts/containers/runtime-class/
"""

from collections.abc import Mapping
from typing import Any

from localkube.api_client import Api, find
from localkube.api_path import api_path
from localkube.runtime.client import RuntimeCallError

# Each is this runtime. That of the GPU operator adds devices, which device plugins ask for as well; the last
# is what the conformance suite expects. One that isolates more, such as ``runsc`` or ``kata``, is not here.
HANDLERS = ("runc", "crun", "nvidia", "test-handler")


async def check_runtime_class(api: Api, pod: Mapping[str, Any]) -> None:
    """Check that a node can run the pod's RuntimeClass.

    Raises:
        RuntimeCallError: There is no such class, or no such handler; in the kubelet's and containerd's words.
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
