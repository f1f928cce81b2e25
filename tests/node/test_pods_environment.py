"""What a container finds when it starts: variables, working directory, threads, devices."""

import json
import secrets

import pytest

from .clusters import pod, python, state

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.fixture(scope="module")
def settings(cluster):
    """The name of a ConfigMap and of a Secret."""
    name = f"settings-{secrets.token_hex(3)}"
    cluster.kubectl(
        "create", "configmap", name, "--from-literal=LEARNING_RATE=0.1", "--from-literal=EPOCHS=3"
    )
    cluster.kubectl("create", "secret", "generic", name, "--from-literal=PASSWORD=not for argv")
    return name


def variables(pods, **parts):
    """Return the environment that a container of a pod with these parts has."""
    main = python(SHOW) | parts.pop("main", {})
    return json.loads(pods.output(pod(main=main, **parts)))


def test_variables_refer_to_earlier_ones_in_values_commands_and_arguments(pods):
    env = [
        {"name": "HOST", "value": "rank-0"},
        {"name": "URL", "value": "tcp://$(HOST):29500"},
        {"name": "LITERAL", "value": "$$(HOST)"},
        {"name": "EARLY", "value": "$(LATE)"},
        {"name": "LATE", "value": "there"},
    ]
    main = {
        "command": ["sh", "-c", "echo $(URL) '$(NOBODY)' $(LATE); env", "--"],
        "args": ["$(HOST)"],
        "env": env,
    }
    lines = pods.output(pod(main=main)).splitlines()
    assert lines[0] == "tcp://rank-0:29500 $(NOBODY) there"
    assert {"URL=tcp://rank-0:29500", "LITERAL=$(HOST)", "EARLY=$(LATE)"} <= set(lines)


