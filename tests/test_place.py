"""Addresses: which store they name, which file has its keys, and that no error shows a password."""

from itertools import combinations

import pytest

from helpers.commands import run
from indknn.errors import InvalidInputError
from indknn.place import Address, is_address, keys_path, place_of, stays_here


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name in ("PGHOST", "PGPORT", "PGHOSTADDR", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("INDKNN_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


DIFFERENT = [
    "postgresql:///clinic.trial",
    "postgresql:///clinic?schema=trial",
    "postgresql:///clinic",
    "postgresql:///Clinic",
    "postgresql:///clinic-trial",
    "postgresql:///clinic_trial",
    "postgresql:///clinic%2Ftrial",
    "postgresql:///clinic%252Ftrial",
    "postgresql:///clinic%00trial",
    "postgresql:///clinic,indknn",
    'postgresql:///clinic", "trial',
    "postgresql:///clinic.trial?schema=trial",
    "postgresql:///cl%C3%ADnic",
    "postgresql:///cli%CC%81nic",
    "postgresql:///local-5432-clinic",
    "postgresql://db.example/clinic",
    "postgresql://db-example/clinic",
    "postgresql://db.example:5433/clinic",
    "postgresql://db.example-5433/clinic",
    "postgresql://5432/clinic",
    "postgresql:///clinic?host=/var/run/postgresql",
    "postgresql:///clinic?host=/var/run_postgresql",
    "postgresql:///clinic?host=/Var/run/postgresql",
    "postgresql:///clinic?service=db.example",
    "postgresql://[::1]/clinic",
    f"postgresql:///{'x' * 63}",
    f"postgresql://{'.'.join(['x' * 60] * 4)}/{'x' * 63}?schema={'x' * 63}",
    f"postgresql://{'.'.join(['x' * 60] * 4)}/{'x' * 63}?schema={'x' * 62}y",
]


def test_different_stores_have_different_key_files():
    names = [keys_path(one).name for one in DIFFERENT]
    for (one, left), (other, right) in combinations(zip(DIFFERENT, names, strict=True), 2):
        assert left.lower() != right.lower(), (one, other)  # some file systems ignore capitals
    assert max(len(name.encode()) for name in names) <= 255
    assert all(name.isascii() and "/" not in name for name in names)


@pytest.mark.parametrize("address", DIFFERENT)
def test_an_address_that_is_shown_names_the_same_store(address):
    assert place_of(str(place_of(address))) == place_of(address)


def test_one_store_has_one_key_file(monkeypatch):
    same = ["postgresql://db.example/clinic", "postgres://ann@DB.example:5432/clinic?schema=indknn&sslmode=require"]
    assert len({keys_path(one) for one in same}) == 1
    monkeypatch.setenv("PGHOST", "db.example")
    assert keys_path("postgresql:///clinic") == keys_path(same[0])
    monkeypatch.setenv("PGPORT", "5433")
    assert keys_path("postgresql:///clinic") == keys_path("postgresql://db.example:5433/clinic")


@pytest.mark.parametrize("scheme", ["POSTGRESQL", "PostgreSQL", "postgres", " postgresql"])
def test_an_address_may_be_written_in_capitals(scheme):
    assert is_address(f"{scheme}://db.example/People")
    assert place_of(f"{scheme}://db.example/People") == Address("People", options=(("host", "db.example"),))


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ann:s3cret@db.example/people",
        "POSTGRESQL://ann:s3cret@db.example/people",
        "Postgres:/ann:s3cret@db.example/people",
        "postgresql:ann:s3cret@db.example/people",
        " postgresql://ann:s3cret@db.example/people",
        "postgresql+psycopg://ann:s3cret@db.example/people",
        "mysql://ann:s3cret@db.example/people",
        "postgresql://ann:12/s3cret@db.example/people",
        "postgresql://ann:12?s3cret@db.example/people",
        "postgresql://ann:12#s3cret@db.example/people",
        "postgresql://ann:[s3cret@db.example/people",
        "postgresql://db.example/people?password=s3cret",
        "postgresql://db.example/people?PASSWORD=s3cret",
        "postgresql://db.example/people?sslpassword=s3cret",
        "host=db.example dbname=people password=s3cret",
    ],
)
def test_a_password_is_refused_and_never_shown(text):
    with pytest.raises(InvalidInputError) as refused:
        place_of(text)
    assert "s3cret" not in str(refused.value)
    for command in (["status", text], ["keys", "list", text], ["takeover", text], ["doctor", text], ["init", text]):
        told = run(*command)
        assert told.exit_code != 0
        assert "s3cret" not in told.output
        assert "s3cret" not in str(told.exception)


@pytest.mark.parametrize("text", ["people.store", "./a:b", "C:/people.store", "postgresql", "folder/postgresql.store"])
def test_files_stay_files(text):
    assert not is_address(text)


def test_where_tls_is_not_needed(monkeypatch):
    here = ["/people", "/people?host=/run/pg", "localhost/people", "127.0.0.1:5433/people", "[::1]/people"]
    beyond = ["db.example/people", "192.168.0.7/people", "/people?service=prod", "/people?host=localhost,db.example"]
    assert all(stays_here(place_of(f"postgresql://{one}")) for one in here)
    assert not any(stays_here(place_of(f"postgresql://{one}")) for one in beyond)
    monkeypatch.setenv("PGHOST", "db.example")
    assert not stays_here(place_of("postgresql:///people"))
    assert stays_here(place_of("postgresql://localhost/people"))
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.7")
    assert not stays_here(place_of("postgresql://localhost/people"))
