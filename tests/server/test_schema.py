"""Requests made up from the OpenAPI document, valid and not: nothing of it is a fault of the server."""

import json
from contextlib import suppress

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from indknn.store.keyfile import ROLES
from indknn.store.verify import problems
from server.serving import application, make_store

EXAMPLES = 20


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "a.store"
    with make_store(path) as store, application(store, roles=ROLES, max_body=1 << 20) as client:
        client.schema = schemathesis.openapi.from_asgi(
            "/openapi.json", client.app, headers={"authorization": f"Bearer {client.keys['admin']}"}
        )
        yield client
        assert not list(problems(store))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda m: m.value)
def test_no_request_is_a_fault_of_the_server(served, mode):
    operations = [result.ok() for result in served.schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/v2/models/{name}/infer", "/v1/records", "/v1/owners/{id}"}
    tried = [_try(served, operation, mode) for operation in operations]
    assert sum(tried) > 10 * len(tried) / 2


def _try(served, operation, mode):
    """How many requests were made."""
    made = 0

    @given(operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case):
        nonlocal made
        made += 1
        for role in ("admin", "analyst", None):
            headers = {} if role is None else {"Authorization": f"Bearer {served.keys[role]}"}
            response = case.call(headers=headers)
            case.validate_response(response, checks=[not_a_server_error])
            if response.status_code >= 400:
                assert set(json.loads(response.content)) == {"error", "code"}

    with suppress(Unsatisfiable):  # a request without parameters cannot be wrong
        check()
    return made
