"""Frames on a byte stream: a header of payload length (u32) and descriptor count (u8), then the payload."""

from __future__ import annotations

import struct

import msgspec

from loadmaster_hookspecs.errors import WorkerError

MAX_FRAME = 256 << 20
"""Largest payload in bytes. Larger data travels in a memfd."""

MAX_DESCRIPTORS = 4
"""Most file descriptors that may accompany one frame."""

_HEADER = struct.Struct("<IB")


class Frame(msgspec.Struct, frozen=True):
    """A payload and the number of file descriptors that came with it."""

    payload: bytes
    descriptors: int = 0


class ProtocolError(WorkerError):
    """The other side of a channel sent what is no frame or no message."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            "LM-CHANNEL-PROTOCOL", f"a control channel carried {what}", why=why, hints=["something else wrote to the channel"]
        )


def pack(frame: Frame) -> bytes:
    """Return the bytes of a frame. Raises WorkerError `LM-CHANNEL-SIZE` when the payload is larger than `MAX_FRAME`."""
    if len(frame.payload) > MAX_FRAME:
        raise WorkerError(
            "LM-CHANNEL-SIZE",
            "a message is too large for the control channel",
            why=f"{len(frame.payload)} bytes, at most {MAX_FRAME} are allowed",
            hints=["return large data as the bulk part of a Result"],
        )
    return _HEADER.pack(len(frame.payload), frame.descriptors) + frame.payload


class FrameReader:
    """Cuts a stream of bytes into frames. A header is judged as soon as it is complete, before its payload is awaited."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes from the stream."""
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """Return the next complete frame, or None. Raises ProtocolError for a header beyond the limits."""
        if len(self._buffer) < _HEADER.size:
            return None
        length, descriptors = _HEADER.unpack_from(self._buffer)
        if length > MAX_FRAME or descriptors > MAX_DESCRIPTORS:
            raise ProtocolError(
                "an impossible frame",
                f"{length} bytes with {descriptors} descriptors; the limits are {MAX_FRAME} and {MAX_DESCRIPTORS}",
            )
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(memoryview(self._buffer)[_HEADER.size : end])
        del self._buffer[:end]
        return Frame(payload, descriptors)
