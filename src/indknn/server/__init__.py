"""The HTTP service: one process that owns a store and answers over the network. `pip install 'indknn[server]'`.

May import: `store` and below.
"""
