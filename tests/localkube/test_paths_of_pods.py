"""No pod's path is opened, made, changed or mounted on by its name outside of ``path_resolution.py``.

Each module below has so many calls that take a path; those are the cluster's own directories, the machine's
/dev, /proc and /sys, and names of pods that the API server has checked. One that is new either belongs there,
with a descriptor (``dir_fd``), or it counts here, because no pod can influence its path.
"""

import ast
from pathlib import Path

import pytest

import localkube

ROOT = Path(localkube.__file__).parent
CALLS = {"chmod", "chown", "clone", "fwalk", "lchown", "link", "makedirs", "mkdir", "mknod", "mount", "open"}
CALLS |= {
    "open_own",
    "read_bytes",
    "read_json",
    "read_text",
    "rename",
    "rmdir",
    "rmtree",
    "symlink",
    "symlink_to",
    "touch",
}
CALLS |= {"truncate", "unlink", "unmount", "write_bytes", "write_text"}
BY_PATH = {
    "kubelet/images/container_image.py": 2,
    "kubelet/images/image_manager.py": 5,
    "kubelet/images/image_programs.py": 9,
    "kubelet/images/image_table.py": 2,
    "kubelet/images/listing.py": 2,
    "kubelet/images/store.py": 1,
    "kubelet/plugins/cdi.py": 1,
    "kubelet/plugins/device_manager.py": 2,
    "kubelet/volumes/node_directory.py": 2,
    "kubelet/plugins/resource_claims.py": 3,
    "kubelet/plugins/rpc.py": 3,
    "kubelet/pods/component_pods.py": 2,
    "kubelet/pods/container_spec.py": 8,
    "kubelet/pods/network_files.py": 4,
    "kubelet/pods/plain_mode.py": 10,
    "kubelet/pods/pod/worker.py": 2,
    "kubelet/pods/pod_files.py": 4,
    "kubelet/containers/pod_ids.py": 4,
    "kubelet/pods/static_pods.py": 1,
    "kubelet/volumes/host_path.py": 1,
    "kubelet/volumes/projected.py": 11,
    "kubelet/volumes/provisioner.py": 2,
    "kubelet/volumes/volume_manager.py": 5,
    "runtime/client.py": 1,
    "runtime/container.py": 1,
    "runtime/init.py": 2,
    "runtime/messages.py": 2,
    "runtime/mounts.py": 4,
    "runtime/namespaces.py": 4,
    "runtime/overlay.py": 6,
    "runtime/path_resolution.py": 1,
    "runtime/plain.py": 1,
    "runtime/pod_network.py": 6,
    "runtime/processes.py": 5,
    "runtime/rootfs.py": 14,
    "runtime/syscalls.py": 2,
    "runtime/trees.py": 1,
    "runtime/user_namespace.py": 5,
}


def calls_by_path(text):
    """List the functions of a module that open, make, change or mount by a path alone, once for each call."""
    calls = []

    def visit(node, name):
        for child in ast.iter_child_nodes(node):
            is_named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if isinstance(child, ast.Call) and _name(child.func) in CALLS and not _has_descriptor(child):
                calls.append(name)
            visit(child, f"{name}.{child.name}".lstrip(".") if is_named else name)

    visit(ast.parse(text), "")
    return calls


def _name(function):
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _has_descriptor(call):
    """``dir_fd=…``, ``rules.open(directory, path)``, or the name of an open descriptor in /proc."""
    if {"dir_fd", "src_dir_fd"} & {keyword.arg for keyword in call.keywords}:
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr == "open":
        owner = call.func.value
        if _name(owner.func if isinstance(owner, ast.Call) else owner) in ("EXACT", "rules", "Resolution"):
            return True
    return bool(call.args) and ast.unparse(call.args[0]).startswith("f'/proc/self/fd")


MODULES = sorted(
    str(path.relative_to(ROOT))
    for folder in (
        "runtime",
        "kubelet/images",
        "kubelet/plugins",
        "kubelet/pods",
        "kubelet/pods/pod",
        "kubelet/volumes",
    )
    for path in (ROOT / folder).glob("*.py")
)


@pytest.mark.parametrize("module", MODULES)
def test_no_other_module_opens_makes_or_mounts_by_a_path_of_a_pod(module):
    calls = calls_by_path((ROOT / module).read_text())
    assert len(calls) == BY_PATH.get(module, 0), f"new or gone, in one of: {calls}"


def test_a_call_by_a_path_is_found_and_one_from_a_descriptor_is_none():
    text = "def show(volume, path):\n    os.open(volume / path, os.O_PATH)\n    (volume / path).mkdir()\n"
    assert calls_by_path(text) == ["show", "show"]
    text = "class A:\n    def b(self):\n        mount(f'/x/{self.path}', 'y', None, 0)\n"
    assert calls_by_path(text) == ["A.b"]
    assert calls_by_path("os.open('a', 0, dir_fd=root)\nEXACT.open(root, 'a')\nrules.open(root, path)") == []
