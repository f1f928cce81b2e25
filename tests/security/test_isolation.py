"""What a pod tries against its machine and against other pods, as root's and as an unprivileged user's."""

import errno
import os
import platform
import socket
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from localkube.cluster.preparation import CHECKOUT, KIT
from localkube.cluster.seccomp import compile_filter

from ..node.clusters import pod, python
from ..node.restrictions import NOBODY
from ..node.workloads import claim

pytestmark = pytest.mark.namespaces
KEYCTL = {"x86_64": 250, "aarch64": 219}.get(platform.machine())
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
SLEEP = python("import time; print('up', flush=True); time.sleep(600)")
TRY = """
import ctypes, os, socket, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
PROBE = socket.socket()

def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def attempt(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__ if type(error) is not OSError else error.strerror
    return "done"

def open_to_write(path):
    os.close(os.open(path, os.O_WRONLY))

"""


def tried(pods, *acts, **spec):
    """Run each expression in a pod, and return how it ended: ``done``, or its error."""
    lines = [f"print(attempt(lambda: {act}))" for act in acts]
    main = python(TRY + "\n".join(lines)) | spec.pop("main", {})
    return dict(zip(acts, pods.output(pod(main=main, **spec)).splitlines(), strict=True))


def test_the_kernels_settings_and_memory_are_closed(pods):
    places = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger"]
    ended = tried(pods, *(f"open_to_write({place!r})" for place in places))
    assert "done" not in ended.values(), ended
    script = "for f in /proc/kcore /proc/keys /proc/timer_list; do head -c 64 $f 2>/dev/null; done | wc -c"
    assert pods.output(pod(f"{script}; ls /sys/firmware 2>/dev/null | wc -l")).split() == ["0", "0"]


def test_no_device_can_be_made_nothing_mounted_and_no_interface_changed(pods):
    address = "b'eth0'.ljust(16, b'\\0') + bytes(24)"
    acts = [
        "os.mknod('/tmp/disk', stat.S_IFBLK | 0o600, os.makedev(8, 0))",
        "call(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))",
        "call(libc.umount2(b'/proc/sys', 2))",
        "call(libc.sethostname(b'other', 5))",
        # SIOCSIFFLAGS: down.
        f"call(libc.ioctl(PROBE.fileno(), 0x8914, {address}))",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
    ]
    assert set(tried(pods, *acts).values()) == {"PermissionError"}


@pytest.mark.skipif(not compile_filter(), reason="there is no libseccomp here, so filters were NOT tested")
def test_system_calls_that_open_the_kernel_are_filtered(pods):
    new_user = 0x10000000
    acts = [
        f"call(libc.unshare({new_user}))",
        f"call(libc.syscall({CLONE}, {new_user} | 17, None, None, None, None))",
        "call(libc.setns(0, 0))",
        f"call(libc.syscall({KEYCTL}, 0, 0, 0, 0, 0))",
        "socket.socket(38, socket.SOCK_SEQPACKET)",  # AF_ALG
        "socket.socket(40, socket.SOCK_STREAM)",  # AF_VSOCK
    ]
    assert set(tried(pods, *acts).values()) == {"PermissionError"}
    status = pods.output(pod("grep Seccomp: /proc/self/status"))
    assert status.split() == ["Seccomp:", "2"]


CALL_I386 = """
import mmap, struct
# push rbx; mov rcx, rdx; mov rbx, rsi; mov eax, edi; int 0x80; pop rbx; ret
CODE = bytes.fromhex("534889d14889f389f8cd805bc3")
MAP_32BIT = 0x40
page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT, prot=7)
page[:len(CODE)], words = CODE, 256
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
enter = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_ulong, ctypes.c_ulong)(address)

def call_i386(number, *arguments):
    page[words:words + 4 * len(arguments)] = struct.pack(f"<{len(arguments)}I", *arguments)
    return enter(number, arguments[0], address + words)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="arm64 has no call that hides others")
@pytest.mark.skipif(not compile_filter(), reason="there is no libseccomp here, so filters were NOT tested")
def test_no_call_of_another_architecture_passes_the_filter(pods):
    """`int 0x80` makes a call by its number on i386, where socketcall has socket's arguments in memory."""
    calls = {
        "getpid": "call_i386(20, 0)",
        "socketcall for AF_ALG": "call_i386(102, 1, 38, 5, 0)",
        "socketcall for AF_VSOCK": "call_i386(102, 1, 40, 1, 0)",
        "socketcall for AF_INET": "call_i386(102, 1, 2, 1, 0)",
        "ipc for shmget": "call_i386(117, 23, 0, 4096, 0)",
        "io_uring_setup": "call_i386(425, 1)",
        "x32's getpid": "libc.syscall(0x40000000 | 39)",
    }
    script = TRY + CALL_I386 + "\n".join(f"print({call})" for call in calls.values())
    results = dict(zip(calls, pods.output(pod(main=python(script))).split(), strict=True))
    assert results == dict.fromkeys(calls, str(-errno.ENOSYS)) | {"x32's getpid": "-1"}


