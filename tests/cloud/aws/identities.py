"""Whose an access key is. Without a word every key is the instructor's."""

ACCOUNT = "123456789012"
INSTRUCTOR = f"arn:aws:iam::{ACCOUNT}:user/instructor"


class Identities:
    """Access keys and the ARNs of who has them.

    moto knows the keys of users and roles that were made in it; the others are here.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Let every key be the instructor's again."""
        self._known: dict[str, str] = {}
        self._secrets: dict[str, str] = {}

    def add(self, key: str, arn: str, *, secret: str | None = None) -> None:
        """Say whose a key is; with its secret, its signatures of tokens are checked."""
        self._known[key] = arn
        if secret is not None:
            self._secrets[key] = secret

    def secret(self, key: str) -> str | None:
        """Return a key's secret, if it is known."""
        return self._secrets.get(key)

    def arn(self, key: str) -> str:
        """Return the ARN, as STS gives it."""
        return self._known.get(key, INSTRUCTOR)


def principal(arn: str) -> str:
    """Return the IAM ARN behind STS's: of a session, its role; EKS's access entries name these."""
    if ":assumed-role/" not in arn:
        return arn
    head, _, rest = arn.partition(":assumed-role/")
    return f"{head.replace(':sts:', ':iam:')}:role/{rest.split('/')[0]}"
