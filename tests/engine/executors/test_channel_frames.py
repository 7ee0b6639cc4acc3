"""Frames and channels against hostile, torn and oversized input."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tracemalloc
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.executors.process_watch import open_files
from loadmaster_engine.executors.multiprocess.bulk import map_sealed, write_sealed
from loadmaster_engine.executors.multiprocess.channel import Channel, close_all, readable
from loadmaster_engine.executors.multiprocess.frames import MAX_DESCRIPTORS, MAX_FRAME, Frame, FrameReader, ProtocolError, pack
from loadmaster_engine.executors.multiprocess.messages import (
    Call,
    Failure,
    FromServer,
    FromWorker,
    Message,
    Reply,
    Stop,
    Told,
    ToServer,
    ToWorker,
)
from loadmaster_hookspecs.errors import ErrorReport
from loadmaster_hookspecs.events import Notice

TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
DECODERS = [msgspec.msgpack.Decoder(kind) for kind in (ToWorker, FromWorker, ToServer, FromServer)]

Ends = tuple[Channel[FromWorker], socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A channel that takes in what workers say, and the bare other end of its socket pair."""
    left, right = socket.socketpair()
    channel = Channel(left, FROM_WORKER)
    with right:
        yield channel, right
    channel.close()


def frames(stream: bytes, cuts: list[int]) -> list[Frame]:
    """Feed a stream cut into pieces of the given sizes, over and over."""
    reader, found, place = FrameReader(), [], 0
    for turn in range(len(stream) + 1):
        size = cuts[turn % len(cuts)]
        reader.feed(stream[place : place + size])
        place += size
        while (frame := reader.next_frame()) is not None:
            found.append(frame)
        if place >= len(stream):
            break
    return found


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.integers(0, MAX_DESCRIPTORS)), max_size=8),
    st.lists(st.integers(1, 64), min_size=1, max_size=4),
)
def test_frames_survive_any_way_the_stream_is_cut(contents: list[tuple[bytes, int]], cuts: list[int]) -> None:
    sent = [Frame(payload, descriptors) for payload, descriptors in contents]
    assert frames(b"".join(pack(frame) for frame in sent), cuts) == sent


@given(st.binary(max_size=2000))
def test_random_bytes_give_frames_or_a_clean_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert sum(len(frame.payload) + 5 for frame in frames(data, [7])) <= len(data)


@given(st.binary(max_size=400), st.sampled_from(DECODERS))
def test_random_payloads_are_refused_or_are_messages(payload: bytes, decoder: msgspec.msgpack.Decoder[Message]) -> None:
    left, right = socket.socketpair()
    channel = Channel(left, decoder)
    with right:
        right.sendall(pack(Frame(payload)))
        channel.fill(wait=False)
        try:
            envelope = channel.take()
        except ProtocolError:
            pass
        else:
            assert envelope is not None
            assert isinstance(envelope.message, msgspec.Struct)
    channel.close()


@pytest.mark.parametrize("length", [MAX_FRAME + 1, 0xFFFFFFFF])
def test_an_oversized_length_is_refused_before_anything_is_allocated(length: int) -> None:
    reader = FrameReader()
    tracemalloc.start()
    reader.feed(struct.pack("<IB", length, 0))
    with pytest.raises(ProtocolError, match=str(length)):
        reader.next_frame()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_long_frame_that_is_only_announced_allocates_nothing() -> None:
    reader = FrameReader()
    tracemalloc.start()
    reader.feed(struct.pack("<IB", MAX_FRAME, 0) + b"x")
    assert reader.next_frame() is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_too_many_descriptors_are_refused() -> None:
    reader = FrameReader()
    reader.feed(struct.pack("<IB", 0, MAX_DESCRIPTORS + 1))
    with pytest.raises(ProtocolError, match="descriptors"):
        reader.next_frame()


