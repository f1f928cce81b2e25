"""Credential plugins of kubeconfigs: programs that print a token or a certificate.

The Kubernetes client's own runner has no time limit, and gives plugins its terminal: one that prompts there
waits forever, invisibly in a notebook.
https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

import json
import os
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kitlib.k8s.manifests import Object

SHOWN = 2000  # characters of what it printed
SECONDS = 90  # a program may open a browser, and wait for what its user does there
EARLY = timedelta(seconds=30)  # how long before its expiry a token is renewed


class CredentialPlugin:
    """The plugin of one user, run without a terminal and within `SECONDS`.

    Args:
        entry: The kubeconfig's ``exec``.
        server: The cluster, whose address and certificate it gets if its entry requests them.

    Attributes:
        status: The credential that it printed: ``token``, or a certificate; empty after a failure.
        failure: Why there is no credential: the plugin's own message.
    """

    def __init__(self, entry: Mapping[str, Any], server: Mapping[str, Any]) -> None:
        self.entry, self.status = entry, dict[str, Any]()
        self.expected = {"apiVersion": entry["apiVersion"], "kind": "ExecCredential"}
        self.specification: Object = {"interactive": False}
        if entry.get("provideClusterInfo"):
            extensions = {item["name"]: item["extension"] for item in server.get("extensions") or ()}
            more = {"config": extensions.get("client.authentication.k8s.io/exec")}
            self.specification["cluster"] = {**server, **more}
        self.failure = self.run()

    def run(self) -> str:
        """Run it, and read its credential; return the reason if it has none."""
        command = [self.entry["command"], *(self.entry.get("args") or [])]
        variables = {variable["name"]: variable["value"] for variable in self.entry.get("env") or []}
        info = {"KUBERNETES_EXEC_INFO": json.dumps(self.expected | {"spec": self.specification})}
        self.status = {}
        try:
            done = subprocess.run(
                command,
                env=os.environ | info | variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                start_new_session=True,  # without a terminal of its own
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            words = _text(error.stderr or error.stdout or b"nothing")[-SHOWN:]
            late = f"did not end within {SECONDS} s, and has no terminal to ask in"
            return f"{command[0]} {late}; it said: {words}; run it once in a terminal"
        except OSError as error:
            return f"{command[0]}: {error}; {self.entry.get('installHint', '')}".rstrip("; ")
        if done.returncode == 0:
            words = self._read(_text(done.stdout))
            return words and f"{command[0]} {words}"
        words = _text(done.stderr) or _text(done.stdout)
        return words[-SHOWN:] or f"{command[0]} ended with {done.returncode}"

    def renew(self) -> str:
        """Run it again where its credential ends; return the token."""
        until = self.status.get("expirationTimestamp")
        if until and datetime.fromisoformat(until) < datetime.now(UTC) + EARLY:
            self.failure = self.run()
        return str(self.status.get("token") or "")

    def _read(self, output: str) -> str:
        """Read a credential; return its problem, empty if it can be used.

        https://kubernetes.io/docs/reference/config-api/client-authentication.v1/
        """
        try:
            credential = json.loads(output)
            status = credential.get("status") or {}
            until = status.get("expirationTimestamp")
            ended = until and datetime.fromisoformat(until) < datetime.now(UTC)
            usable = status.get("token") or (
                status.get("clientCertificateData") and status.get("clientKeyData")
            )
        except (ValueError, TypeError, AttributeError):
            return f"printed no ExecCredential: {output.strip()[:200] or 'nothing'}"
        for key, value in self.expected.items():
            if credential.get(key) != value:
                return f"printed the {key} {credential.get(key)!r}, and not {value!r}"
        if not usable or ended:
            at = f"a token that has expired, at {until}"
            return f"printed {at if usable else 'an ExecCredential without a token'}"
        self.status = status
        return ""


def _text(output: bytes) -> str:
    return output.decode(errors="replace").strip()
