"""One connection, byte by byte: requests one behind the other, and shapes that two servers read differently."""

import pytest

from indknn.server.limits import ARRIVAL, MOST_QUEUED, QUEUED_WITHOUT_KEY
from server.wire import on_a_wire

GET = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\n"
NEXT = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


def many(n):
    return b"".join(GET % i for i in range(n))


@pytest.mark.parametrize(("shown", "queued"), [(True, MOST_QUEUED), (False, QUEUED_WITHOUT_KEY)])
def test_only_a_few_requests_of_a_connection_are_read_and_the_rest_is_refused(shown, queued):
    async def talk(wire):
        if shown:
            assert wire.protocol.show("key")
        await wire.send(many(600))
        assert wire.asked == ["GET /0"]  # one at a time
        assert len(wire.protocol.unanswered) == 1 + queued
        assert not wire.transport.reading
        wire.protocol.flow.resume_reading()  # as the application does when it waits for a body
        assert not wire.transport.reading
        await wire.send(many(600))  # a transport may deliver what it had read before it was paused
        assert len(wire.protocol.unanswered) == 1 + queued
        assert wire.statuses == []
        await wire.answer()
        assert wire.asked == [f"GET /{i}" for i in range(1 + queued)]
        assert wire.statuses == [200] * (1 + queued) + [429]
        assert b"connection: close" in wire.transport.written
        assert wire.transport.closed

    on_a_wire(talk)


def test_nothing_is_read_while_a_request_waits_behind_another():
    async def talk(wire):
        wire.protocol.show("key")
        await wire.send(many(1))
        assert wire.transport.reading  # the client may hang up
        await wire.send(many(2) + POST + b"Content-Length: 4\r\n\r\n12")
        assert not wire.transport.reading
        await wire.answer()
        assert wire.transport.reading
        assert wire.statuses == [200] * 3
        await wire.send(b"34")
        assert wire.statuses == [200] * 4
        assert wire.transport.written.endswith(b"/a1234")
        assert not wire.transport.closed
        await wire.send(many(MOST_QUEUED))
        assert wire.statuses == [200] * (4 + MOST_QUEUED)

    on_a_wire(talk)


