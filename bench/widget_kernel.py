"""A kernel with a live widget, fed by ranks that report: run as a program, it prints its own costs as JSON.

    python bench/widget_kernel.py CLUSTER RUN SECONDS

It watches a run as a notebook does, and counts what it sends: each message of the widget as the kernel's
session puts it on the wire, with its buffers. CPU is this process's, from the first report on.
"""

import json
import sys
import time

import comm
from comm.base_comm import BaseComm, BuffersType, MaybeDict
from jupyter_client.session import Session

import kitlib as kit


class Counter:
    """Counts the bytes of all messages, as they go to the browser."""

    def __init__(self) -> None:
        self.session = Session(key=b"bench")
        self.bytes = 0
        self.messages = 0

    def count(self, kind: str, data: MaybeDict, buffers: BuffersType) -> None:
        message = self.session.msg(kind, content=data or {})
        parts = [*self.session.serialize(message), *(buffers or [])]
        self.bytes += sum(len(memoryview(part).cast("B")) for part in parts)
        self.messages += 1


def main() -> None:
    """Watch the run for so many seconds, and print what that took."""
    cluster, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    counter = Counter()

    class Counted(BaseComm):
        def publish_msg(
            self,
            msg_type: str,
            data: MaybeDict = None,
            metadata: MaybeDict = None,
            buffers: BuffersType = None,
            **keys: object,
        ) -> None:
            counter.count(msg_type, {"comm_id": self.comm_id, "data": data or {}}, buffers)

    comm.create_comm = Counted
    watch = kit.connect(cluster).run(name).watch()
    view = watch.view()
    while not watch.training.ranks:
        time.sleep(0.05)
    time.sleep(1.0)  # what is drawn for the first time is compiled and imported
    opened, counter.bytes, counter.messages = counter.bytes, 0, 0
    began, busy, steps = time.perf_counter(), time.process_time(), watch.log_tail.total
    time.sleep(seconds)
    took = time.perf_counter() - began
    found = {
        "percent": 100 * (time.process_time() - busy) / took,
        "kilobytes": counter.bytes / took / 1000,
        "messages": counter.messages / took,
        "lines": (watch.log_tail.total - steps) / took,
        "opening_kilobytes": opened / 1000,
        "columns": view.layout_of_frame["columns"],
    }
    watch.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
