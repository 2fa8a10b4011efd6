"""A bell between two processes."""

from __future__ import annotations

import time

from sottovoce.federation.flower.bell import Bell, device_bell, ring, supernode_bell
from sottovoce.federation.flower.sockets import private_folder


def test_a_bell_wakes_who_waits_and_rings_before_are_one():
    with private_folder() as folder:
        path = folder / "1.bell"
        bell = Bell(path)
        for _ in range(1000):  # more than a socket holds
            ring(path)
        began = time.monotonic()
        assert bell.wait(10.0)
        assert time.monotonic() - began < 5
        assert not bell.wait(0.0)
        bell.close()
        ring(path)  # nobody is there: nothing happens


def test_the_bells_of_a_device_and_its_supernode_hang_beside_its_socket():
    with private_folder() as folder:
        assert supernode_bell(folder / "7") == folder / "7.bell"
        assert device_bell(folder / "7") == device_bell(folder / "8") == folder / "device.bell"
