"""Webhooks and aggregated APIs in pods: the API server reaches them through their Services."""

import base64
import json
import subprocess

import pytest
from kubernetes import client

from .clusters import Pods, eventually, pod, python
from .tls import Authority

SERVER = """
import http.server, json, ssl

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(GET(self.path))

    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(POST(review))

    def answer(self, found):
        body = json.dumps(found if found is not None else {}).encode()
        self.send_response(200 if found is not None else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        print(*words, flush=True)

RULES

server = http.server.ThreadingHTTPServer(("", 8443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print("serving", flush=True)
server.serve_forever()
"""
VALIDATE = """
GET = lambda path: None

def POST(review):
    request = review["request"]
    allowed = "teapot" not in request["object"].get("data", {})
    response = {"uid": request["uid"], "allowed": allowed}
    if not allowed:
        response["status"] = {"code": 418, "message": "no teapots here"}
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}
"""
AGGREGATED = """
GROUP = "brewing.example.org"
NAMES = {"name": "teapots", "singularName": "teapot", "kind": "Teapot"}
RESOURCE = NAMES | {"namespaced": True, "verbs": ["list"]}
META = {"name": "brown", "namespace": "default"}
TEAPOT = {"apiVersion": f"{GROUP}/v1", "kind": "Teapot", "metadata": META}

def GET(path):
    path = path.partition("?")[0].rstrip("/")
    root = f"/apis/{GROUP}/v1"
    if path == root:
        found = {"groupVersion": f"{GROUP}/v1", "resources": [RESOURCE]}
        return {"kind": "APIResourceList", "apiVersion": "v1"} | found
    if path == f"{root}/namespaces/default/teapots":
        return {"kind": "TeapotList", "apiVersion": f"{GROUP}/v1", "items": [TEAPOT]}
    return {} if path in ("/healthz", "/openapi/v2") else None

POST = lambda review: None
"""


@pytest.fixture(scope="module")
def serve(cluster, tmp_path_factory):
    """Return what starts a server in a pod behind a Service, and returns its authority for the API server."""
    made = []

    def start(name, rules):
        directory = tmp_path_factory.mktemp(name)
        authority = Authority(directory, "ca")
        pair = authority.issue(name, host=f"{name}.default.svc")
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "stringData": {"tls.crt": pair.cert.read_text(), "tls.key": pair.key.read_text()},
        }
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"port": 443, "targetPort": 8443}]},
        }
        for thing in (secret, service):
            cluster.kubectl("apply", "-f", "-", stdin=thing)
        manifest = pod(name=name, labels={"app": name}, main=python(SERVER.replace("RULES", rules)))
        manifest["spec"]["volumes"] = [{"name": "tls", "secret": {"secretName": name}}]
        container = manifest["spec"]["containers"][0]
        container["volumeMounts"] = [{"name": "tls", "mountPath": "/tls"}]
        container["readinessProbe"] = {"tcpSocket": {"port": 8443}, "periodSeconds": 1}
        pods.running(manifest)
        made.append(name)
        return base64.b64encode(authority.cert.read_bytes()).decode()

    with Pods(cluster) as pods:
        yield start
    for name in made:
        cluster.kubectl("delete", "--wait=false", "secret", name)
        cluster.kubectl("delete", "--wait=false", "service", name)


def test_a_validating_webhook_in_a_pod_is_asked(cluster, serve):
    bundle = serve("validator", VALIDATE)
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "validator"},
        "webhooks": [
            {
                "name": "validator.example.org",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 5,
                "clientConfig": {
                    "service": {"name": "validator", "namespace": "default", "path": "/validate"},
                    "caBundle": bundle,
                },
                "objectSelector": {"matchLabels": {"check": "me"}},
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["configmaps"],
                    }
                ],
            }
        ],
    }
    cluster.kubectl("apply", "-f", "-", stdin=configuration)
    try:

        def refusal():
            body = {"metadata": {"generateName": "tea-", "labels": {"check": "me"}}, "data": {"teapot": "1"}}
            try:
                cluster.core.create_namespaced_config_map("default", body)
            except client.ApiException as error:
                return json.loads(error.body)["message"]
            return "it was let in"  # the configuration has not reached the API server yet

        eventually(
            refusal, wanted='admission webhook "validator.example.org" denied the request: no teapots here'
        )
        body = {"metadata": {"generateName": "coffee-", "labels": {"check": "me"}}, "data": {"mug": "1"}}
        assert cluster.core.create_namespaced_config_map("default", body).metadata.name
    finally:
        cluster.kubectl("delete", "validatingwebhookconfiguration", "validator")
        cluster.kubectl("delete", "configmap", "-l", "check=me")


def test_an_aggregated_api_in_a_pod_is_served_as_if_it_were_the_api_servers(cluster, serve):
    bundle = serve("brewery", AGGREGATED)
    service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1.brewing.example.org"},
        "spec": {
            "group": "brewing.example.org",
            "version": "v1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": "brewery", "namespace": "default"},
            "caBundle": bundle,
        },
    }
    cluster.kubectl("apply", "-f", "-", stdin=service)
    try:
        there = "apiservice/v1.brewing.example.org"
        cluster.kubectl("wait", "--for=condition=Available", there, "--timeout=120s")

        def teapots():
            command = cluster.kubectl_command("get", "teapots", "-o", "name")
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, preexec_fn=cluster.enter
            )
            return done.stdout.strip()

        eventually(teapots, wanted="teapot.brewing.example.org/brown")
    finally:
        cluster.kubectl("delete", "apiservice", "v1.brewing.example.org")
