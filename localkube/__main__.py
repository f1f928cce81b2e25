"""``python -m localkube VERB``: the local cluster for programs; ``trainyard cluster VERB`` is for people.

Answers are JSON lines on standard output: ``{"progress": …}`` during an operation, at the end one
``{"result": …, "verbs": 1}``, or ``{"error": {"what", "about", "fix"}, "verbs": 1}`` with exit status 1. Only
``kubeconfig`` prints its file, which is YAML. TRAINYARD_VERBS is the caller's version of the verbs; any other
version is refused.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt of the imports below shows no traceback

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from localkube.cluster import discovery
from localkube.cluster.supervisor_process import SupervisorProcess
from localkube.controlplane import progress_deadline
from localkube.errors import LocalClusterError
from localkube.paths import ClusterPaths

VERBS = 1  # incremented when a verb, an option or an answer changes for its callers


def main(arguments: list[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _check_version(os.environ.get("TRAINYARD_VERBS", str(VERBS)))
        options = _parser().parse_args(arguments)
        result = options.run(options)
        if result is not None:
            _print_json({"result": result, "verbs": VERBS})
    except LocalClusterError as error:
        _print_json({"error": error.as_dict(), "verbs": VERBS})
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler and __name__ == "__main__":
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    return 0


def _check_version(caller: str) -> None:
    if caller != str(VERBS):
        what = f"the caller speaks version {caller} of the verbs, and this is version {VERBS}"
        fix = "install trainyard-kit and trainyard-kit-localkube of the same release"
        raise LocalClusterError(what, about="python -m localkube", fix=fix)


def _create(options: argparse.Namespace) -> dict[str, Any]:
    with _supervisor(options.name) as supervisor:
        return _create_with(options, supervisor)


def _supervisor(name: str) -> contextlib.AbstractContextManager[SupervisorProcess | None]:
    """Start the supervisor of a cluster that does not run, beside the imports that create it."""
    discovery.check_name(name)
    paths = ClusterPaths(name)
    with contextlib.suppress(PermissionError):  # which is reported when its directory is made
        if discovery.alive(paths):
            return contextlib.nullcontext()
    return SupervisorProcess(paths)


def _create_with(options: argparse.Namespace, supervisor: SupervisorProcess | None) -> dict[str, Any]:
    # Imported where they are used: most commands only read a cluster's state, and should answer at once.
    from localkube.cluster import lifecycle
    from localkube.config import ClusterSpec, memory_bytes

    shape = {field.name: getattr(options, field.name) for field in fields(ClusterSpec)}
    shape |= {
        "labels": dict(map(_parse_label, options.labels)),
        "memory": memory_bytes(options.memory) if options.memory else None,
        "container_log_max_size": memory_bytes(options.container_log_max_size),
    }
    spec = ClusterSpec(**shape)
    seconds = options.progress_deadline
    return lifecycle.create(
        options.name, spec=spec, report=_reporter(), progress_seconds=seconds, supervisor=supervisor
    )


def _gpus(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _start(options: argparse.Namespace) -> dict[str, Any]:
    from localkube.cluster import lifecycle

    return lifecycle.start(options.name, report=_reporter(), progress_seconds=options.progress_deadline)


def _scale(options: argparse.Namespace) -> dict[str, Any]:
    from localkube.cluster import lifecycle

    return lifecycle.scale(options.name, options.nodes, report=_reporter())


def _report(text: str) -> None:
    _print_json({"progress": text})


def _reporter() -> Callable[[str], None]:
    start = time.monotonic()
    return lambda text: _print_json({"progress": text, "seconds": round(time.monotonic() - start, 1)})


def _stop_or_delete(options: argparse.Namespace) -> dict[str, Any]:
    from localkube.cluster import removal

    end = {"stop": removal.stop, "delete": removal.delete}[options.verb]
    return end(options.name, report=_reporter())


def _node(options: argparse.Namespace) -> dict[str, Any]:
    return discovery.request(options.name, {"verb": options.switch, "node": options.node})


def _link(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Shape, remove or list the links between nodes; the answer is always the list."""
    named = ("remove", "bandwidth", "latency")
    request = {"verb": "link", "ends": options.end, **{name: getattr(options, name) for name in named}}
    return discovery.request(options.name, request)


def _show(options: argparse.Namespace) -> dict[str, Any]:
    """Show the packages of this environment to a running cluster's containers."""
    from localkube.cluster import preparation
    from localkube.kubelet.kubelet_config import KubeletConfig

    config = KubeletConfig.read(ClusterPaths(options.name).root / "kubelet.json")
    users, plain = config.ids.first, config.plain is not None
    content = preparation.packages(config.environment, options.entry, pod_users=users, plain=plain)
    discovery.request(options.name, {"verb": "show", "content": content})
    return {"refused": content["refused"]}


def _cache(options: argparse.Namespace) -> list[dict[str, Any]]:
    from localkube.cluster import cache

    entries = cache.clear(options.what) if options.clear else cache.contents()
    return [asdict(entry) for entry in entries]


