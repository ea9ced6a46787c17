"""Find the topic of new support tickets with the help of private ones.

    pip install '.[tables,features]' pandas
    python examples/tickets.py                             downloads a public model on first use
    python examples/tickets.py --model models/minilm       a folder: no network; with model.onnx no PyTorch either

The schema names the extractor, so you add and ask raw texts. Each ticket goes through the model separately. So no
customer's vector depends on another customer's ticket.
"""

import argparse

import numpy as np
import pandas as pd

from indknn import IndKNNClassifier
from indknn.tables import Category, Schema, Text

TOPICS = {
    "payment": ["invoice", "money", "paid", "bank", "card", "refund", "charged", "amount"],
    "access": ["login", "password", "screen", "error", "account", "locked", "reset", "browser"],
}
FILLING = ["the", "my", "is", "wrong", "since", "today", "please", "help", "with", "and", "I", "cannot"]


def tickets(n, rng):
    """Made-up tickets: three words of the topic among four that fit any topic."""
    topics = rng.choice(list(TOPICS), n)
    texts = [" ".join(rng.permutation([*rng.choice(TOPICS[topic], 3), *rng.choice(FILLING, 4)])) for topic in topics]
    plans, customers = rng.choice(["free", "paid"], n), [f"customer-{i}" for i in range(n)]
    return pd.DataFrame({"ticket": texts, "plan": plans, "topic": topics, "customer": customers})


def main(arguments=None):
    """Find the topics of new tickets. Returns the share of right answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="the public model: a folder or a name")
    parser.add_argument("--tickets", type=int, default=2000)
    parser.add_argument("--questions", type=int, default=100)
    chosen = parser.parse_args(arguments)
    rng = np.random.default_rng(0)

    columns = {"ticket": Text(extractor=chosen.model), "plan": Category(values=("free", "paid"))}
    schema = Schema(columns, label="topic", classes=tuple(sorted(TOPICS)), owner="customer")
    model = IndKNNClassifier(epsilon=2.0, schema=schema).fit(tickets(chosen.tickets, rng))
    asked = tickets(chosen.questions, rng)
    answers = model.predict(asked[["ticket", "plan"]])
    for text, answer in list(zip(asked["ticket"], answers, strict=True))[:3]:
        print(f"{answer:>8}: {text}")
    right = float(np.mean(answers == asked["topic"].to_numpy()))
    print(f"{right:.0%} of {len(answers):,} private answers are right")
    return right


if __name__ == "__main__":
    main()
