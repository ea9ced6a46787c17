"""A disk that remembers what was written and what was synced, can lose the rest, and can fail on demand.

It is a real SQLite VFS over the default one: files are files, and SQLite is SQLite. From the events it draws
what the files may look like after a power cut at any moment: everything before the last sync of a file is
there; of what came after, any part may be, in pieces of a sector, in any order.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

import apsw

from indknn.store import filehome

SECTOR = 512
_numbers = itertools.count()


@dataclass(frozen=True)
class Event:
    """One thing that happened to a file: write, cut (truncate), sync or delete."""

    kind: str
    file: str
    offset: int = 0
    data: bytes = b""


class Disk:
    """Registers the VFS under `name`, keeps the events, and asks `fault` before each whether it should fail."""

    def __init__(self, folder, base=None, events=()):
        """Without `base`, what is in the folder is durable; else that is, and `events` have happened since."""
        self.folder = Path(folder).resolve()
        self.events = list(events)
        self.base = base or {f.name: f.read_bytes() for f in self.folder.iterdir() if f.is_file()}
        self.fault = lambda event: None
        self.unreadable = False
        self.name = f"recording-{next(_numbers)}"
        self.vfs = _VFS(self)
        # What does not go through SQLite: the syncs of a log by its name, and all of the head.
        self._real = {
            (filehome, "sync_file"): self._sync,
            (filehome, "_write"): self._write,
            (filehome, "_sync"): self._sync_open,
        }
        for (module, name), function in self._real.items():
            self._real[module, name] = getattr(module, name)
            setattr(module, name, function)

    def close(self):
        for (module, name), function in self._real.items():
            setattr(module, name, function)
        self.vfs.unregister()

    def note(self, kind, name, offset=0, data=b""):
        event = Event(kind, Path(name).name, offset, bytes(data))
        error = self.fault(event)
        if error is not None:
            if kind == "sync":
                self.events.append(Event("failed sync", event.file))
            raise error
        if Path(name).parent == self.folder:
            self.events.append(event)

    def _sync(self, path):
        self.note("sync", path)
        self._real[filehome, "sync_file"](path)

    def _write(self, handle, path, body, at):
        self.note("write", path, at, body)
        self._real[filehome, "_write"](handle, path, body, at)

    def _sync_open(self, handle, path):
        self.note("sync", path)
        self._real[filehome, "_sync"](handle, path)

    def settled(self, cut):
        """What is durable before event number `cut`, and what happened since, by file."""
        durable, pending = dict(self.base), {}
        for event in self.events[:cut]:
            waiting = pending.setdefault(event.file, [])
            if event.kind == "sync":
                durable[event.file] = _apply(durable.get(event.file), waiting)
                waiting.clear()
            elif event.kind == "failed sync":
                waiting.clear()  # the worst that Linux does: the pages count as clean and are never written
            else:
                waiting.append(event)
        return durable, pending

    def images(self, cut, rng, modes=("dropped", "kept", "torn")):
        """What the files may be after a power cut before event number `cut`."""
        durable, pending = self.settled(cut)
        for mode in modes:
            yield (
                mode,
                {
                    file: _apply(durable.get(file), _survivors(pending.get(file, []), mode, rng))
                    for file in durable.keys() | pending.keys()
                },
            )


def _apply(body, events):
    for event in events:
        if event.kind == "delete":
            body = None
            continue
        old = bytearray() if body is None else bytearray(body)
        if event.kind == "cut":
            del old[event.offset :]
        else:
            old.extend(bytes(max(0, event.offset - len(old))))
            old[event.offset : event.offset + len(event.data)] = event.data
        body = bytes(old)
    return body


def _survivors(events, mode, rng):
    """Which of the unsynced events reached the disk."""
    if mode == "kept":
        return events
    if mode == "dropped":
        return []
    pieces = []
    for event in events:
        if event.kind != "write":
            pieces.append(event)
            continue
        pieces += [
            Event("write", event.file, event.offset + at, event.data[at : at + SECTOR])
            for at in range(0, len(event.data), SECTOR)
        ]
    likely = rng.choice([0.1, 0.5, 0.9])
    return [piece for piece in pieces if rng.random() < likely]


class _VFS(apsw.VFS):
    def __init__(self, disk):
        self.disk = disk
        super().__init__(disk.name, "")

    def xOpen(self, name, flags):  # noqa: N802
        return _File(self.disk, name, flags)

    def xDelete(self, filename, syncdir):  # noqa: N802
        self.disk.note("delete", filename)
        super().xDelete(filename, syncdir)
        if syncdir:
            self.disk.note("sync", filename)


class _File(apsw.VFSFile):
    def __init__(self, disk, name, flags):
        self.disk = disk
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__("", name, flags)

    def xRead(self, amount, offset):  # noqa: N802
        if self.disk.unreadable:
            raise apsw.IOError("injected")
        return super().xRead(amount, offset)

    def xWrite(self, data, offset):  # noqa: N802
        self.disk.note("write", self.path, offset, data)
        super().xWrite(data, offset)

    def xTruncate(self, size):  # noqa: N802
        self.disk.note("cut", self.path, size)
        super().xTruncate(size)

    def xSync(self, flags):  # noqa: N802
        self.disk.note("sync", self.path)
        super().xSync(flags)
