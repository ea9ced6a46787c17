"""Debian's PostgreSQL in a temporary folder, for tests and soaks: on a socket and on loopback, as somebody but root."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from helpers.places import in_memory
from helpers.ports import free_port

_FOUND = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
BINARIES = Path(os.environ["INDKNN_POSTGRES"]) if "INDKNN_POSTGRES" in os.environ else next(reversed(_FOUND), None)
USER = "postgres"
_SETTINGS = """
port = {port}
unix_socket_directories = '{folder}'
listen_addresses = '127.0.0.1'
shared_buffers = 16MB
min_wal_size = 32MB
max_wal_size = 64MB
max_connections = 30
logging_collector = off
{more}
"""


def why_not():
    """Why there is no server to be had here; None if there is."""
    if BINARIES is None or not (BINARIES / "initdb").exists():
        return "PostgreSQL is not installed (apt-get install postgresql, or INDKNN_POSTGRES=folder of its programs)"
    if os.getuid() == 0 and not any(user.pw_name == USER for user in pwd.getpwall()):
        return f"PostgreSQL does not run as root, and there is no user {USER!r}"
    try:
        import psycopg  # noqa: F401
    except ModuleNotFoundError:
        return "psycopg is not installed: pip install 'indknn[postgres]'"
    return None


class Server:
    """A running server. Everybody on this machine is let in over the socket; loopback asks for a password.

    `within` is a command that runs others elsewhere, say in a network namespace.
    """

    def __init__(self, more="", within=()):
        self._within = within
        self.folder = Path(tempfile.mkdtemp(prefix="indknn-pg-", dir=in_memory()))
        if os.getuid() == 0:
            shutil.chown(self.folder, USER)
        self.data = self.folder / "data"
        self.port = free_port()
        self.run("initdb", "-D", self.data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-k")
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(_SETTINGS.format(folder=self.folder, port=self.port, more=more))
        (self.data / "pg_hba.conf").write_text(
            "local all all trust\nlocal replication all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        self.start()

    def run(self, program, *arguments, check=True):
        command = [str(BINARIES / program), *map(str, arguments)]
        if os.getuid() == 0:
            command = ["runuser", "-u", USER, "--", *command]
        command = [*self._within, *command]
        quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        done = subprocess.run(command, cwd=self.folder, check=False, **quiet)
        if check and done.returncode:
            raise RuntimeError(f"{program}: {done.stderr or done.stdout}")
        return done

    def start(self):
        self.run("pg_ctl", "start", "-w", "-t", "60", "-D", self.data, "-l", self.folder / "log")

    def stop(self, mode="fast"):
        self.run("pg_ctl", "stop", "-w", "-t", "60", "-m", mode, "-D", self.data)

    def kill_backends(self):
        """SIGKILL whoever serves a client: the server ends all sessions and recovers from its log."""
        import psycopg

        with psycopg.connect(self.conninfo("postgres"), autocommit=True) as pg:
            rows = pg.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'indknn'").fetchall()
        for (pid,) in rows:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def conninfo(self, database="postgres"):
        return f"host={self.folder} port={self.port} user={USER} dbname={database}"

    def new_place(self, user=USER):
        """The address of a store that does not exist yet, in a schema of its own."""
        name = "s" + secrets.token_hex(6)
        return f"postgresql://{user}@:{self.port}/postgres?host={self.folder}&schema={name}"

    def close(self):
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