@pytest.mark.parametrize(
    "bad", [b"bad\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000, POST + b"Content-Length: x\r\n\r\n"]
)
def test_what_came_before_a_bad_request_is_answered_first(bad):
    async def talk(wire):
        await wire.send(many(QUEUED_WITHOUT_KEY) + bad)
        assert wire.statuses == []
        await wire.answer()
        assert wire.statuses[:2] == [200, 200]
        assert len(wire.statuses) == 3
        assert wire.statuses[2] in {400, 431}
        assert wire.transport.closed

    on_a_wire(talk)


def test_a_body_that_is_broken_behind_another_request_never_reaches_the_application():
    async def talk(wire):
        await wire.send(many(1) + POST + b"Transfer-Encoding: chunked\r\n\r\nzz")
        await wire.answer()
        assert wire.statuses == [200, 400]
        assert wire.asked == ["GET /0"]

    on_a_wire(talk)


def test_a_client_that_waits_is_not_late_itself():
    async def talk(wire):
        await wire.send(many(1) + POST + b"Content-Length: 4\r\n\r\n12")
        later = wire.protocol.loop.time() + 100 * ARRIVAL
        wire.protocol.close_if_overdue(later)
        assert not wire.transport.closed
        await wire.answer()
        assert wire.statuses == [200]
        wire.protocol.close_if_overdue(wire.protocol.waiting_since + ARRIVAL / 2)  # it has its time from now on
        assert not wire.transport.closed
        wire.protocol.close_if_overdue(later)
        assert wire.statuses == [200, 408]

    on_a_wire(talk)


def test_who_hangs_up_leaves_nothing_behind(caplog):
    async def talk(wire):
        await wire.send(many(2))
        wire.hang_up()
        await wire.answer()
        assert wire.transport.written == b""
        assert wire.asked == ["GET /0"]  # the others were never begun
        assert not wire.state.tasks

    on_a_wire(talk)
    assert not caplog.records


def test_who_has_to_wait_may_be_dropped_to_make_room():
    async def talk(wire):
        assert wire.protocol.idle_since() is not None
        await wire.send(many(1) + POST + b"Content-Length: 4\r\n\r\n12")
        assert wire.protocol.idle_since() is None  # though it has not sent all of its next one
        with wire.protocol.holding():
            assert wire.protocol.idle_since() is not None
        await wire.answer()
        assert wire.protocol.idle_since() is not None

    on_a_wire(talk)


CHUNKED = b"Transfer-Encoding: chunked\r\n"
TWO_WAYS = {
    "both lengths": POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "both lengths, the other way round": POST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "a length twice": POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "a list of lengths": POST + b"Content-Length: 5, 5\r\n\r\nhello",
    "a signed length": POST + b"Content-Length: +5\r\n\r\nhello",
    "a negative length": POST + b"Content-Length: -5\r\n\r\nhello",
    "a length in hex": POST + b"Content-Length: 0x5\r\n\r\nhello",
    "a length beyond 64 bits": POST + b"Content-Length: 99999999999999999999999\r\n\r\nhello",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked, but not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "lines that end in LF": POST.replace(b"\r\n", b"\n") + b"Content-Length: 5\n\nhello",
    "one line that ends in LF": POST + b"X: a\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "a CR within a line": POST + b"X: a\r" + CHUNKED + b"Content-Length: 5\r\n\r\nhello",
    "a folded line": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a null byte": POST + b"X: a\0b\r\n\r\n",
    "a chunk whose line ends in LF": POST + CHUNKED + b"\r\n5\nhello\r\n0\r\n\r\n",
    "an LF in a chunk's extension": POST + CHUNKED + b"\r\n5;x=\nhello\r\n0\r\n\r\n",
    "a chunk beyond 64 bits": POST + CHUNKED + b"\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "a chunk that is longer than it says": POST + CHUNKED + b"\r\n3\r\nhello\r\n0\r\n\r\n",
    "a chunk of negative size": POST + CHUNKED + b"\r\n-5\r\nhello\r\n0\r\n\r\n",
    "a length in a trailer": POST + CHUNKED + b"\r\n0\r\nContent-Length: 50\r\n\r\n",
    "no version": b"GET /a\r\n",
    "a tunnel": b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a header without a name": POST + b": y\r\n\r\n",
}


@pytest.mark.parametrize("shape", TWO_WAYS)
def test_what_could_be_read_in_two_ways_is_refused_and_nothing_behind_it_is_read(shape):
    async def talk(wire):
        await wire.send(TWO_WAYS[shape] + NEXT)
        await wire.answer()
        assert wire.statuses == [400]
        assert wire.transport.closed
        assert "GET /smuggled" not in wire.asked

    on_a_wire(talk)


@pytest.mark.parametrize(
    "first",
    [
        b"GET /a HTTP/1.0\r\n\r\n",
        b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"GET /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(NEXT),  # it is a body
        b"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_request_of_its_own_is_not_read_as_one(first):
    async def talk(wire):
        await wire.send(first + NEXT)
        await wire.answer()
        assert wire.statuses == [200]
        assert len(wire.asked) == 1

    on_a_wire(talk)


def test_a_length_that_promises_too_much_or_too_little():
    async def talk(wire):
        await wire.send(POST + b"Content-Length: 3\r\n\r\nhello")  # "lo" begins the next request
        await wire.answer()
        assert wire.statuses == [200, 400]
        assert wire.asked == ["POST /a"]
        assert b"/ahel" in wire.transport.written

    async def waits(wire):
        await wire.send(POST + b"Content-Length: 9\r\n\r\nhello")
        await wire.answer()
        assert wire.statuses == []
        wire.protocol.close_if_overdue(wire.protocol.loop.time() + ARRIVAL + 1)
        await wire.settle()
        assert wire.statuses == [408]
        assert wire.left == ["/a"]

    on_a_wire(talk)
    on_a_wire(waits)


@pytest.mark.parametrize("piece", [1, 7])
def test_a_request_in_small_pieces_is_the_same_request(piece):
    async def talk(wire):
        wire.go.set()
        data = POST + b"Content-Length: 5\r\n\r\nhello" + NEXT
        for start in range(0, len(data), piece):
            wire.protocol.data_received(data[start : start + piece])
        await wire.settle()
        assert wire.asked == ["POST /a", "GET /smuggled"]
        assert wire.statuses == [200, 200]

    on_a_wire(talk)
