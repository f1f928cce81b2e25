"""Run ``trainyard``, or ``python -m trainyard_kit.cli``, without a traceback after an interrupt."""

import os
import signal
import sys

INTERRUPTED = 130


def quit_at_once(*_: object) -> None:
    """Exit at once, before a command starts or after it ends."""
    os._exit(INTERRUPTED)


def deliver_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Raise an interrupt again that arrived in a callback or destructor, such as the import system's.

    Python would only print it with a traceback. A timer raises it after this hook returns.
    """
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
    elif callable(handler := signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.01)


def main() -> None:
    """Run the command line; `options.ErrorGroup` reports what an interrupt leaves behind."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, quit_at_once)
    sys.unraisablehook = deliver_again
    try:
        from trainyard_kit.cli.main import main as commands  # a second of imports

        commands()
    except KeyboardInterrupt:
        quit_at_once()
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, quit_at_once)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
