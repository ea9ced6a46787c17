"""The first pages tell what the default does: a shared model that everybody pays for, and votes that refine it."""

import re
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt

from indknn import IndKNNClassifier
from indknn.answering.predictor import SCHEDULE_FIRST
from indknn.core.calibrate import COUNT_EVERY
from indknn.models import feature_map, shared_model

ROOT = Path(__file__).parents[2]
FIRST = ("README.md", "docs/index.md", "docs/quickstart.md")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
UNTRUE = (
    r"spends the budget of the people near",
    r"nothing (has|needs) to be trained again",
    r"nothing (is|was) trained again",
    r"no model has to be trained again",
    r"without (retraining|training anything again)",
    r"those near pay",
)
"""What was said of the default, and holds for votes alone."""
VOTES_ALONE = r"[Oo]nly (people|records|those) near (a|the) quer\w+ take part"


def words_of(page):
    """The words that a reader of the rendered page sees."""
    source = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.S)
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(source)
    return [word for word in re.sub(r"<[^>]+>", " ", html).split() if any(letter.isalnum() for letter in word)]


def test_the_readme_is_short_and_has_one_picture_and_one_table_of_results():
    text = (ROOT / "README.md").read_text()
    assert len(words_of(ROOT / "README.md")) <= 900
    assert text.count("![") == 1
    assert re.findall(r"<!-- results: (\S+) -->", text) == ["rivals"]
    assert text.count("| accuracy") == 1
    assert text.index("\nmake demo") < text.index("\nmake test") < text.index("![")


@pytest.mark.parametrize("name", FIRST)
def test_the_first_pages_name_the_shared_model_and_the_way_without_it(name):
    text = " ".join((ROOT / name).read_text().split())
    for said in ("shared model", 'mode="votes"', "90%", "gradient", "vote", "stays"):
        assert said in text, said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_says_of_the_default_what_holds_for_votes_alone(page):
    text = " ".join(page.read_text().split())
    assert not [said for said in UNTRUE if re.search(said, text, re.I)]
    for said in re.finditer(VOTES_ALONE, text):
        assert "votes" in text[said.start() - 250 : said.start()], 'say that this is mode="votes"'


def percent(share):
    return f"{100 * share:.3g}%"


def test_the_page_about_the_default_has_its_constants():
    text = " ".join((ROOT / "docs" / "endless.md").read_text().split())
    for said in (
        f"gradient of the model, {shared_model.STEPS} to a round",
        f"all but {percent(shared_model.RESERVE)} of the shared part",
        f"{percent(shared_model.COUNT_PRICE)} of the shared part; {percent(shared_model.RECOUNT_PRICE)} later",
        f"{percent(shared_model.CARD_PRICE)} of the shared part",
        f"for 1 of {COUNT_EVERY} questions",
        f"after {SCHEDULE_FIRST} queries",
        f"Up to {shared_model.MOST_ROWS:,} of them are kept, and fewer than {feature_map.LEAST_ROWS} are hardly used",
        f"With {feature_map.FEW_FEATURES} features or fewer it gets {feature_map.FOURIER} random Fourier features",
    ):
        assert said in text, said


def test_what_is_said_of_numbers_is_in_their_table():
    """docs/comparison.md says so in words; the table is written by a benchmark."""
    table = (ROOT / "docs/guides/numbers.md").read_text().split("<!-- regression:")[1].split("\n\n")[1]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    private = [i for i, name in enumerate(header) if name in {"AdaSSP", "NoisySGD", "private mean"}]
    assert len(private) == 3
    assert len(rows) == 5
    assert header[1] == "indknn"
    for row in rows:
        at_one = [float(cell.split()[1]) for cell in row[1:7]]  # of three epsilons
        assert at_one[0] >= max(at_one[i - 1] for i in private) - 0.01, row[0]


def test_the_lead_over_private_knn_is_that_of_the_results():
    table = (ROOT / "docs/results.md").read_text().split("<!-- results: paper -->")[1].split("<!-- end")[0]
    leads = {}
    for line in table.splitlines():
        if line.startswith("| ") and "T = " in line:
            name, ours, theirs, *_ = [cell.strip() for cell in line.strip("|").split("|")]
            pairs = zip(ours.split(" / "), theirs.split(" / "), strict=True)
            leads[name] = [100 * (float(one) - float(other)) for one, other in pairs]
    (documents,) = [lead for name, lead in leads.items() if name.startswith("DBpedia")]
    others = [one for name, lead in leads.items() if not name.startswith("DBpedia") for one in lead]
    said = " ".join((ROOT / "docs/comparison.md").read_text().split())
    assert f"by {min(others):.0f} to {max(others):.0f} points on CIFAR-10, Fashion-MNIST and AG News" in said
    assert f"by {min(documents):.0f} to {max(documents):.0f} points on DBpedia" in said


def test_pages_that_count_the_rules_count_all_of_them():
    rules = len(re.findall(r"^### Rule \d+:", (ROOT / "docs" / "privacy.md").read_text(), re.M))
    assert rules == 18
    for page in PAGES:
        counted = re.findall(r"(\w+) rules that the code\s+keeps", page.read_text())
        assert set(counted) <= {"eighteen"}, page


def test_one_query_charges_everybody_for_the_model_and_at_most_its_share():
    rng = np.random.default_rng(5)
    y = rng.integers(2, size=600)
    X = rng.normal(size=(600, 6)) + 2.5 * (2 * y[:, None] - 1)
    terms = {"classes": [0, 1], "tau": 0.9, "random_state": 5, "public": X[:80]}
    model = IndKNNClassifier(**terms).fit(X, y).warm_up()
    trained = model.privacy_spent() / model.budget_
    assert (trained > 0).all()
    assert trained.max() <= model.model_share == 0.9
    at_once = IndKNNClassifier(**terms).fit(X, y)
    at_once.predict(X[:1], analyst="alice")
    assert (at_once.privacy_spent() > 0).all()
    model.predict(X[:1], analyst="alice")
    after = model.privacy_spent(analyst="alice") / model.budget_
    near = (X / np.linalg.norm(X, axis=1, keepdims=True)) @ (X[0] / np.linalg.norm(X[0])) >= 0.9 - 1e-2
    assert (after == trained)[~near].all(), "somebody who is not near paid for a vote"
    assert after.max() <= 1


def test_the_way_of_the_paper_charges_nobody_who_is_not_near():
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(600, 6)), rng.integers(2, size=600)
    model = IndKNNClassifier(classes=[0, 1], tau=0.6, random_state=5, mode="votes", max_queries=100).fit(X, y)
    model.predict(X[:1])
    similar = (X / np.linalg.norm(X, axis=1, keepdims=True)) @ (X[0] / np.linalg.norm(X[0]))
    paid = model.privacy_spent() > 0
    assert paid.any()
    assert similar[paid].min() > 0.6 - 1e-2
