"""Which credentials google-auth would use, according to environment variables and files; never their values.

Google Cloud is not contacted, so they may have expired. The order is google-auth's:
https://cloud.google.com/docs/authentication/application-default-credentials.
"""

from collections.abc import Mapping
from pathlib import Path

from trainyard_kit.clouds.cluster_store import read_ini


def find_credentials(environment: Mapping[str, str], home: Path) -> tuple[str, str]:
    """Describe the credentials, and the next step."""
    file = environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    if file and not Path(file).is_file():
        return f"GOOGLE_APPLICATION_CREDENTIALS: {file}, which does not exist", "correct it, or unset it"
    folder = Path(environment.get("CLOUDSDK_CONFIG") or home / ".config" / "gcloud")
    default_file = folder / "application_default_credentials.json"
    if not file and not default_file.is_file():
        return (
            "none were found; a Google machine would use its account",
            "gcloud auth application-default login",
        )
    project = (
        environment.get("GOOGLE_CLOUD_PROJECT")
        or environment.get("CLOUDSDK_CORE_PROJECT")
        or _project(folder)
    )
    origin = (
        f"GOOGLE_APPLICATION_CREDENTIALS: {file}" if file else f"gcloud's default credentials: {default_file}"
    )
    if not project:
        return f"{origin}; no project is set", "gcloud config set project PROJECT"
    return f'{origin}; project "{project}"', f"gcloud services list --enabled --project {project}"


def _project(folder: Path) -> str | None:
    try:
        active = (folder / "active_config").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        active = "default"
    parser = read_ini(folder / "configurations" / f"config_{active}")
    return parser.get("core", "project", fallback=None)
