"""The credentials that boto3 would use, found in variables and files, and never shown.

AWS is not contacted, so they may have expired. The order is boto3's:
https://docs.aws.amazon.com/boto3/latest/guide/credentials.html.
"""

from collections.abc import Mapping
from pathlib import Path

from trainyard_kit.clouds.cluster_store import read_ini

SIGN_IN = "aws login, or aws configure sso"
CONTAINER = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
WAYS = {  # settings of a profile, and what renews them
    "sso_session": "aws sso login",
    "sso_start_url": "aws sso login",
    "login_session": "aws login",
    "aws_access_key_id": "aws configure",
}
WHOSE = "aws sts get-caller-identity says whose it is"


def find_renewal(env: Mapping[str, str], profile: str | None, settings: Mapping[str, str]) -> str:
    """Say how the user signs in again, in the way in which they signed in, by a profile's settings."""
    if not profile and env.get("AWS_ACCESS_KEY_ID"):
        return "export new keys as AWS_ACCESS_KEY_ID and so on: those of the environment are used"
    name = profile or env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"
    option = "" if name == "default" else f" --profile {settings.get('source_profile', name)}"
    return next((f"{way}{option}" for key, way in WAYS.items() if settings.get(key)), SIGN_IN)


def find_credentials(env: Mapping[str, str], home: Path) -> tuple[str, str]:
    """Describe the credentials, and the next step with them."""
    profile = env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or ""
    if env.get("AWS_ACCESS_KEY_ID"):
        if not env.get("AWS_SECRET_ACCESS_KEY"):
            return "AWS_ACCESS_KEY_ID, which is half of a key", "set AWS_SECRET_ACCESS_KEY, or unset both"
        unused = f'; the profile "{profile}" is not asked' if profile else ""
        return f"AWS_ACCESS_KEY_ID from the environment{unused}", WHOSE
    if env.get("AWS_WEB_IDENTITY_TOKEN_FILE") and env.get("AWS_ROLE_ARN"):
        return "the role in AWS_ROLE_ARN, by a token file", WHOSE
    name = profile or "default"
    chosen = "AWS_PROFILE" if profile else "nothing else was chosen"
    for file in _files(env, home):
        if {name, f"profile {name}"} & set(_sections(file)):
            return f'profile "{name}" in {file} ({chosen})', f"if it has expired: {SIGN_IN}"
    if profile:
        return f'profile "{profile}" (AWS_PROFILE), which no file has', f"unset it, or: {SIGN_IN}"
    if any(env.get(variable) for variable in CONTAINER):
        return "the role of this container", WHOSE
    return "nothing was found; on an EC2 instance, its role", SIGN_IN


def _files(env: Mapping[str, str], home: Path) -> tuple[Path, Path]:
    return (
        Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials").expanduser(),
        Path(env.get("AWS_CONFIG_FILE") or home / ".aws" / "config").expanduser(),
    )


def _sections(file: Path) -> list[str]:
    read = read_ini(file)
    return [*read.sections(), *(["default"] if read.defaults() else [])]
