"""Run a command that ends when its parent does, for any reason: standard input is closed then.

A script, not a module of the package: it starts at once and imports nothing but the standard library.
"""

import contextlib
import selectors
import signal
import subprocess
import sys

GRACE = 5.0


def main(command: list[str]) -> int:
    # Ctrl-C in a terminal reaches every process of it. The parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    with selectors.DefaultSelector() as watched:
        watched.register(sys.stdin.buffer, selectors.EVENT_READ)
        while child.poll() is None:
            if watched.select(timeout=0.2) and not sys.stdin.buffer.read(1):
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(GRACE)
                child.kill()
                break
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
