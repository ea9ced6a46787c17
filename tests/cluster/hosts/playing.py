"""Plays a history over shards on Ray, with noise that is the same each time, and starts a call over if a shard is lost.

A batch that does not finish leaves nothing, so noise starts over with it. Then answers must be as on one host.

python playing.py PLACE RAY MODE   prints a line for every call, and at last what came of the history.
"""

import json
import sys

from golden.transcripts import MODES, Replayed, history, settings
from indknn.cluster.ray_hosts import ray_cluster
from indknn.errors import StoreError
from indknn.store import Store
from indknn.store.verify import problems

TURNS = 20


class Insisting:
    """A store whose calls are made again until they succeed. Each is reported."""

    def __init__(self, store, noise):
        self._store, self._noise = store, noise

    def __getattr__(self, name):
        call = getattr(self._store, name)

        def insist(*arguments, **options):
            state = self._noise._rng.bit_generator.state
            for turn in range(TURNS):
                try:
                    answer = call(*arguments, **options)
                    print(json.dumps({"call": name, "failed": turn}), flush=True)
                    return answer
                except StoreError:
                    if turn == TURNS - 1:
                        raise
                    self._noise._rng.bit_generator.state = state
            raise AssertionError

        return insist


def main(place, address, mode):
    noise = Replayed()
    with (
        ray_cluster(address, 2, name="playing") as cluster,
        Store.create(place, settings(MODES[mode]), noise=noise, make_shard=cluster.new_shard) as store,
    ):
        store.add_analyst("ann")
        playing = Insisting(store, noise)
        told = history(playing, playing.forget, MODES[mode])
        print(json.dumps({"told": told, "problems": list(map(str, problems(store)))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
