"""The address that the server listens on, taken before the model is loaded."""

from __future__ import annotations

import ipaddress
import socket

from loadmaster_hookspecs.errors import UsageError


def bind(host: str, port: int, *, unread_seconds: float = 60.0) -> socket.socket:
    """Return a socket that has the address and does not listen yet; the caller closes it. Port 0 takes a free one.

    The system ends connections made through it whose other side takes nothing for `unread_seconds`: closing them is not enough
    while bytes wait to be taken.

    Raises UsageError LM-SERVE-ADDRESS when the host is not known, and when the port is taken or not allowed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        taken = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise _unusable(host, port, error) from None
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(unread_seconds * 1000))
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise _unusable(host, port, error) from None
    return taken


def base_url(listening: socket.socket) -> str:
    """Return the URL that clients are given as their base, for example `http://127.0.0.1:8000/v1`."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def is_loopback(listening: socket.socket) -> bool:
    """Return whether only this machine reaches the socket."""
    host = listening.getsockname()[0]
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _unusable(host: str, port: int, error: Exception) -> UsageError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return UsageError(
        "LM-SERVE-ADDRESS",
        "the server cannot listen there",
        where={"host": host, "port": port},
        why=why,
        hints=("choose another --port, or 0 for a free one", "give --host an address of this machine"),
    )
