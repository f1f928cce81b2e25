"""Send requests to a server at a steady rate, whether or not it has answered the ones before.

    python load.py http://my-model/generate --rate 3 --seconds 60

Prints a JSON line for each answer: when it came, the seconds it took, and the pod that gave it.
"""

import argparse
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor


def ask(url, due):
    body = json.dumps({"prompt": "def ", "tokens": 32}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
            pod, error = json.load(answer)["pod"], None
    except OSError as failure:  # also HTTPError and timeouts
        pod, error = None, str(failure)
    line = {"event": "answer", "time": time.time(), "seconds": round(time.time() - due, 3)}
    print(json.dumps(line | {"pod": pod, "error": error}), flush=True)


def main():
    parser = argparse.ArgumentParser(description="Send requests at a steady rate.")
    parser.add_argument("url")
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    began, count = time.time(), int(options.rate * options.seconds)
    with ThreadPoolExecutor(256) as pool:
        for number in range(count):
            due = began + number / options.rate
            time.sleep(max(0, due - time.time()))
            pool.submit(ask, options.url, due)


if __name__ == "__main__":
    main()
