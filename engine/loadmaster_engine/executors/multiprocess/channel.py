"""One end of a Unix socket pair that carries messages and file descriptors."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from loadmaster_engine.executors.multiprocess.frames import MAX_DESCRIPTORS, Frame, FrameReader, ProtocolError, pack
from loadmaster_engine.executors.multiprocess.messages import Message

Incoming = TypeVar("Incoming")

_CHUNK = 256 << 10
_INT = struct.Struct("i")
_ANCILLARY = socket.CMSG_SPACE(MAX_DESCRIPTORS * _INT.size)
_SHORTEST = 0.001  # seconds; 0 would mean "do not wait", which is another error when the socket is full
_encoder = msgspec.msgpack.Encoder(enc_hook=str)


class Envelope(msgspec.Struct, Generic[Incoming], frozen=True):
    """A message and the file descriptors that came with it; the receiver owns and closes them."""

    message: Incoming
    descriptors: tuple[int, ...] = ()


class Channel(Generic[Incoming]):
    """Sends messages and takes in those of the types `decoder` knows. Owns the socket.

    Messages are taken one at a time, so that descriptors of later messages stay with the channel and go when it closes.
    Values of an error's `where` that are neither text nor numbers travel as their text.
    """

    def __init__(self, sock: socket.socket, decoder: msgspec.msgpack.Decoder[Incoming]) -> None:
        self._sock = sock
        self._decoder = decoder
        self._reader = FrameReader()
        self._descriptors: deque[int] = deque()

    def fileno(self) -> int:
        """Return the socket's descriptor, for polling; -1 once closed."""
        return self._sock.fileno()

    def send(self, message: Message, descriptors: tuple[int, ...] = (), *, timeout: float | None = None) -> None:
        """Send a message with copies of `descriptors`.

        Raises TimeoutError when the other side does not take it within `timeout` seconds (None: the other side's end is the
        only limit), ConnectionError when it is gone, WorkerError when the message is too large.
        """
        data = pack(Frame(_encoder.encode(message), len(descriptors)))
        self._sock.settimeout(None if timeout is None else max(timeout, _SHORTEST))
        sent = socket.send_fds(self._sock, [data], descriptors) if descriptors else 0
        self._sock.sendall(memoryview(data)[sent:])

    def fill(self, *, wait: bool) -> int | None:
        """Take in bytes that have arrived and return their number, 0 for none; None when the other side is gone.

        With `wait`, waits until there is one of the two.
        """
        try:
            self._sock.settimeout(None if wait else 0.0)
            data, ancillary, flags, _ = self._sock.recvmsg(_CHUNK, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return 0
        except ConnectionError:
            return None
        for _, _, numbers in ancillary:
            self._descriptors.extend(_INT.unpack_from(numbers, place)[0] for place in range(0, len(numbers), _INT.size))
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError("too many descriptors", f"more than {MAX_DESCRIPTORS} came at once")
        self._reader.feed(data)
        return len(data) or None

    def take(self) -> Envelope[Incoming] | None:
        """Return the next message that has fully arrived, or None. Raises ProtocolError for anything else."""
        frame = self._reader.next_frame()
        if frame is None:
            return None
        if frame.descriptors > len(self._descriptors):
            why = f"{frame.descriptors} announced, {len(self._descriptors)} came"
            raise ProtocolError("a frame without its descriptors", why)
        descriptors = tuple(self._descriptors.popleft() for _ in range(frame.descriptors))
        try:
            return Envelope(self._decoder.decode(frame.payload), descriptors)
        except msgspec.MsgspecError as error:
            close_all(descriptors)
            raise ProtocolError("what is no message", str(error)) from error

    def receive(self) -> Envelope[Incoming] | None:
        """Wait for the next message; return None when the other side is gone, which ends the wait at the latest."""
        while (envelope := self.take()) is None:
            if self.fill(wait=True) is None:
                return None
        return envelope

    def close(self) -> None:
        """Close the socket and all descriptors nobody took. Safe to call twice."""
        self._sock.close()
        close_all(self._descriptors)
        self._descriptors.clear()


def close_all(descriptors: Iterable[int]) -> None:
    """Close file descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def readable(descriptor: int, seconds: float) -> bool:
    """Wait until `descriptor` can be read, at most `seconds`, and say whether it can."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
