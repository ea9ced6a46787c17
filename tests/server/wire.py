"""One connection without a network: bytes go in, and what the server writes, reads and closes is looked at."""

import asyncio
import re

from uvicorn import Config
from uvicorn.server import ServerState

from indknn.server.limits import LimitedProtocol


class Transport(asyncio.Transport):
    def __init__(self, lost):
        super().__init__()
        self._lost = lost
        self.written, self.reading, self.closed = b"", True, False

    def get_extra_info(self, name, default=None):
        return {"peername": ("192.0.2.1", 7), "sockname": ("192.0.2.2", 80)}.get(name, default)

    def write(self, data):
        assert not self.closed
        self.written += data

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def is_closing(self):
        return self.closed

    def close(self):
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._lost, None)

    abort = close


class Wire:
    """A connection to an application, which answers a request when `go` is set."""

    def __init__(self):
        self.go, self.asked, self.left = asyncio.Event(), [], []
        config = Config(self.app, interface="asgi3", proxy_headers=False, lifespan="off", log_config=None, ws="none")
        self.state = ServerState()
        self.protocol = LimitedProtocol(config, self.state, {})
        self.transport = Transport(self.protocol.connection_lost)
        self.protocol.connection_made(self.transport)

    async def app(self, scope, receive, send):
        self.asked.append(f"{scope['method']} {scope['path']}")
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.append(scope["path"])
                return
            body, more = body + message["body"], message["more_body"]
        await self.go.wait()
        text = scope["path"].encode() + body
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]}
        await send(start)
        await send({"type": "http.response.body", "body": text})

    async def send(self, data):
        """Bytes arrive, and everything is done that can be done."""
        self.protocol.data_received(data)
        await self.settle()

    async def settle(self):
        for _ in range(200):
            await asyncio.sleep(0)

    async def answer(self):
        self.go.set()
        await self.settle()

    def hang_up(self):
        self.transport.close()

    @property
    def statuses(self):
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", self.transport.written)]


def on_a_wire(talk):
    """Run a conversation."""

    async def run():
        return await talk(Wire())

    return asyncio.run(run())
