"""The environment variables of a container, from its specification.

Pure: the caller fetches the objects of ``references``, and passes them in. The rules are the kubelet's, of
Kubernetes 1.37: https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
Not here: variables that the image, the runtime and the kit set (PATH, HOSTNAME, threads, GPUs), to which no
manifest can refer.
"""

import base64
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from localkube.api_path import Object
from localkube.kubelet.containers import downward_api
from localkube.kubelet.containers.env_file import EnvFile
from localkube.kubelet.containers.expansion import ArgumentSpace, ConfigError, expand

REPLACED = 2  # times the kernel's limit, to allow for variables that later ones of the same name replace


def env_files(container: Object) -> set[tuple[str, str]]:
    """Collect the files, by volume and path, to which the container's ``env`` refers."""
    sources = [(variable.get("valueFrom") or {}).get("fileKeyRef") for variable in container.get("env") or []]
    return {(source["volumeName"], source["path"]) for source in sources if source}


def references(container: Object) -> tuple[set[str], set[str]]:
    """Collect the names of the ConfigMaps and Secrets that the container's ``env`` and ``envFrom`` use."""
    configmaps: set[str] = set()
    secrets: set[str] = set()
    for source in container.get("envFrom") or []:
        _collect(source, "configMapRef", configmaps)
        _collect(source, "secretRef", secrets)
    for variable in container.get("env") or []:
        source = variable.get("valueFrom") or {}
        _collect(source, "configMapKeyRef", configmaps)
        _collect(source, "secretKeyRef", secrets)
    return configmaps, secrets


def service_environment(pod: Object, services: Iterable[Object]) -> dict[str, str]:
    """Build the variables by which a pod finds services: ``REDIS_SERVICE_HOST``, ``REDIS_PORT`` and so on.

    Those of ``default/kubernetes`` always; those of the services in the pod's namespace unless
    ``enableServiceLinks`` is false. A service without an address has none.

    Raises:
        ConfigError: They exceed the kernel's limit for a process.
    """
    namespace = pod["metadata"]["namespace"]
    links = pod["spec"].get("enableServiceLinks", True)
    variables: dict[str, str] = {}
    work = ArgumentSpace(times=REPLACED)
    for service in services:
        metadata = service["metadata"]
        is_master = (metadata["namespace"], metadata["name"]) == ("default", "kubernetes")
        if is_master or (links and metadata["namespace"] == namespace):
            for name, value in _service_variables(service).items():
                work.add(f"environment variable {name}", name, value)
                variables[name] = value
    return variables


def container_environment(
    container: Object,
    pod: Object,
    *,
    node: Object,
    configmaps: Mapping[str, Object],
    secrets: Mapping[str, Object],
    service_env: Mapping[str, str],
    files: Mapping[tuple[str, str], bytes] | None = None,
    pod_ips: Sequence[str] = (),
    host_ips: Sequence[str] = (),
) -> dict[str, str]:
    """Build the variables that the pod gives to one container; ``$(NAME)`` refers to them alone.

    Later wins: ``service_env``, ``envFrom`` in order, ``env`` in order. A value may refer to
    variables of ``envFrom``, to those declared before it, and to those of services.

    Args:
        node: The v1.Node, whose ``status.allocatable`` is the default for limits that are not set.
        configmaps: The ConfigMaps of the pod's namespace that exist, by name (see ``references``).
        secrets: The same for Secrets, with ``data`` in base64 as the API gives it.
        files: The content of those of ``env_files`` that can be read.
    """
    declared: dict[str, str] = {}
    read = {place: EnvFile(text) for place, text in (files or {}).items()}
    sources = _Sources(container, pod, node, configmaps, secrets, read, pod_ips, host_ips)
    work = ArgumentSpace(times=REPLACED)
    for source in container.get("envFrom") or []:
        for name, value in _all_of(source, configmaps, secrets):
            work.add(f"environment variable {name}", name, value)
            declared[name] = value
    scope = dict(service_env) | declared
    for variable in container.get("env") or []:
        what = f"environment variable {variable['name']}"
        resolved = ""
        if variable.get("value"):
            resolved = expand(variable["value"], scope, what=what)
        elif variable.get("valueFrom"):
            if (source_value := sources.value(variable["valueFrom"])) is None:
                continue
            resolved = source_value
        work.add(what, variable["name"], resolved)
        scope[variable["name"]] = declared[variable["name"]] = resolved
    result = dict(service_env) | declared
    for name, value in result.items():
        if "\0" in value or "\0" in name or "=" in name or not name:
            raise ConfigError(
                f"environment variable {name!r} cannot be passed to a process: it holds a NUL or '='"
            )
    return result


