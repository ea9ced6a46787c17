import pytest

from server.serving import application, make_store


@pytest.fixture
def store(tmp_path):
    with make_store(tmp_path / "a.store") as made:
        yield made


@pytest.fixture
def client(store):
    """Without keys: everything is allowed."""
    with application(store) as made:
        yield made
