"""Many shards: records and ledgers of some people each, in other processes or on other machines.

`Cluster` holds the connections and makes the one shard that an engine or a store sees (`coordinator.py`).
"""

from __future__ import annotations

from indknn.cluster.coordinator import Cluster, ClusterShard
from indknn.cluster.local import local_cluster

__all__ = ["Cluster", "ClusterShard", "local_cluster"]
