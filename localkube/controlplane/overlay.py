"""Compile upstream modules without what a control plane does not need, and with what it lacks: ``-overlay``.

A few files of upstream bring hundreds of packages into the build: helpers of tests that are compiled into
the programs, and a function of the kubelet's that a controller borrows. `build` passes over them. What takes
their place, or adapts an operator's library to the Kubernetes libraries of the control plane, is in the
folder ``overlay``, by the path that it has upstream. In a few files an expression is replaced: components
that waited for whole seconds at their start or at the end of a Job, an API server that described itself
before anybody asked, and operators that look for their certificates in ``/tmp``. No further file differs
from what go.sum pins.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from localkube.errors import LocalClusterError

ADDED = Path(__file__).parent / "overlay"
# By module, the files to pass over. Why each may go, and what it saves, is in docs/building.md.
OMITTED: Mapping[str, Sequence[str]] = {
    "k8s.io/kubernetes": (
        "pkg/kubelet/eviction/*.go",
        "pkg/kubelet/util/util_linux.go",
        "pkg/scheduler/backend/queue/testing.go",
    ),
    "k8s.io/apiserver": ("pkg/admission/plugin/policy/generic/policy_test_context.go",),
    # It describes a type that the Kubernetes libraries no longer have, to a generator of documents alone.
    "github.com/kubeflow/trainer/v2": ("pkg/apis/trainer/v1alpha1/zz_generated.openapi.go",),
}
_CERTIFICATES = {"CertDir:        certDir,": 'CertDir: os.TempDir() + certDir[len("/tmp"):],'}
# Upstream asks a second later, and again each second, whether its own server answers yet.
_SOON = ("wait.Poll(1*time.Second,", "wait.PollImmediate(20*time.Millisecond,")
_COUNTED = "\t\tjm.enqueueSyncJobBatched(logger, job)\n"
_COUNTED_SOON = """\
		if curPod.Status.Phase == v1.PodSucceeded {
			jm.enqueueSyncJobInternal(logger, job, 50*time.Millisecond)
		} else {
			jm.enqueueSyncJobBatched(logger, job)
		}
