"""Which credentials boto3 would use, according to environment variables and files; never their values.

AWS is not contacted, so they may have expired. The order is boto3's:
https://docs.aws.amazon.com/boto3/latest/guide/credentials.html.
"""

from collections.abc import Mapping
from pathlib import Path

from trainyard_kit.clouds.cluster_store import read_ini

SIGN_IN = "aws login, or aws configure sso"
CONTAINER = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
RENEWALS = {  # by setting of a profile
    "sso_session": "aws sso login",
    "sso_start_url": "aws sso login",
    "login_session": "aws login",
    "aws_access_key_id": "aws configure",
}
IDENTITY = "aws sts get-caller-identity shows the identity"


def find_renewal(env: Mapping[str, str], profile: str | None, settings: Mapping[str, str]) -> str:
    """Return the command that renews the credentials, by the method that the profile's settings use."""
    if not profile and env.get("AWS_ACCESS_KEY_ID"):
        return "export new keys as AWS_ACCESS_KEY_ID and so on: the environment takes precedence"
    name = profile or env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"
    option = "" if name == "default" else f" --profile {settings.get('source_profile', name)}"
    return next((f"{command}{option}" for key, command in RENEWALS.items() if settings.get(key)), SIGN_IN)


def find_credentials(environment: Mapping[str, str], home: Path) -> tuple[str, str]:
    """Describe the credentials, and the next step."""
    profile = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE") or ""
    if environment.get("AWS_ACCESS_KEY_ID"):
        if not environment.get("AWS_SECRET_ACCESS_KEY"):
            return "AWS_ACCESS_KEY_ID without its secret", "set AWS_SECRET_ACCESS_KEY, or unset both"
        unused = f'; the profile "{profile}" is ignored' if profile else ""
        return f"AWS_ACCESS_KEY_ID from the environment{unused}", IDENTITY
    if environment.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environment.get("AWS_ROLE_ARN"):
        return "the role in AWS_ROLE_ARN, with a token file", IDENTITY
    name = profile or "default"
    origin = "AWS_PROFILE" if profile else "default"
    for file in _files(environment, home):
        if {name, f"profile {name}"} & set(_sections(file)):
            return f'profile "{name}" in {file} ({origin})', f"if it has expired: {SIGN_IN}"
    if profile:
        return f'profile "{profile}" (AWS_PROFILE), which is not configured', f"unset it, or: {SIGN_IN}"
    if any(environment.get(variable) for variable in CONTAINER):
        return "the role of this container", IDENTITY
    return "none were found; an EC2 instance would use its role", SIGN_IN


def _files(env: Mapping[str, str], home: Path) -> tuple[Path, Path]:
    return (
        Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials").expanduser(),
        Path(env.get("AWS_CONFIG_FILE") or home / ".aws" / "config").expanduser(),
    )


def _sections(file: Path) -> list[str]:
    parser = read_ini(file)
    return [*parser.sections(), *(["default"] if parser.defaults() else [])]