MESSAGES = [
    Reply(3, b"body", 12),
    Failure(
        1, 0.5, ErrorReport(code="LM-X", summary="it broke", where={"rank": 1, "file": "a"}, hints=("try",), traceback="text")
    ),
    Told(Notice(rank=1, text="hello")),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_arrive_as_they_were(ends: Ends, message: Reply | Failure | Told) -> None:
    channel, right = ends
    sender = Channel(right, TO_WORKER)
    sender.send(message)
    envelope = channel.receive()
    assert envelope is not None
    assert envelope.message == message


def test_a_message_of_the_wrong_direction_is_refused(ends: Ends) -> None:
    channel, right = ends
    Channel(right, FROM_WORKER).send(Call(1, "echo", b""))
    channel.fill(wait=True)
    with pytest.raises(ProtocolError, match="no message"):
        channel.take()


def test_places_of_foreign_types_travel_as_text(ends: Ends) -> None:
    channel, right = ends
    where: dict[str, object] = {"shape": complex(1, 2)}
    report = ErrorReport(code="LM-X", summary="", where=where)  # type: ignore[arg-type]  # what an untyped plugin may do
    Channel(right, TO_WORKER).send(Failure(1, 0.0, report))
    envelope = channel.receive()
    assert envelope is not None
    assert isinstance(envelope.message, Failure)
    assert envelope.message.report.where == {"shape": "(1+2j)"}


def test_descriptors_belong_to_their_message(ends: Ends) -> None:
    channel, right = ends
    memories = [write_sealed(bytes([number])) for number in range(3)]
    sender = Channel(right, TO_WORKER)
    sender.send(Reply(0, b"", 1), (memories[0],))
    sender.send(Reply(1))
    sender.send(Reply(2, b"", 1), (memories[1], memories[2]))
    for number, contents in enumerate([[0], [], [1, 2]]):
        envelope = channel.receive()
        assert envelope is not None
        assert envelope.message == Reply(number, b"", 1 if contents else -1)
        assert [os.pread(descriptor, 1, 0)[0] for descriptor in envelope.descriptors] == contents
        assert not any(os.get_inheritable(descriptor) for descriptor in envelope.descriptors)
        close_all(envelope.descriptors)
    close_all(memories)


def test_announced_descriptors_that_do_not_come_are_an_error_and_untaken_ones_go_with_the_channel(ends: Ends) -> None:
    channel, right = ends
    before = len(open_files(os.getpid()))
    right.sendall(pack(Frame(b"", 1)))
    channel.fill(wait=True)
    with pytest.raises(ProtocolError, match="1 announced, 0 came"):
        channel.take()
    socket.send_fds(right, [b"part"], [0, 0, 0])
    channel.fill(wait=True)
    assert len(open_files(os.getpid())) == before + 3
    channel.close()
    assert len(open_files(os.getpid())) == before - 1


def test_more_descriptors_than_fit_are_an_error(ends: Ends) -> None:
    channel, right = ends
    socket.send_fds(right, [b"x"], [0] * 20)
    with pytest.raises(ProtocolError, match="too many descriptors"):
        channel.fill(wait=True)


def test_the_end_of_the_other_side_is_told_after_its_last_message(ends: Ends) -> None:
    channel, right = ends
    assert channel.fill(wait=False) == 0
    Channel(right, TO_WORKER).send(Reply(5))
    right.close()
    envelope = channel.receive()
    assert envelope is not None
    assert envelope.message == Reply(5)
    assert channel.receive() is None
    assert channel.fill(wait=False) is None


def test_sending_to_a_side_that_does_not_read_ends_in_time(ends: Ends) -> None:
    channel, _ = ends
    with pytest.raises(TimeoutError):
        channel.send(Call(1, "echo", bytes(8 << 20)), timeout=0.1)


def test_sending_to_a_side_that_is_gone_is_a_connection_error(ends: Ends) -> None:
    channel, right = ends
    right.close()
    with pytest.raises(ConnectionError):
        channel.send(Stop(), timeout=1.0)


def test_readable_tells_whether_there_is_something(ends: Ends) -> None:
    channel, right = ends
    assert not readable(channel.fileno(), 0.01)
    right.sendall(b"x")
    assert readable(channel.fileno(), 1.0)


@pytest.mark.parametrize("data", [b"", b"abc", bytearray(b"abc"), memoryview(b"abcdef")[::1], memoryview(bytes(8)).cast("d")])
def test_sealed_memory_holds_the_bytes(data: bytes | bytearray | memoryview) -> None:
    memory = write_sealed(data)
    view = map_sealed(memory, memoryview(data).nbytes)
    os.close(memory)
    assert view.tobytes() == memoryview(data).tobytes()
    assert view.readonly


def test_sealed_memory_cannot_be_changed_by_its_sender() -> None:
    memory = write_sealed(b"abc")
    with pytest.raises(PermissionError):
        os.pwrite(memory, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(memory, 0)
    os.close(memory)


def test_memory_without_seals_or_of_another_size_is_refused() -> None:
    memory = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.write(memory, b"abc")
    with pytest.raises(ProtocolError, match="not sealed"):
        map_sealed(memory, 3)
    os.close(memory)
    memory = write_sealed(b"abc")
    with pytest.raises(ProtocolError, match="3 bytes instead of 4"):
        map_sealed(memory, 4)
    os.close(memory)
