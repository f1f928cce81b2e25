"""Leave something for the interpreter's end to do: threads, callbacks, buffers, objects."""

import atexit
import sys
import threading
import time
import weakref


class Last:
    def __del__(self):
        print("freed", file=sys.stderr)


@atexit.register
def callback():
    print("callback", "__file__" in globals(), threading.active_count())


@atexit.register
def failing():
    raise LookupError("in a callback")


def linger():
    time.sleep(0.2)
    print("thread ends")


thing = Last()
finalizer = weakref.finalize(thing, print, "finalized")
threading.Thread(target=linger).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("main ends")
sys.exit(int(sys.argv[1]))
