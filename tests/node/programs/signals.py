"""Wait for a signal in one of several ways: ``python signals.py handler|default|interrupt|sigwait``."""

import signal
import sys
import time

way = sys.argv[1]
if way == "handler":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"got {signal.Signals(number).name}"))
if way == "sigwait":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
if way == "sigwait":
    print(signal.sigwait([signal.SIGTERM]).name)
else:
    time.sleep(30)
