"""Many shards, in other processes or on other machines. Each has the records and ledgers of some people.

`Cluster` holds the links to them, and makes the shard that an engine or a store has (`shard.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from indknn.cluster.shard import Cluster, ClusterShard, local_cluster

__all__ = ["Cluster", "ClusterShard", "local_cluster", "shard_maker"]


def shard_maker(shards: Any) -> Callable[..., ClusterShard] | None:
    """A function that makes the shard of an engine: over a cluster, or over this many processes. None for None."""
    if shards is None:
        return None
    return (shards if isinstance(shards, Cluster) else local_cluster(shards)).new_shard
