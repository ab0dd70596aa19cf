"""The Python programs in examples/, each run as its README says."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import psycopg
import pytest
from conftest import binary
from starlette.testclient import TestClient

from adapters.conftest import ROOT, Fake
from tollgate_rs import Gate

EXAMPLES = ROOT / "examples"


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), EXAMPLES / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_fastapi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = (EXAMPLES / "fastapi/tollgate.toml").read_text().replace("tollgate-data", str(tmp_path / "data"))
    # Nothing comes back during the test, however slow the machine is.
    (tmp_path / "tollgate.toml").write_text(config.replace('"2/s"', '"2/h"'))
    monkeypatch.setenv("TOLLGATE_CONFIG", str(tmp_path / "tollgate.toml"))
    main = load("fastapi/main.py")
    with TestClient(main.app) as client:
        assert client.get("/health").json() == {"degraded": False}
        alice = {"x-api-key": "key-alice"}

        def summary(headers: dict[str, str]) -> Any:
            return client.post("/v1/summaries", params={"text": "hello " * 20}, headers=headers)

        replies = [summary(alice) for _ in range(30)]
        admitted = [reply for reply in replies if reply.status_code == 200]
        denied = [reply for reply in replies if reply.status_code == 429]
        assert (len(admitted), len(denied)) == (10, 20)
        assert admitted[0].headers["ratelimit-policy"] == '"burst";q=10;w=18000'
        assert denied[0].json()["policy"] == "user" and "retry-after" in denied[0].headers
        assert summary({"x-api-key": "key-bob"}).status_code == 200
        tokens = admitted[0].json()["tokens"]
        standing = main.gate.standing_sync("team-tokens", "research")[0]
        assert standing.used == tokens * (len(admitted) + 1)
        # Two reports are being made, so a third is refused after its wait.
        held = [main.gate.acquire_sync("reports", "all") for _ in range(2)]
        refused = client.post("/v1/reports", params={"pages": 3}, headers={"x-api-key": "key-carol"})
        assert refused.status_code == 429 and "at-once" in refused.json()["detail"]
        for permit in held:
            permit.release()
        assert client.post("/v1/reports", params={"pages": 3}, headers={"x-api-key": "key-carol"}).json() == {"pages": 3}
    main.gate.close()


def test_python_lambda(fake: Callable[..., Fake], servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drs = fake("fake-drs", "--foreign-jobs", "16", "--running", "1h")
    for name, value in {
        "AWS_ENDPOINT_URL_DRS": drs.url,
        "AWS_REGION": "eu-west-1",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "JOB_THROTTLE_TIMEOUT": "0",
        "TOLLGATE_TABLE": "lambda-limits",
        "TOLLGATE_ENDPOINT": servers.dynamodb["endpoint"],
    }.items():
        monkeypatch.setenv(name, value)
    boto3.client("dynamodb", endpoint_url=servers.dynamodb["endpoint"]).create_table(
        TableName="lambda-limits",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
    )
    handler = load("python-lambda/handler.py").handler

    def recover(server: int) -> dict[str, Any]:
        body = json.dumps({"servers": [f"s-{server:017x}"], "drill": True})
        answer: dict[str, Any] = handler({"routeKey": "POST /recoveries", "body": body}, None)
        return answer

    capacity = handler({"routeKey": "GET /capacity"}, None)
    assert json.loads(capacity["body"])["currentJobs"] == 16
    started = [recover(number) for number in range(2)]
    assert [answer["statusCode"] for answer in started] == [202, 202]
    assert json.loads(started[0]["body"])["jobId"].startswith("drsjob-")
    full = recover(2)
    assert full["statusCode"] == 429 and json.loads(full["body"])["error"] == "JOB_CAPACITY_TIMEOUT"
    assert handler({"routeKey": "POST /recoveries", "body": "{}"}, None)["statusCode"] == 400
    assert handler({"routeKey": "GET /"}, None)["statusCode"] == 404
    # The tokens came from the table, where other instances see them.
    items = boto3.client("dynamodb", endpoint_url=servers.dynamodb["endpoint"]).scan(TableName="lambda-limits")["Items"]
    assert any("aws.drs" in item["pk"]["S"] for item in items), items


@pytest.fixture
def database(servers: Any) -> str:
    """A database with the table of the example and its quota."""
    with psycopg.connect(servers.postgres, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS videos")
        connection.execute("CREATE DATABASE videos")
    url = servers.postgres.rpartition("/")[0] + "/videos"
    with psycopg.connect(url) as connection:
        connection.execute(
            "DO $$ BEGIN CREATE ROLE shop LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
            " CREATE TABLE video_requests (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            " user_id text NOT NULL, title text, created_at timestamptz NOT NULL DEFAULT now());"
            " ALTER TABLE video_requests OWNER TO shop"
        )
    options = ["--url-env", "DATABASE_URL", "--table", "video_requests", "--limit", "5", "--window", "24h"]
    command = [str(binary("tollgate", "tollgate-cli")), "postgres", "install", *options]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"DATABASE_URL": url})
    return str(url)


def test_r004_postgres_python(database: str, caplog: pytest.LogCaptureFixture) -> None:
    module = load("postgres-python/quota.py")
    away = database.replace(database.rpartition("@")[2].split("/")[0], "127.0.0.1:1")
    url = database
    quota = module.Quota(lambda: psycopg.connect(url, connect_timeout=5))

    # R004.1, R004.7, R004.8: five per user, with what remains.
    assert quota.check("alice")["allowed"]
    answers = [quota.consume("alice", f"request-{number}", title="holidays") for number in range(5)]
    assert [(answer["allowed"], answer["remaining"]) for answer in answers] == [(True, left) for left in (4, 3, 2, 1, 0)]
    assert answers[0]["row"]["title"] == "holidays"
    # R004.2: at the limit no row is created.
    refused = quota.consume("alice")
    assert not refused["allowed"] and refused["remaining"] == 0 and 0 < refused["waitSeconds"] <= 86_400
    assert quota.consume("alice", "request-0")["duplicate"]
    info = quota.info("alice")
    assert (info["quotaUsed"], info["quotaLimit"]) == (5, 5)

    # R004.6: without the database requests are let through, within a bound, and logged as an error and a warning.
    url = away
    answers = [quota.consume("bob", title=f"video {number}") for number in range(7)]
    assert answers[0] == {"allowed": True, "remaining": 0, "degraded": True}
    assert [answer["allowed"] for answer in answers] == [True] * 5 + [False] * 2
    assert quota.check("carol") == {"allowed": True, "remaining": 0, "degraded": True}
    levels = {record.levelname for record in caplog.records if record.name == "quota"}
    assert levels == {"ERROR", "WARNING"}
    assert "Rate limiting degraded - database unavailable" in caplog.text

    # When it is back, what was let through is counted, once each, at its own time.
    url = database
    assert not quota.consume("bob")["allowed"]
    assert quota.info("bob")["quotaUsed"] == 5 and not quota.kept

    # R004.5: from many threads never more than five.
    allowed: list[bool] = []
    threads = [threading.Thread(target=lambda: allowed.append(quota.consume("dora")["allowed"])) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allowed.count(True) == 5

    # A row that the table does not take is an error, and never let through.
    with pytest.raises(psycopg.Error):
        quota.consume("erin", no_such_column=1)


def test_r004_a_locked_user_is_no_outage(database: str) -> None:
    module = load("postgres-python/quota.py")
    quota = module.Quota(lambda: psycopg.connect(database))
    with psycopg.connect(database) as other:
        other.execute("SELECT video_requests_quota.consume('frank')")
        # The transaction of `other` is open and holds the lock of frank.
        with pytest.raises(psycopg.errors.LockNotAvailable):
            quota.consume("frank")
    assert not quota.kept


def test_policies_of_the_examples_are_valid() -> None:
    with Gate.parse((EXAMPLES / "fastapi/tollgate.toml").read_text().replace('kind = "embedded"', 'kind = "memory"').replace('path = "tollgate-data"', "")) as gate:
        assert [policy["name"] for policy in gate.policies] == ["user", "team", "team-tokens", "reports"]
