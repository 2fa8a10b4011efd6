"""Flower's SuperLink, at a socket of its owner alone: `python -m sottovoce.federation.superlink OPTIONS SOCKET`."""

from __future__ import annotations

import sys

from sottovoce.federation.sockets import listen_at


def main() -> None:
    from flwr.superlink.cli import flower_superlink

    listen_at(sys.argv.pop())
    flower_superlink()


if __name__ == "__main__":
    main()
