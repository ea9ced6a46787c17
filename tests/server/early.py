"""The control of the kills: the same server, but it answers long before it commits. The harness must notice."""

import time

from indknn.cli import main
from indknn.server import worker
from indknn.server.worker import Worker

answer, durable = Worker._answer, Worker._durable


def too_early(self, jobs):
    done = answer(self, jobs)
    for future, value in done.results:
        future.get_loop().call_soon_threadsafe(worker._tell, [(future, value)])
    return done


def too_late(self, group):
    time.sleep(600)
    durable(self, group)


if __name__ == "__main__":
    Worker._answer, Worker._durable = too_early, too_late
    main()
