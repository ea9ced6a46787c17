"""Research around `indknn`: audits, rivals, every figure of the paper. Needs `pip install 'indknn[lab]'`.

It may import `indknn`; nothing in `indknn` imports it.
"""
