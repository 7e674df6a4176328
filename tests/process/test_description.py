"""Whatever is sent to the endpoint, it answers as its description says and with no fault of its own."""

from __future__ import annotations

from typing import Any

import pytest
from endpoint import listening

from engine.launcher import Handle
from engine.probe import call

_EXAMPLES = 10  # of each call and kind; `schemathesis run` on /openapi.json does as many as one likes
_FEW_TOKENS = {"max_tokens": 2}


@pytest.mark.parametrize("kind", ["positive", "negative"])
def test_every_answer_is_as_described(toy: Handle, kind: str) -> None:
    schemathesis = pytest.importorskip("schemathesis")  # from Python 3.11 on
    hypothesis = pytest.importorskip("hypothesis")
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    held = [not_a_server_error, checks.status_code_conformance, checks.content_type_conformance]
    held.append(checks.response_schema_conformance)
    settings = hypothesis.settings(
        max_examples=_EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    schema = schemathesis.openapi.from_dict(call(toy.socket, "GET", "/openapi.json"))
    with listening(toy) as (port, token):
        for result in schema.get_all_operations():
            operation = result.ok()
            if kind == "negative" and operation.method == "get":  # nothing to get wrong
                continue
            mode = schemathesis.GenerationMode(kind)

            @settings
            @hypothesis.seed(7)
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                if isinstance(case.body, dict) and case.path.startswith("/v1/"):
                    case.body |= _FEW_TOKENS
                    case.body.pop("max_completion_tokens", None)
                case.call_and_validate(
                    base_url=f"http://127.0.0.1:{port}",
                    headers={"authorization": f"Bearer {token}"},
                    checks=held,
                )

            send()
    assert "Traceback" not in toy.paths.log.read_text()
