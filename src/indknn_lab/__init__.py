"""Research around `indknn`: audits, other methods, every figure of the paper. Needs `pip install 'indknn[lab]'`.

It may import `indknn`, but nothing in `indknn` imports it.
"""
