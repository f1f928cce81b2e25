# /// script
# requires-python = ">=3.11"
# dependencies = ["peft>=0.21", "torch>=2.15", "transformers>=5.24"]
# ///
"""Serve a language model over HTTP: one process, standard library alone.

    python serve.py --model mine --port 8080
    curl --data '{"prompt": "def ", "tokens": 32}' localhost:8080/generate

With LoRA's matrices in a folder, the model that they belong to is loaded as well.
"""

import argparse
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MAX_BYTES, MAX_TOKENS = 65536, 256


class ModelHandler(BaseHTTPRequestHandler):
    """Answers GET /healthz, and POST /generate with the text, the pod, and the CPU seconds that it took."""

    model = tokenizer = None
    lock = threading.Lock()  # one text at a time: a second would share the same cores

    def do_GET(self):
        self.answer({"ready": True} if self.path == "/healthz" else {"error": "GET /healthz"})

    def do_POST(self):
        try:
            length = min(int(self.headers["Content-Length"]), MAX_BYTES)
            request = json.loads(self.rfile.read(length))
            text, seconds = self.generate(str(request["prompt"]), min(int(request["tokens"]), MAX_TOKENS))
        except (KeyError, TypeError, ValueError) as error:
            self.answer({"error": f'send {{"prompt": "def ", "tokens": 32}}: {error!r}'}, status=400)
        else:
            self.answer({"text": text, "pod": socket.gethostname(), "cpu_seconds": round(seconds, 4)})

    @torch.inference_mode()
    def generate(self, prompt, count):
        with self.lock:
            began = time.process_time()
            tokens = self.tokenizer(prompt or "\n", add_special_tokens=False, return_tensors="pt")
            length = {"min_new_tokens": count, "max_new_tokens": count}
            (text,) = self.model.generate(**tokens, **length, do_sample=True, temperature=0.7)
            return self.tokenizer.decode(text, skip_special_tokens=True), time.process_time() - began

    def answer(self, content, status=200):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        """Write no line for each request."""


def main():
    parser = argparse.ArgumentParser(description="Serve a language model.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    torch.set_num_threads(1)  # replicas add cores, not threads
    ModelHandler.model = AutoModelForCausalLM.from_pretrained(options.model).eval()
    ModelHandler.tokenizer = AutoTokenizer.from_pretrained(options.model)
    print(f"serving {options.model} at port {options.port}", flush=True)
    ThreadingHTTPServer(("", options.port), ModelHandler).serve_forever()


if __name__ == "__main__":
    main()
