"""The tutorial works as it is written."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="the tutorial uses bash and curl")
def test_the_tutorial_runs(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    script = "\necho\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.S)).replace("8080", str(port))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command, environment = ["bash", "-e", "-c", script], {**os.environ, "PATH": path}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True, **pipes) as run:
        try:
            told = run.communicate(timeout=100)[0]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)  # the server too, if something went wrong
    assert run.returncode == 0, told
    for expected in ('"ready":true', '"id":"first"', '"receipt":"erasure"', '"records":2001', "all is well"):
        assert expected in told, told
