"""The runtime's side of the forkserver: what is sent to it before it is ready waits for it."""

import selectors
import socket

from localkube.runtime import messages
from localkube.runtime.launches import ZygoteClient


def test_a_start_is_handed_to_a_forkserver_that_still_imports_torch():
    with selectors.DefaultSelector() as selector:
        client = ZygoteClient(selector)
        assert not client.runs
        with client.connect() as forkserver:
            assert client.runs
            assert not client.ready
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with ours, theirs:
                assert client.send(theirs, {})
            messages.send(forkserver, {"ready": 1}, [])
            (_, descriptors) = messages.receive(forkserver)
            assert len(descriptors) == 1
            messages.close_all(descriptors)
            for key, _ in selector.select(0):
                key.data()
            assert client.ready
        for key, _ in selector.select(0):
            key.data()
        assert not client.runs
