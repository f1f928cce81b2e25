"""A follower of a log with nothing to it: what comes from the API server goes to standard output in blocks.

A program of its own, which takes a processor as kubectl does: ``python plain_follower.py URL CA CERT KEY``.
"""

import http.client
import os
import ssl
import sys
from urllib.parse import urlsplit

BLOCK = 1 << 18


def main() -> None:
    url, authority, certificate, key = sys.argv[1:]
    where = urlsplit(url)
    tls = ssl.create_default_context(cafile=authority)
    tls.load_cert_chain(certificate, key)
    connection = http.client.HTTPSConnection(where.hostname or "", where.port, context=tls)
    connection.request("GET", f"{where.path}?{where.query}")
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        sys.exit(f"{url}: {answer.status} {answer.read(500)!r}")
    while block := answer.read1(BLOCK):
        os.write(sys.stdout.fileno(), block)


if __name__ == "__main__":
    main()