@dataclass(frozen=True)
class _Sources:
    """The objects that ``valueFrom`` refers to."""

    container: Object
    pod: Object
    node: Object
    configmaps: Mapping[str, Object]
    secrets: Mapping[str, Object]
    files: Mapping[tuple[str, str], EnvFile]
    pod_ips: Sequence[str]
    host_ips: Sequence[str]

    def value(self, source: Object) -> str | None:
        """Resolve ``valueFrom``; None for a missing optional reference."""
        if "fieldRef" in source:
            return downward_api.field(
                self.pod, source["fieldRef"]["fieldPath"], pod_ips=self.pod_ips, host_ips=self.host_ips
            )
        if "resourceFieldRef" in source:
            return self._resource(source["resourceFieldRef"])
        if "configMapKeyRef" in source:
            return self._key(source["configMapKeyRef"], self.configmaps, "configmap", "ConfigMap")
        if "secretKeyRef" in source:
            return self._key(source["secretKeyRef"], self.secrets, "secret", "Secret")
        if "fileKeyRef" in source:
            return self._file(source["fileKeyRef"])
        raise ConfigError(f"a variable's value cannot come from {', '.join(source) or 'nothing'} here")

    def _resource(self, reference: Object) -> str:
        name = reference.get("containerName")
        container = downward_api.find_container(self.pod, name) if name else self.container
        allocatable = (self.node.get("status") or {}).get("allocatable") or {}
        return downward_api.resource_field(
            container, reference["resource"], reference.get("divisor"), allocatable
        )

    def _file(self, reference: Object) -> str | None:
        """Read a value from a file; like the kubelet's, the error does not reveal the file's contents."""
        try:
            value = self.files[reference["volumeName"], reference["path"]].value(reference["key"])
        except (KeyError, ValueError) as error:
            raise ConfigError("couldn't parse env file") from error
        if value or reference.get("optional"):
            return value or None
        raise ConfigError(
            f'environment variable key "{reference["key"]}" not found in file "{reference["path"]}"'
        )

    def _key(self, reference: Object, objects: Mapping[str, Object], label: str, kind: str) -> str | None:
        item = _find(reference, objects, label)
        if item is None:
            return None
        data = item.get("data") or {}
        if reference["key"] in data:
            value = data[reference["key"]]
            return _decoded(value) if label == "secret" else value
        if reference.get("optional"):
            return None
        where = f"{self.pod['metadata']['namespace']}/{reference['name']}"
        raise ConfigError(f"couldn't find key {reference['key']} in {kind} {where}")


def _all_of(
    source: Object, configmaps: Mapping[str, Object], secrets: Mapping[str, Object]
) -> Iterator[tuple[str, str]]:
    """Yield names and values, until the caller's limit is exceeded."""
    prefix = source.get("prefix") or ""
    if "configMapRef" in source:
        item = _find(source["configMapRef"], configmaps, "configmap")
        for key, value in ((item or {}).get("data") or {}).items():
            yield prefix + key, value
    elif "secretRef" in source:
        item = _find(source["secretRef"], secrets, "secret")
        for key, value in ((item or {}).get("data") or {}).items():
            yield prefix + key, _decoded(value)


def _find(reference: Object, objects: Mapping[str, Object], label: str) -> Object | None:
    item = objects.get(reference.get("name", ""))
    if item is None and not reference.get("optional"):
        raise ConfigError(f'{label} "{reference.get("name", "")}" not found')
    return item


def _collect(source: Object, kind: str, names: set[str]) -> None:
    if source.get(kind):
        names.add(source[kind].get("name", ""))


def _decoded(value: str) -> str:
    return os.fsdecode(base64.b64decode(value))


def _service_variables(service: Object) -> dict[str, str]:
    spec = service["spec"]
    address, ports = spec.get("clusterIP"), spec.get("ports") or []
    if not address or address == "None" or not ports:
        return {}
    name = _variable(service["metadata"]["name"])
    first = ports[0]
    variables = {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": str(first["port"])}
    variables |= {
        f"{name}_SERVICE_PORT_{_variable(port['name'])}": str(port["port"])
        for port in ports
        if port.get("name")
    }
    variables[f"{name}_PORT"] = _url(address, first)
    for port in ports:
        protocol = port.get("protocol") or "TCP"
        prefix = f"{name}_PORT_{port['port']}_{protocol.upper()}"
        variables |= {
            prefix: _url(address, port),
            f"{prefix}_PROTO": protocol.lower(),
            f"{prefix}_PORT": str(port["port"]),
            f"{prefix}_ADDR": address,
        }
    return variables


def _url(address: str, port: Object) -> str:
    return f"{(port.get('protocol') or 'TCP').lower()}://{address}:{port['port']}"


def _variable(name: str) -> str:
    return name.replace("-", "_").upper()
