"""A worker's stream of tasks: one for one, opened again after an error, and ended by another thread."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from parameter_server import channels, protocol_pb2_grpc
from parameter_server.protocol_pb2 import Progress, Task


class Master(protocol_pb2_grpc.MasterServicer):
    """Answer with the worker's number; end the stream after 10, fail at 20, be silent at 30."""

    def __init__(self) -> None:
        self.streams, self.silent = 0, threading.Event()

    def Tasks(self, requests, context):
        self.streams += 1
        for request in requests:
            if request.worker == 20:
                context.abort(grpc.StatusCode.UNAVAILABLE, "not ready")
            if request.worker == 30:
                self.silent.set()
                continue
            yield Task(id=request.worker)
            if request.worker == 10:
                return


@contextmanager
def tasks():
    master = Master()
    server = grpc.server(ThreadPoolExecutor(4))
    protocol_pb2_grpc.add_MasterServicer_to_server(master, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with channels.connect(f"127.0.0.1:{port}") as channel:
            yield master, channels.StreamedCalls(protocol_pb2_grpc.MasterStub(channel).Tasks)
    finally:
        server.stop(grace=0).wait()


def test_requests_are_answered_one_by_one_over_one_stream():
    with tasks() as (master, stream):
        assert [stream(Progress(worker=number)).id for number in range(3)] == [0, 1, 2]
        assert master.streams == 1


@pytest.mark.parametrize("number", [10, 20])
def test_after_the_end_of_a_stream_the_same_request_opens_another(number):
    with tasks() as (master, stream):
        if number == 10:
            stream(Progress(worker=10))
            number = 11
        with pytest.raises(grpc.RpcError) as refused:
            stream(Progress(worker=number))
        assert refused.value.code() in channels.TRANSIENT
        assert channels.call_with_retry(stream, Progress(worker=1), seconds=20).id == 1
        assert master.streams == 2


def test_another_thread_can_end_the_wait_for_a_silent_master():
    with tasks() as (master, stream), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(stream, Progress(worker=30))
        assert master.silent.wait(20)
        stream.close()
        with pytest.raises(grpc.RpcError) as ended:
            waiting.result(20)
        assert ended.value.code() in channels.TRANSIENT
        assert stream(Progress(worker=2)).id == 2
