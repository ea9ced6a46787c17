"""Ports for servers that must be told theirs before they start."""

import itertools
import os
import socket

_LEAST, _MOST = 20_000, 32_768
"""Ray takes ports below for its workers. Linux gives those above to whoever connects or asks for any port."""
_tries = itertools.count(os.getpid() * 61)  # each process of tests begins elsewhere


def free_port():
    """A port that nobody has, and that nobody is given by chance before its server starts, however late that is."""
    while True:
        port = _LEAST + next(_tries) % (_MOST - _LEAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
