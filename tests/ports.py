"""Ports of loopback for servers that a test starts."""

import random
import socket
from contextlib import suppress

PORTS = range(
    20_000,
    32_000,
)  # below those that systems give to connections: from 32768 on Linux, 49152 elsewhere
_held: list[socket.socket] = []


def free_port(ports: range = PORTS) -> int:
    """A TCP port of ``ports`` that nobody listens on, and that no other test gets before this
    process ends.

    A server listens on its port only seconds after the port was chosen. Therefore no port is taken
    that an outgoing connection could be given meanwhile; and the UDP port of the same number is
    held, which keeps other tests off and does not keep the server from listening.
    """
    for port in random.sample(ports, len(ports)):
        held = socket.socket(type=socket.SOCK_DGRAM)
        with suppress(OSError):
            held.bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()
            _held.append(held)
            return port
        held.close()
    raise OSError(f"no port from {ports[0]} to {ports[-1]} is free")