def test_a_pod_listens_below_1024_and_pings_without_a_privilege(pods):
    acts = [
        "socket.create_server(('', 80)).close()",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)",
    ]
    assert set(tried(pods, *acts).values()) == {"done"}


def test_files_that_only_root_may_read_are_closed_and_a_pods_own_are_open(pods):
    acts = ["open('/etc/shadow')", "open('/tmp/own', 'w')", "open('/own', 'w')", "os.chown('/own', 0, 0)"]
    assert list(tried(pods, *acts).values()) == ["PermissionError", "done", "done", "done"]


def test_groups_of_the_machine_and_of_other_pods_are_refused(cluster, pods):
    """The pod's first id has 65,535 after it; what is counted from there on is not the pod's."""
    volumes = [{"name": "scratch", "emptyDir": {}}]
    mounts = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    cases = [({"supplementalGroups": [65536]}, "Failed"), ({"fsGroup": 65536}, "FailedMount")]
    for context, reason in cases:
        manifest = pod("id -G", main=mounts, volumes=volumes, securityContext=context)
        if cluster.root.stat().st_uid == NOBODY:  # a single id, and no groups
            assert "65536" not in pods.output(manifest).split()
        else:
            pods.wait_for_event(pods.create(manifest), reason, "65536 is not one of the 65536 ids")


