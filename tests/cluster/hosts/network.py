"""Hosts as network namespaces of this machine, joined by a switch that can cut, delay and lose what passes.

The switch is a program of ours over tap devices rather than a bridge with `tc netem`, because many kernels of virtual
machines are built without netem. It also cuts a single pair of hosts. Nothing is connected to the machine's own network.

python network.py NAME ...  is the switch. It reads the state of links as lines of JSON, and ends when its input does.
Then it ends whatever still runs in its namespaces, and removes them: also if the tests were killed.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "indknn"
MTU = 1500
_TUNSETIFF, _TAP_WITHOUT_HEADER = 0x400454CA, 0x0002 | 0x1000
_NEWNET = 0x40000000


def why_not():
    """Why there can be no namespaces here; None if there can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None:
        return "`ip` is not installed (apt-get install iproute2)"
    if not Path("/dev/net/tun").exists():
        return "there are no tap devices here (/dev/net/tun)"
    probe = f"{PREFIX}-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"namespaces cannot be made here: {made.stderr.strip()}"
    ip("netns", "del", probe)
    return None


def ip(*words):
    """Run `ip`."""
    return subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True).stdout


class Network:
    """Some hosts, each with an address of its own: `addresses` by name."""

    def __init__(self, *names):
        sweep()
        self._spaces = {name: f"{PREFIX}-{os.getpid()}-{name}" for name in names}
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        self._links, self._lock = {}, threading.Lock()
        self._switch = subprocess.Popen(
            [sys.executable, __file__, *self._spaces.values()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests, and the switch cleans up behind them
        )
        if self._switch.stdout.readline() != "ready\n":
            self.close()
            raise RuntimeError("the switch did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End everything in the namespaces, and remove them."""
        with suppress(BrokenPipeError):
            self._switch.stdin.close()
        self._switch.wait(60)
        self._switch.stdout.close()

    def folder(self, name):
        """What this host has as /tmp/ray. The path is short, because that of a socket has at most 107 letters."""
        return Path("/tmp") / self._spaces[name]

    def command(self, name, *words):
        """A command that runs on this host, with a /tmp/ray of its own."""
        own = self.folder(name)
        own.mkdir(exist_ok=True)
        Path("/tmp/ray").mkdir(exist_ok=True)
        within = ["sh", "-c", 'mount --bind "$0" /tmp/ray && exec "$@"', own]
        return ["ip", "netns", "exec", self._spaces[name], *map(str, [*within, *words])]

    @contextmanager
    def inside(self, name):
        """Sockets that this thread makes belong to this host."""
        with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{self._spaces[name]}") as there:
            _enter(there)
            try:
                yield
            finally:
                _enter(before)

    def processes(self, name):
        """What runs on this host."""
        return [int(number) for number in ip("netns", "pids", self._spaces[name]).split()]

    def link(self, one, other=None, *, cut=False, delay=0.0, loss=0.0):
        """The state of the link between two hosts, or between one and all others: `delay` seconds each way."""
        far = [other] if other else [name for name in self._spaces if name != one]
        with self._lock:
            for name in far:
                numbers = [list(self._spaces).index(end) for end in (one, name)]
                self._switch.stdin.write(json.dumps([*numbers, {"cut": cut, "delay": delay, "loss": loss}]) + "\n")
            self._switch.stdin.flush()
            for _ in far:
                if self._switch.stdout.readline() != "set\n":
                    raise RuntimeError("the switch has ended")

    def heal(self):
        """All links as they were."""
        for name in self._spaces:
            self.link(name)


def _enter(file):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file.fileno(), _NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def sweep():
    """Remove the namespaces of networks whose process is gone."""
    for line in ip("netns", "list").splitlines():
        words = line.split()[0].split("-")
        if words[0] == PREFIX and len(words) == 3 and not Path(f"/proc/{words[1]}").exists():
            remove(line.split()[0])


def remove(space):
    """Remove a namespace, and end what runs in it: only processes that were started there."""
    for _ in range(50):
        try:
            left = [int(number) for number in ip("netns", "pids", space).split()]
        except subprocess.CalledProcessError:
            break
        if not left:
            break
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.1)
    with suppress(subprocess.CalledProcessError):
        ip("netns", "del", space)
    shutil.rmtree(Path("/tmp") / space, ignore_errors=True)


# The switch


def _tap(number, space):
    """A tap device in a new namespace: what this host sends is read from it."""
    ip("netns", "add", space)
    name = f"ik{os.getpid()}-{number}"
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADER))
    ip("link", "set", name, "netns", space)
    within = ["-n", space]
    ip(*within, "link", "set", "lo", "up")
    ip(*within, "link", "set", name, "name", "eth0", "address", _hardware(number).hex(":"), "mtu", MTU, "up")
    ip(*within, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
    ip(*within, "route", "add", "default", "dev", "eth0")  # Ray looks which address it would use; it leads nowhere
    return tap


def _hardware(number):
    return bytes([2, 0, 0, 0, 0, number])


class Switch:
    """Passes frames between taps, later or not at all."""

    def __init__(self, taps):
        self._taps, self._states, self._late, self._frames = taps, {}, [], 0
        self._rng = random.Random(0)

    def set(self, one, other, state):
        """The state of the link between two hosts, both ways."""
        for pair in ((one, other), (other, one)):
            self._states[pair] = state if any(state.values()) else None

    def take(self, source):
        """Pass on what a host has sent."""
        with suppress(BlockingIOError):
            for _ in range(64):
                frame = os.read(self._taps[source], MTU + 64)
                single = frame[:5] == b"\x02\0\0\0\0"
                for target in [frame[5] - 1] if single else range(len(self._taps)):
                    if target != source and 0 <= target < len(self._taps):
                        self._pass(source, target, frame)

    def _pass(self, source, target, frame):
        state = self._states.get((source, target))
        if state is None:
            self._give(target, frame)
        elif not state["cut"] and self._rng.random() >= state["loss"]:
            self._frames += 1
            heapq.heappush(self._late, (time.monotonic() + state["delay"], self._frames, target, frame))

    def _give(self, target, frame):
        with suppress(BlockingIOError, OSError):  # a full queue loses frames, as in a real switch
            os.write(self._taps[target], frame)

    def due(self):
        """Pass on what is late enough. Returns the seconds until more is due, None for nothing."""
        while self._late and self._late[0][0] <= time.monotonic():
            self._give(*heapq.heappop(self._late)[2:])
        return max(self._late[0][0] - time.monotonic(), 0.0) if self._late else None


def main(spaces):
    """Run the switch until the input ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        switch = Switch([_tap(number, space) for number, space in enumerate(spaces, 1)])
        chosen = selectors.DefaultSelector()
        for number, tap in enumerate(switch._taps):
            chosen.register(tap, selectors.EVENT_READ, number)
        chosen.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        print("ready", flush=True)
        told = b""
        while True:
            for key, _ in chosen.select(switch.due()):
                if key.data is not None:
                    switch.take(key.data)
                    continue
                more = os.read(sys.stdin.fileno(), 1 << 16)
                if not more:
                    return
                *lines, told = (told + more).split(b"\n")
                for line in lines:
                    switch.set(*json.loads(line))
                    print("set", flush=True)
    finally:
        for space in spaces:
            remove(space)


if __name__ == "__main__":
    main(sys.argv[1:])