def _doctor(options: argparse.Namespace) -> dict[str, Any]:
    from localkube import host
    from localkube.cluster.seccomp import compile_filter
    from localkube.controlplane import binaries

    kubernetes = binaries.planned_version()
    report = {"seccomp": bool(compile_filter()), "kubernetes": kubernetes, "overload": _overload()}
    return host.inspect_host().as_dict() | report


def _overload() -> list[dict[str, str]]:
    from localkube.kubelet.resources.cgroup_hierarchy import machine_processes
    from localkube.kubelet.resources.overload import overloads
    from localkube.paths import existing, state_dir

    return overloads(existing(state_dir()), processes=machine_processes())


def _status(options: argparse.Namespace) -> dict[str, Any]:
    return discovery.status(options.name) | {"overload": _overload()}


def _kubectl(options: argparse.Namespace) -> list[str]:
    from localkube.controlplane import binaries

    return binaries.obtain(report=_report).argv("kubectl")


def _images(options: argparse.Namespace) -> list[dict[str, Any]]:
    from localkube.kubelet.images import listing

    return listing.rows()


def _stand_in(options: argparse.Namespace) -> str:
    """Name the stand-in for an image that cannot be pulled; empty for stored images and the kit's own."""
    from localkube.kubelet.images import image_table, store

    entry, stored = image_table.stand_in(options.image), None
    with contextlib.suppress(store.InvalidReference):
        stored = store.find(options.image)
    return entry.shown if stored is None and not entry.replaces(options.image) else ""


def _get_images(options: argparse.Namespace) -> list[dict[str, Any]]:
    from localkube.controlplane import programs

    recipes = programs.cached(options.name) if options.here else programs.obtain(options.name, report=_report)
    return [
        {"name": recipe.name, "version": recipe.version, "folder": str(recipe.folder)} for recipe in recipes
    ]


def _image_store(options: argparse.Namespace) -> Any:
    from localkube.controlplane import image_store

    match options.action:
        case "pull":
            return image_store.pull(options.operand[0], platform=options.platform, report=_report)
        case "load":
            return image_store.load(Path(options.operand[0]).absolute(), report=_report)
        case "save":
            return image_store.save(options.operand, options.output)
        case "list":
            return image_store.contents()
        case "remove":
            return image_store.remove(options.operand)
    return image_store.prune(everything=options.all)


def _bundle(options: argparse.Namespace) -> dict[str, Any]:
    from localkube.bundles import pack, unpack

    if options.action == "use":
        return unpack.use_bundle(options.file, report=_report)
    return pack.create_bundle(
        options.file, with_wheels=not options.without_wheels, images=options.image, report=_report
    )


def _list(options: argparse.Namespace) -> list[dict[str, Any]]:
    return [discovery.status(name) for name in discovery.names()]


def _parse_label(label: str) -> tuple[str, str]:
    key, equals, value = label.partition("=")
    if not equals:
        raise LocalClusterError("a label is KEY=VALUE", about=label, fix="write --label zone=a")
    return key, value


def _kubeconfig(options: argparse.Namespace) -> None:
    path = ClusterPaths(options.name).kubeconfig
    if not path.exists():
        raise LocalClusterError(
            "there is no such cluster",
            about=options.name,
            fix="`python -m localkube list` lists the clusters",
        )
    sys.stdout.write(path.read_text())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m localkube", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_create(verbs)
    for verb, run, summary in (
        ("status", _status, "show a cluster's state, shape and processes"),
        ("start", _start, "start a stopped cluster, or its stopped components"),
        ("stop", _stop_or_delete, "end a cluster's processes; objects and volumes are kept"),
        ("delete", _stop_or_delete, "delete a cluster: processes, network and files"),
        ("kubeconfig", _kubeconfig, "print a cluster's kubeconfig"),
    ):
        named = verbs.add_parser(verb, help=summary)
        named.add_argument("name")
        named.set_defaults(run=run, verb=verb)
        if run is _start:
            _add_progress_deadline(named)
    _add_nodes(verbs)
    _add_cache(verbs)
    verbs.add_parser("list", help="list the clusters").set_defaults(run=_list)
    verbs.add_parser("kubectl", help="print the command of the kit's own kubectl").set_defaults(run=_kubectl)
    verbs.add_parser("doctor", help="show what this machine can do").set_defaults(run=_doctor)
    return parser


