"""Flower's SuperLink at a socket of its owner: `python -m sottovoce.federation.flower.superlink OPTIONS SOCKET`."""

from __future__ import annotations

import sys

from sottovoce.federation.flower.sockets import listen_at


def main() -> None:
    from flwr.superlink.cli import flower_superlink

    listen_at(sys.argv.pop())
    flower_superlink()


if __name__ == "__main__":
    main()
