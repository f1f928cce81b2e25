"""Start processes in every way, with classes and functions of this very file."""

# ruff: noqa: PTH109, PTH119, PTH123, PTH208, SIM115
import concurrent.futures
import multiprocessing
import os
import pickle
import subprocess
import sys


class Point:
    def __init__(self, x):
        self.x = x

    def __repr__(self):
        return f"Point({self.x})"


def double(point):
    return Point(2 * point.x)


def name_of_main():
    return __name__, os.path.basename(sys.modules["__main__"].__file__)


if __name__ == "__main__":
    print(pickle.loads(pickle.dumps(Point(1))), Point.__module__)
    print(
        subprocess.run(
            [sys.executable, "-c", "print(1 + 1)"], capture_output=True, text=True, check=True
        ).stdout
    )
    print(subprocess.run(["sh", "-c", "echo $0; exit 3"], capture_output=True, text=True, check=False))
    pid = os.fork()
    if pid == 0:
        print("in a fork")
        sys.exit(4)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            print(method, pool.map(double, map(Point, range(3))), pool.apply(name_of_main))
        process = context.Process(target=sys.exit, args=(5,))
        process.start()
        process.join()
        print(method, process.exitcode)
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        print(executor.submit(double, Point(21)).result())
    queue = multiprocessing.Queue()
    queue.put("through a queue")
    print(queue.get(timeout=120))