def _add_create(verbs: Any) -> None:
    create = verbs.add_parser("create", help="start a cluster")
    create.add_argument("name")
    create.add_argument("--nodes", type=int, default=4)
    create.add_argument("--cpus", type=float, help="cores of each node")
    create.add_argument("--memory", help="memory of each node, such as 2Gi")
    create.add_argument("--gpus", type=_gpus, help="GPUs that each node declares: 8, or H100,count=8")
    create.add_argument("--racks", type=int, help="racks that the nodes are divided among: rack-a, rack-b")
    create.add_argument("--label", action="append", default=[], dest="labels", metavar="KEY=VALUE")
    create.add_argument("--port", type=int, default=0, help="port of the API on 127.0.0.1")
    create.add_argument("--container-log-max-size", default="10Mi", metavar="SIZE")
    create.add_argument("--container-log-max-files", type=int, default=5, metavar="NUMBER")
    create.add_argument(
        "--images", default="auto", metavar="stand-in|pull|auto", help="how images are obtained"
    )
    create.add_argument(
        "--pid-max", type=int, metavar="NUMBER", help="processes and threads that the machine allows in all"
    )
    create.add_argument(
        "--pod-pids-limit", type=int, default=4096, metavar="NUMBER", help="processes and threads of a pod"
    )
    create.add_argument(
        "--eviction-hard",
        metavar="THRESHOLDS",
        help="as a kubelet's: memory.available<100Mi,nodefs.available<10%%; empty for none",
    )
    create.add_argument(
        "--eviction-pressure-transition-period",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long a node still reports pressure that has passed",
    )
    create.add_argument(
        "--token-webhook",
        metavar="URL",
        help="a server on 127.0.0.1 that authenticates tokens, by TokenReview",
    )
    create.add_argument(
        "--no-warm", action="store_false", dest="warm", help="start every container's Python afresh"
    )
    create.add_argument(
        "--mode",
        choices=("auto", "namespaces", "plain"),
        default=os.environ.get("TRAINYARD_MODE", "auto"),
        help="how pods are isolated; by default as well as this machine allows (TRAINYARD_MODE)",
    )
    _add_progress_deadline(create)
    create.set_defaults(run=_create)


def _add_nodes(verbs: Any) -> None:
    node = verbs.add_parser("node", help="stop or start a node, isolate it from the network or reconnect it")
    node.add_argument("switch", choices=("stop", "shutdown", "start", "isolate", "reconnect"))
    node.add_argument("name", help="the cluster's")
    node.add_argument("node")
    node.set_defaults(run=_node)
    link = verbs.add_parser(
        "link", help="list the links between nodes, or limit that of a node or between two ends"
    )
    link.add_argument("name", help="the cluster's")
    link.add_argument("end", nargs="*", help="a node, or two nodes, racks or zones")
    link.add_argument("--bandwidth", default="", help="such as 100Mbit, in each direction")
    link.add_argument("--latency", default="", help="such as 2ms, one way")
    link.add_argument("--remove", action="store_true", help="remove the limits of these ends, or all")
    link.set_defaults(run=_link)
    show = verbs.add_parser("show", help="let a cluster's containers import what this Python can")
    show.add_argument("name")
    show.add_argument("entry", nargs="*", help="entries of sys.path")
    show.set_defaults(run=_show)
    scale = verbs.add_parser("scale", help="restart a cluster with another number of nodes")
    scale.add_argument("name")
    scale.add_argument("nodes", type=int)
    scale.set_defaults(run=_scale)


def _add_cache(verbs: Any) -> None:
    cache = verbs.add_parser("cache", help="list the files on disk, and those that are not needed")
    cache.add_argument("--clear", action="store_true", help="remove what is not needed")
    cache.add_argument("--what", help="remove all of one kind that no cluster uses")
    cache.set_defaults(run=_cache)
    verbs.add_parser("images", help="list the programs that stand in for images").set_defaults(run=_images)
    stand_in = verbs.add_parser("stand-in", help="say what stands in for an image")
    stand_in.add_argument("image")
    stand_in.set_defaults(run=_stand_in)
    get = verbs.add_parser("get-images", help="obtain the programs that images run")
    get.add_argument("name", nargs="+")
    get.add_argument("--here", action="store_true", help="list those already obtained, and obtain none")
    get.set_defaults(run=_get_images)
    store = verbs.add_parser("image-store", help="pull, load, save, list, remove or prune images")
    store.add_argument("action", choices=("pull", "load", "save", "list", "remove", "prune"))
    store.add_argument("operand", nargs="*", help="references, or the file to load")
    store.add_argument("--platform", default="", help="such as linux/arm64")
    store.add_argument("--output", type=lambda path: Path(path).absolute(), help="the file to save to")
    store.add_argument("--all", action="store_true", help="prune also images that no container uses")
    store.set_defaults(run=_image_store)
    bundle = verbs.add_parser("bundle", help="make or use one file with all that is fetched or built")
    bundle.add_argument("action", choices=("create", "use"))
    bundle.add_argument("file", type=lambda path: Path(path).absolute())
    bundle.add_argument("--without-wheels", action="store_true")
    bundle.add_argument("--image", action="append", default=[], metavar="REFERENCE")
    bundle.set_defaults(run=_bundle)


def _add_progress_deadline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--progress-deadline",
        type=float,
        default=progress_deadline.SECONDS,
        metavar="SECONDS",
        help="fail when the start has made no progress for this long (%(default)s)",
    )


def _print_json(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