def test_hooks_are_not_expanded_and_probes_know_literal_values_alone(pods, settings):
    write = 'echo $1 > /tmp/said; test "$1" = "$2"'
    env = [
        {"name": "SET", "value": "1"},
        {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": settings, "key": "EPOCHS"}}},
    ]
    probe = ["sh", "-c", write, "sh", "$(SET)$(MAP)$(HOME)", "1$$(HOME)"]
    hook = ["sh", "-c", write, "sh", "$(SET)", "$" + "(SET)"]
    main = {
        "env": env,
        "readinessProbe": {"exec": {"command": probe}, "periodSeconds": 1},
        "lifecycle": {"postStart": {"exec": {"command": hook}}},
    }
    pods.running(pod("sleep 600", main=main))


MISSING = {
    "$(HOSTNAME)": "missing value for HOSTNAME",
    "runs/$(NONE)/$(EMPTY)/$(AS)": "missing value for EMPTY, NONE",
    "$(UP)": "unable to provision SubPath `../x`: must not contain '..'",
    "$(ROOT)": "error SubPath `/x` must not be an absolute path",
}


def test_a_path_in_a_volume_without_its_variables_is_refused(pods):
    values = {"EMPTY": "", "UP": "../x", "ROOT": "/x", "AS": "user"}
    env = [{"name": name, "value": value} for name, value in values.items()]
    volumes, names = [{"name": "v", "emptyDir": {}}], {}
    for expression, message in MISSING.items():
        mounts = [{"name": "v", "mountPath": "/out", "subPathExpr": expression}]
        main = {"env": env, "volumeMounts": mounts}
        names[pods.create(pod("ls /out", main=main, volumes=volumes))] = message
    for name, message in names.items():
        refused(pods, name, message)
        pods.wait_for_event(name, "Failed", f"Error: {message}")


def refused(pods, name, message):
    """Wait until a container waits because of its configuration, and check what is said of it."""
    waiting = pods.until(name, lambda pod: state(pod).get("waiting", {}).get("message"))
    assert state(waiting)["waiting"] == {"reason": "CreateContainerConfigError", "message": message}


def from_file(name, **reference):
    file = {"volumeName": "made", "path": "run.env", "key": name} | reference
    return {"name": name, "valueFrom": {"fileKeyRef": file}}


def with_files(script, *env, main="env", **spec):
    """Return a pod whose init container writes files of variables."""
    mounts = [{"name": "made", "mountPath": "/made"}]
    plan = {"name": "plan", "image": "busybox", "command": ["sh", "-c", script], "volumeMounts": mounts}
    volumes = [{"name": "made", "emptyDir": {}}]
    return pod(main, main={"env": list(env)}, initContainers=[plan], volumes=volumes, **spec)


def test_variables_come_from_files_that_an_init_container_wrote(pods):
    script = """
        mkdir /made/deep; echo "WORLD='2'" > /made/run.env
        printf "TEXT='a b\nc # d' # e" > /made/deep/other.env
        ln -s deep/other.env /made/link.env
    """
    env = [
        from_file("WORLD"),
        from_file("TEXT", path="deep/other.env"),
        from_file("LINKED", path="link.env", key="TEXT"),
        from_file("NOBODY", optional=True),
        {"name": "SIZE", "value": "$(WORLD) nodes"},
    ]
    show = (
        "import os; print([os.environ.get(name) for name in ('WORLD', 'TEXT', 'LINKED', 'NOBODY', 'SIZE')])"
    )
    manifest = with_files(script, *env)
    manifest["spec"]["containers"][0] |= python(show)
    assert pods.output(manifest) == "['2', 'a b\\nc # d', 'a b\\nc # d', None, '2 nodes']\n"


BROKEN = (
    "echo WORLD=1 > /made/run.env",
    "true",
    "mkfifo /made/run.env",
    "ln -s ../../../../../../../../etc/os-release /made/run.env",
    "truncate -s 2G /made/run.env",
)


def test_a_container_whose_file_has_no_value_waits_for_it(pods):
    another = with_files("echo \"OTHER='1'\" > /made/run.env", from_file("WORLD"))
    names = {pods.create(another): 'environment variable key "WORLD" not found in file "run.env"'}
    for script in BROKEN:
        names[pods.create(with_files(script, from_file("WORLD")))] = "couldn't parse env file"
    for name, message in names.items():
        refused(pods, name, message)


def test_config_maps_and_secrets_become_variables(pods, settings):
    env_from = [
        {"configMapRef": {"name": settings}, "prefix": "TRAIN_"},
        {"secretRef": {"name": settings}},
        {"configMapRef": {"name": "there-is-none", "optional": True}},
    ]
    env = [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": settings, "key": "EPOCHS"}}}]
    in_container = variables(pods, main={"envFrom": env_from, "env": env})
    expected = {"TRAIN_LEARNING_RATE": "0.1", "TRAIN_EPOCHS": "3", "PASSWORD": "not for argv", "E": "3"}
    assert expected.items() <= in_container.items()


def test_a_container_whose_config_map_is_missing_waits_for_it(pods, cluster):
    name = f"late-{secrets.token_hex(3)}"
    late = pods.create(pod("echo $WORD", main={"envFrom": [{"configMapRef": {"name": name}}]}))
    waiting = pods.until(
        late, lambda pod: state(pod).get("waiting", {}).get("reason") == "CreateContainerConfigError"
    )
    assert name in state(waiting)["waiting"]["message"]
    cluster.kubectl("create", "configmap", name, "--from-literal=WORD=arrived")
    pods.until(late, lambda pod: pod["status"]["phase"] == "Succeeded")
    assert pods.logs(late) == "arrived\n"


def test_the_downward_api_tells_a_container_of_its_pod(pods):
    fields = {
        "NAME": "metadata.name",
        "NAMESPACE": "metadata.namespace",
        "UID": "metadata.uid",
        "APP": "metadata.labels['app']",
        "RANK": "metadata.annotations['trainer/rank']",
        "NODE": "spec.nodeName",
        "ACCOUNT": "spec.serviceAccountName",
        "ADDRESS": "status.podIP",
        "HOST": "status.hostIP",
    }
    env = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
    finished = pods.finish(
        pod(main=python(SHOW) | {"env": env}, labels={"app": "digits"}, annotations={"trainer/rank": "7"})
    )
    facts = json.loads(pods.logs(finished))
    assert {key: facts[key] for key in fields} == {
        "NAME": finished["metadata"]["name"],
        "NAMESPACE": "default",
        "UID": finished["metadata"]["uid"],
        "APP": "digits",
        "RANK": "7",
        "NODE": finished["spec"]["nodeName"],
        "ACCOUNT": "default",
        "ADDRESS": finished["status"]["podIP"],
        "HOST": finished["status"]["hostIP"],
    }


def test_the_command_runs_in_its_working_directory(pods):
    assert pods.output(pod("pwd", main={"workingDir": "/usr/bin"})) == "/usr/bin\n"
    assert (
        pods.output(pod("pwd; touch here", main={"workingDir": "/tmp/made/for/it"})) == "/tmp/made/for/it\n"
    )


@pytest.mark.parametrize(("limit", "count"), [("100m", "1"), ("1500m", "2")])
def test_openmp_and_mkl_start_as_many_threads_as_the_cpu_limit_allows(pods, limit, count):
    in_container = variables(pods, main={"resources": {"limits": {"cpu": limit}, "requests": {"cpu": "10m"}}})
    assert (in_container["OMP_NUM_THREADS"], in_container["MKL_NUM_THREADS"]) == (count, count)


def test_threads_of_openmp_sleep_while_they_wait_for_one_another(pods):
    assert variables(pods)["OMP_WAIT_POLICY"] == "PASSIVE"
    spins = variables(pods, main={"env": [{"name": "OMP_WAIT_POLICY", "value": "ACTIVE"}]})
    assert spins["OMP_WAIT_POLICY"] == "ACTIVE"


def test_the_users_own_environment_stays_outside(pods):
    assert not {"XDG_STATE_HOME", "KUBECONFIG", "VIRTUAL_ENV", "PYTHONPATH"} & variables(pods).keys()