"""
_ORPHAN = """\
		return
	}

	// Otherwise, it's an orphan.
	// Clean the finalizer.
	if hasJobTrackingFinalizer(curPod)"""
_LOCAL = "\t\ts.AddUpdateAPIService(handler, &localAPIService)\n"
_MANY_NAMES = "for key := range s.apiServiceInfo {\n"
# By module and file, expressions and what takes their place.
EDITED: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    # The only member elects itself once it has applied its log, and not up to a second later.
    "go.etcd.io/etcd/server/v3": {
        "etcdserver/server.go": {
            "ticks := s.Cfg.ElectionTicks - 1": "ticks := 1\n"
            "for s.getLead() == 0 && s.ctx.Err() == nil { s.r.tick(); time.Sleep(time.Millisecond) }",
        }
    },
    "k8s.io/apiserver": {
        # Documents for `kubectl explain` and the like are made when somebody asks for them.
        "pkg/admission/plugin/policy/mutating/patch/typeconverter.go": {
            "type typeConverterManager struct {": "type typeConverterManager struct {\n\tonUse",
            "wait.PollUntilContextCancel(ctx,": "t.poll(ctx, wait.PollUntilContextCancel,",
            "gv := gvk.GroupVersion()": "t.use()\n\tgv := gvk.GroupVersion()",
        },
        "pkg/server/genericapiserver.go": {
            ".InstallV2(": ".InstallV2OnRequest(s.delegationTarget.NextDelegate() == nil, ",
            ".InstallV3(": ".InstallV3OnRequest(",
        },
        # Requests that come before the informers wait for these.
        "pkg/admission/handler.go": {"time.After(100 * time.": "time.After(10 * time."},
        "pkg/server/options/serving_with_loopback.go": {
            "certutil.GenerateSelfSignedCertKeyWithOptions(": "selfSigned(",
        },
        "pkg/storage/storagebackend/factory/etcd3.go": {
            "[]grpc.DialOption{": "[]grpc.DialOption{\n\t\tdialAgainSoon,",
        },
    },
    "k8s.io/controller-manager": {
        "app/helper.go": {"wait.PollImmediate(time.Second,": "wait.PollImmediate(20*time.Millisecond,"}
    },
    "k8s.io/kube-aggregator": {
        "pkg/controllers/openapiv3/aggregator/aggregator.go": {
            f"{_LOCAL}\t\ts.UpdateAPIServiceSpec(apiServiceName)\n": _LOCAL,
            _MANY_NAMES: f"{_MANY_NAMES}\t\tif IsLocalAPIService(key) {{ continue }}\n",
            "merged := s.getOpenAPIV3Root()": "s.updateLocal()\n\tmerged := s.getOpenAPIV3Root()",
            "r *http.Request) {\n\ts.rwMutex": "r *http.Request) {\n\ts.updateLocal()\n\ts.rwMutex",
        }
    },
    "k8s.io/kubernetes": {
        # A pod's success is counted at once; a failure, as upstream, with what else happens within a second:
        # the other pods, which are then deleted, have reported by that time.
        "pkg/controller/job/job_controller.go": {_COUNTED + _ORPHAN: _COUNTED_SOON + _ORPHAN},
        "pkg/registry/rbac/rest/storage_rbac.go": {
            f"err := {_SOON[0]}": f"if rolesAreKnown() {{ return nil }}\nerr := {_SOON[1]}",
        },
        "pkg/registry/scheduling/rest/storage_scheduling.go": dict([_SOON]),
        "pkg/scheduler/eventhandlers.go": {
            "syncedPollPeriod = 100 * time.": "syncedPollPeriod = 10 * time.",
        },
    },
    # In plain mode, a statically linked program sees no /tmp but the host's.
    "github.com/kubeflow/training-operator": {"pkg/cert/cert.go": _CERTIFICATES},
    "github.com/kubeflow/trainer/v2": {
        "pkg/util/cert/cert.go": {
            'certDir = "/tmp/k8s-webhook-server': 'certDir = os.TempDir() + "/k8s-webhook-server',
        }
    },
    "sigs.k8s.io/jobset": {"pkg/util/cert/cert.go": _CERTIFICATES},
}


def digest_parts(modules: Iterable[str]) -> list[bytes]:
    """List the inputs of an overlay, for fingerprints."""
    parts = [
        json.dumps([module, OMITTED.get(module, ()), EDITED.get(module, {})]).encode() for module in modules
    ]
    for module in modules:
        for path in sorted((ADDED / module).rglob("*.go")):
            parts.append(f"{path.relative_to(ADDED)}\0".encode() + path.read_bytes())
    return parts


def write_overlay(
    go: str, sources: Path, modules: Sequence[str], *, staging: Path, environment: Mapping[str, str]
) -> tuple[Path, list[str]]:
    """Fetch these modules; return the folder in which ``go build`` overlays them, and its flags.

    Go overlays no file of its module cache. So each module is replaced by a link to its folder there, after
    go has checked the module against go.sum. Go writes the paths of replaced modules into a program: they are
    relative to a copy of the main module, so that they, and the program, are the same wherever it is built.
    """
    if not modules:
        return sources, []
    folders = _fetch(go, sources, modules, environment)
    links, work = staging / "upstream", staging / "module"
    shutil.copytree(sources, work, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (staging / "edited").mkdir()
    replaced: dict[str, str] = {}
    edits = []
    for module in modules:
        link = links / module
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folders[module])
        edits.append(f"-replace={module}=../upstream/{module}")
        for pattern in OMITTED.get(module, ()):
            replaced |= {str(link / path.relative_to(link)): "" for path in link.glob(pattern)}
        for path in (ADDED / module).rglob("*.go"):
            replaced[str(link / path.relative_to(ADDED / module))] = str(path)
        for file, replacements in EDITED.get(module, {}).items():
            edited = staging / "edited" / f"{module}/{file}".replace("/", "-")
            text = (link / file).read_text(encoding="utf-8")
            for before, after in replacements.items():
                text = _replace(text, before, after)
            edited.write_text(text, encoding="utf-8")
            replaced[str(link / file)] = str(edited)
    _go([go, "mod", "edit", *edits], work, environment)
    overlay = staging / "overlay.json"
    overlay.write_text(json.dumps({"Replace": replaced}), encoding="utf-8")
    return work, [f"-overlay={overlay}"]


def _replace(text: str, before: str, after: str) -> str:
    assert text.count(before) == 1, f"not once in the file: {before}"
    return text.replace(before, after)


def clean(staging: Path) -> None:
    for name in ("upstream", "module", "edited"):
        shutil.rmtree(staging / name, ignore_errors=True)
    (staging / "overlay.json").unlink(missing_ok=True)


def _fetch(go: str, sources: Path, modules: Sequence[str], environment: Mapping[str, str]) -> dict[str, Path]:
    text = _go([go, "mod", "download", "-json", *modules], sources, environment)
    decoder, folders = json.JSONDecoder(), {}
    while text := text.lstrip():
        module, end = decoder.raw_decode(text)
        folders[module["Path"]] = Path(module["Dir"])
        text = text[end:]
    # A module that replaces another of a different name would be listed under its own.
    missing = [module for module in modules if module not in folders]
    assert not missing, f"go downloaded {sorted(folders)}, and not {missing}"
    return folders


def _go(command: list[str], sources: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=sources,
        env=dict(environment),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise LocalClusterError(
            f"the modules cannot be fetched: {done.stderr.strip() or done.stdout.strip()}",
            about=" ".join(command[:3]),
            fix="set GOPROXY to a server that you can reach, and try again",
        )
    return done.stdout
