"""The socket of a server of this machine: 127.0.0.1, and one sentence where a port cannot be had."""

from __future__ import annotations

import socket

from steelyard.errors import InputError

HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """Return a listening socket on 127.0.0.1.

    Args:
        port: Port; 0 picks a free one.

    Raises:
        InputError: The port is taken or out of range.
    """
    # asyncio turns Nagle's delay (40 ms an answer) off only where the protocol number is given.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(1024)  # a client that comes before the server runs waits
    except (OSError, OverflowError) as error:
        listener.close()
        said = getattr(error, "strerror", None) or error
        raise InputError(f"port: cannot listen on {HOST}:{port} ({said}); choose another port") from None
    return listener
