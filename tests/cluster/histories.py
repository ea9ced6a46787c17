"""One history, played over any number of shards; what came of it."""

from functools import cache

from golden.transcripts import MODES, Replayed, fingerprint, history, settings
from indknn.cluster import Cluster
from indknn.cluster.links import Inline
from indknn.engine import Engine
from indknn.store import Store
from indknn.store.verify import problems

PAPER, DEFAULT = "algorithm 3", "the shared model and votes"
TABLES = ("answers", "records", "owners", "balances", "participation", "debits", "record_keys", "tombstones", "scopes")


def inline(n=1):
    """A cluster within this process."""
    return Cluster(Inline, n)


def by_engine(mode, cluster=None):
    """The labels and charges of the history."""
    model = Engine(settings(MODES[mode]), Replayed(), make_shard=None if cluster is None else cluster.new_shard)
    return history(model, model.forget_owners, MODES[mode])


@cache
def with_one(mode):
    """The same with one shard in this process, played once."""
    return by_engine(mode, inline(1))


def by_store(mode, path, cluster=None):
    """The same through a store, and every row that its file then has."""
    make = None if cluster is None else cluster.new_shard
    with Store.create(path, settings(MODES[mode]), noise=Replayed(), make_shard=make) as store:
        told = history(store, store.forget, MODES[mode])
        assert not list(problems(store))
    with Store(path, make_shard=make) as store:  # read back into the shards
        assert not list(problems(store))
        return {**told, **{table: rows_of(store, table) for table in TABLES}}


def rows_of(store, table):
    """A digest of all rows; hashes of names are keyed by store, so of tombstones only what was spent."""
    columns = "spent, queries" if table == "tombstones" else "*"
    return fingerprint(sorted(store.db.execute(f"SELECT {columns} FROM {table}")))