def test_no_mount_honours_setuid_files_or_devices_but_those_of_dev(cluster, pods):
    claim(cluster, "data")
    volumes = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "host", "hostPath": {"path": "/usr"}},
        {"name": "claimed", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    main = {"volumeMounts": [{"name": item["name"], "mountPath": f"/v/{item['name']}"} for item in volumes]}
    output = pods.output(pod("cut -d ' ' -f 5,6 /proc/self/mountinfo", main=main, volumes=volumes))
    mounts = [line.split(" ") for line in output.splitlines()]
    assert {f"/v/{volume['name']}" for volume in volumes} <= {place for place, _ in mounts}
    masked = {place for place, _ in mounts if place.startswith("/proc/")}  # by /dev/null
    rest = [mount for mount in mounts if not mount[0].startswith("/dev") and mount[0] not in masked]
    # The container's own root comes with it as the runtime's tmpfs.
    assert not [mount for mount in rest if not {"nosuid", "nodev"} <= set(mount[1].split(","))]


def test_pods_have_users_of_their_own_on_the_machine(cluster, pods):
    for name in ("one", "two"):
        name_of_pod = pods.create(pod(name=name, main=SLEEP | {"env": [{"name": "NAME", "value": name}]}))
        pods.wait_for_line(name_of_pod, "up")
    processes = cluster.processes_with("-c", SLEEP["command"][2])
    users = {process.uids().real for process in processes}
    assert len(processes) == 2
    if cluster.root.stat().st_uid == NOBODY:
        assert users == {NOBODY}
    else:
        assert len(users) == 2
        assert min(users) > NOBODY


def test_a_claim_shows_the_files_of_one_pod_to_the_next_as_its_own(cluster, pods):
    claim(cluster, "shared")
    spec = {
        "main": {"volumeMounts": [{"name": "shared", "mountPath": "/shared", "subPath": "below"}]},
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
    }
    pods.output(pod("echo secret > /shared/file && chmod 600 /shared/file", **spec))
    output = pods.output(
        pod("cat /shared/file; stat -c '%u %g %a' /shared/file /shared; rm /shared/file", **spec)
    )
    assert output.splitlines() == [
        "secret",
        "0 0 600",
        "0 0 777",
    ]  # the mode of the volume, as upstream gives it


def test_a_secret_that_only_its_owner_may_read_is_read_by_its_pod(cluster, pods):
    cluster.core.create_namespaced_secret(
        "default", {"metadata": {"name": "login"}, "stringData": {"word": "hidden"}}
    )
    volumes = [{"name": "login", "secret": {"secretName": "login", "defaultMode": 0o400}}]
    main = {"volumeMounts": [{"name": "login", "mountPath": "/login"}]}
    assert pods.output(pod("cat /login/word", main=main, volumes=volumes)) == "hidden"


WATCH = """
import os, time
print("up", flush=True)
seen = set()
while not os.path.exists("/tmp/over"):
    for pid in [name for name in os.listdir("/proc") if name.isdigit() and int(name) > 1]:
        try:
            words = open(f"/proc/{pid}/cmdline", "rb").read()
            if b"launcher.py" in words:
                seen.add("seen")
                memory = open(f"/proc/{pid}/mem", "rb")
                # It may have executed its program between the two.
                if b"launcher.py" in open(f"/proc/{pid}/cmdline", "rb").read():
                    seen.add("memory")
        except OSError:
            pass
print(*sorted(seen))
"""


def test_a_process_that_joins_a_container_cannot_be_read_there(cluster, pods):
    """Until it has found its program, it is a copy of the launcher, with this pod's whole request."""
    long = [*(f"/tmp/{number}" for number in range(8000)), str(Path(sys.executable).parent), "/usr/bin"]
    main = python(WATCH) | {"env": [{"name": "PATH", "value": ":".join(long)}]}
    name = pods.create(pod(main=main))
    pods.wait_for_line(name, "up")
    for _ in range(5):
        cluster.kubectl("exec", name, "--", "true")
    cluster.kubectl("exec", name, "--", "touch", "/tmp/over")
    succeeded = pods.until(name, lambda pod: pod["status"]["phase"] == "Succeeded")
    assert pods.logs(succeeded).splitlines() == ["up", "seen"]


@contextmanager
def listening(path):
    with socket.socket(socket.AF_UNIX) as listener:
        directory = os.open(path.parent, os.O_PATH)
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.close(directory)
        path.chmod(0o777)
        listener.listen()
        yield


def test_a_socket_in_the_home_cannot_be_connected_to(cluster, pods):
    path = cluster.home / "agent.sock"
    with listening(path):
        go = f"(os.chdir({str(path.parent)!r}), socket.socket(socket.AF_UNIX).connect('agent.sock'))"
        assert tried(pods, go) == {go: "FileNotFoundError"}


def test_the_clusters_directory_is_hidden_under_its_other_mounts_too(cluster, pods):
    assert pods.output(pod(f"ls -A {cluster.second}/trainyard 2>/dev/null | wc -l")) == "0\n"
    volumes = [{"name": "other", "hostPath": {"path": str(cluster.second)}}]
    main = {"volumeMounts": [{"name": "other", "mountPath": "/other"}]}
    assert pods.output(pod("ls -A /other/trainyard 2>/dev/null | wc -l", main=main, volumes=volumes)) == "0\n"
    volumes = [{"name": "other", "hostPath": {"path": f"{cluster.second}/trainyard/clusters"}}]
    name = pods.create(pod("find /own", main=main, volumes=volumes))
    pods.wait_for_event(name, "FailedMount", "belongs to the local cluster itself, and is not shown to pods")


def test_of_the_checkout_pods_see_the_kits_own_folders_alone(pods):
    """Beside them lie a clone's .git, .env and kubeconfigs."""
    script = f"ls -A {CHECKOUT}; cat {CHECKOUT}/.git/config {CHECKOUT}/pyproject.toml 2>/dev/null | wc -c"
    shown = pods.output(pod(script))
    *names, size = shown.split()
    assert set(names) <= {*KIT, "tools", ".venv", ".pytest_cache"}  # the last one leads to the cluster
    assert {"localkube", "trainers"} <= set(names) and size == "0"


FILL = """
import time
for path in ("/dev/termination-log", "/etc/hosts"):
    file, size = os.open(path, os.O_WRONLY), 0
    for piece in (64 << 20, 1 << 20, 4096):
        while size < 520 << 20 and attempt(lambda: os.posix_fallocate(file, size, piece)) == "done":
            size += piece
print("full", flush=True)
time.sleep(600)
"""


def test_a_pod_that_fills_what_it_may_write_does_not_keep_others_from_their_secrets(cluster, pods):
    name = pods.create(pod(main=python(TRY + FILL)))
    pods.wait_for_line(name, "full")
    output = pods.output(pod("wc -c < /var/run/secrets/kubernetes.io/serviceaccount/token"))
    assert int(output) > 100
