"""``trainyard``, and ``python -m trainyard_kit.cli``: an interrupt never shows a traceback."""

import os
import signal
import sys

INTERRUPTED = 130


def quit_at_once(*_: object) -> None:
    """End this process, which has begun nothing yet or is done."""
    os._exit(INTERRUPTED)


def deliver_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Repeat an interrupt that came in a callback or destructor: the import system has one for each module.

    Python prints such an exception with a traceback, and goes on. It is raised once more when this hook has
    returned.
    """
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
    elif callable(handler := signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.01)


def main() -> None:
    """Run the command line; the commands themselves say what an interrupt leaves (`options.ErrorGroup`)."""
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
