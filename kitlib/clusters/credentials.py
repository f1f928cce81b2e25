"""The credentials that each provider would use, found in variables and files, and never shown.

No cloud is contacted, so a credential may have expired. The order is that of the clouds' own libraries:
https://docs.aws.amazon.com/boto3/latest/guide/credentials.html and
https://cloud.google.com/docs/authentication/application-default-credentials.
"""

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

from kitlib.display.tables import Table

WHOSE = "aws sts get-caller-identity says whose it is"
COLUMNS = ("provider", "would use", "next")


def credentials(*, environment: Mapping[str, str] | None = None, home: Path | None = None) -> Table:
    """List the credentials that each provider would use, and what to do next.

    Args:
        environment: By default this process's variables.
        home: By default the user's.

    Example:
        >>> credentials()
    """
    env = dict(os.environ if environment is None else environment)
    folder = home or Path.home()
    rows = [
        ("local", "nothing: it needs no account", 'kit.create_cluster("local")'),
        ("existing", *_kubeconfig(env, folder)),
        ("eks", *_amazon(env, folder)),
        ("gke", *_google(env, folder)),
    ]
    return Table(COLUMNS, rows)


def _kubeconfig(env: Mapping[str, str], home: Path) -> tuple[str, str]:
    named = env.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(named) if named else home / ".kube" / "config"
    how = "KUBECONFIG" if named else "kubectl's own file"
    if not path.is_file():
        return f"no kubeconfig: {how}, {path}, is not there", 'give one: create_cluster(…, kubeconfig="…")'
    return f"{how}: {path}", 'kit.create_cluster("existing"), and look at its nodes'


def _amazon(env: Mapping[str, str], home: Path) -> tuple[str, str]:
    profile = env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or ""
    if env.get("AWS_ACCESS_KEY_ID"):
        if not env.get("AWS_SECRET_ACCESS_KEY"):
            return "AWS_ACCESS_KEY_ID, which is half of a key", "set AWS_SECRET_ACCESS_KEY, or unset both"
        unused = f'; the profile "{profile}" is not asked' if profile else ""
        return f"AWS_ACCESS_KEY_ID from the environment{unused}", WHOSE
    if env.get("AWS_WEB_IDENTITY_TOKEN_FILE") and env.get("AWS_ROLE_ARN"):
        return "the role in AWS_ROLE_ARN, by a token file", WHOSE
    files = (
        Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials"),
        Path(env.get("AWS_CONFIG_FILE") or home / ".aws" / "config"),
    )
    name = profile or "default"
    chosen = "AWS_PROFILE" if profile else "nothing else was chosen"
    for file in files:
        if {name, f"profile {name}"} & set(_sections(file)):
            renew = f"if it has expired: aws sso login --profile {name}"
            return f'profile "{name}" in {file} ({chosen})', renew
    if profile:
        return f'profile "{profile}" (AWS_PROFILE), which no file has', "unset it, or: aws configure sso"
    if env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI") or env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        return "the role of this container", WHOSE
    return "nothing was found; on an EC2 instance, its role", "aws configure sso"


def _google(env: Mapping[str, str], home: Path) -> tuple[str, str]:
    named = env.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named and not Path(named).is_file():
        return f"GOOGLE_APPLICATION_CREDENTIALS: {named}, which is not there", "correct it, or unset it"
    folder = Path(env.get("CLOUDSDK_CONFIG") or home / ".config" / "gcloud")
    own = folder / "application_default_credentials.json"
    if not named and not own.is_file():
        return "nothing was found; on a Google machine, its account", "gcloud auth application-default login"
    project = env.get("GOOGLE_CLOUD_PROJECT") or env.get("CLOUDSDK_CORE_PROJECT") or _project(folder)
    found = f"GOOGLE_APPLICATION_CREDENTIALS: {named}" if named else f"gcloud's default credentials: {own}"
    if not project:
        return f"{found}; no project is chosen", "gcloud config set project PROJECT"
    return f'{found}; project "{project}"', f"gcloud services list --enabled --project {project}"


def _project(folder: Path) -> str | None:
    try:
        active = (folder / "active_config").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        active = "default"
    read = _read(folder / "configurations" / f"config_{active}")
    return read.get("core", "project", fallback=None)


def _sections(file: Path) -> list[str]:
    read = _read(file)
    return [*read.sections(), *(["default"] if read.defaults() else [])]


def _read(file: Path) -> configparser.RawConfigParser:
    """Parse an INI file; empty where it is missing or invalid."""
    read = configparser.RawConfigParser(strict=False)
    try:
        read.read_string(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error):
        return configparser.RawConfigParser()
    return read
