"""One bash for all blocks of a page: variables and servers in the background live from one block to the next."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer

DONE = "--- this block is done ---"
PATIENCE = 900.0  # seconds for a page; it only ends what hangs


class Shell:
    """A shell in a folder, where `indknn` and `python` are those of the tests. What it starts ends with it."""

    def __init__(self, folder):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "-e"],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._timer = Timer(PATIENCE, self.kill)
        self._timer.start()

    def run(self, code):
        """Run a block to its end; what it printed. Fails where bash ended."""
        with suppress(BrokenPipeError):
            self._process.stdin.write(
                f"{{\n{code}\n}} < /dev/null\necho '{DONE}'\n"
            )  # or a command reads the next block
            self._process.stdin.flush()
        told = []
        for line in self._process.stdout:
            if line.rstrip().endswith(DONE):
                return "".join([*told, line.rstrip().removesuffix(DONE), "\n"])
            told.append(line)
        raise AssertionError("this block failed:\n" + code + "\nIt printed:\n" + "".join(told))

    def kill(self):
        """End the shell and everything in it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self):
        """End it, and give back what it held."""
        self._timer.cancel()
        self.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
