"""The guard of boto3, with real clients against the fake of Elastic Disaster Recovery."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from adapters.conftest import Fake
from tollgate_rs import Gate, InvalidInput
from tollgate_rs.boto3 import JobCapacityTimeout, JobSettings, Rate, RateLimitTimeout, aws_policies, guard, guard_of

Start = Callable[..., Fake]

#: Practically without refill, so that tokens can be counted.
COUNTED = Rate("1/h", burst=10, adaptive=False)

_accounts = iter(range(1_000_000))


def account() -> str:
    """Buckets belong to an account, so each test has its own."""
    return f"test-{next(_accounts)}"


def client_of(fake: Fake, attempts: int = 1) -> Any:
    return boto3.client(
        "drs",
        region_name="eu-central-1",
        endpoint_url=fake.url,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"mode": "standard", "total_max_attempts": attempts}),
    )


class FakeTime:
    """A clock that sleeping advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self.naps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


def test_r001_9_every_page_takes_a_token(fake: Start) -> None:
    drs = fake("fake-drs", "--servers", "120", "--page", "50")
    client = guard(client_of(drs), rate=COUNTED, account=account())
    pages = client.get_paginator("describe_source_servers").paginate(maxResults=50)
    assert sum(len(page["items"]) for page in pages) == 120
    assert guard_of(client).available() == 7
    assert drs.get("/arrivals")["calls"] == 3


def test_r001_7_every_retry_takes_a_token(fake: Start) -> None:
    drs = fake("fake-drs", "--fail-percent", "100")
    client = guard(client_of(drs, attempts=3), rate=COUNTED, account=account())
    with pytest.raises(ClientError) as failed:
        client.describe_jobs()
    assert failed.value.response["ResponseMetadata"]["RetryAttempts"] == 2
    assert guard_of(client).available() == 7
    assert drs.get("/arrivals")["calls"] == 3


def test_a_call_without_a_token_does_not_go_out_and_is_not_retried(fake: Start) -> None:
    drs = fake("fake-drs")
    client = guard(client_of(drs, attempts=5), rate=COUNTED, account=account(), wait=0)
    for _ in range(10):
        client.describe_jobs()
    with pytest.raises(RateLimitTimeout, match="no token for drs in eu-central-1") as timeout:
        client.describe_jobs()
    assert (timeout.value.region, timeout.value.wait) == ("eu-central-1", 0)
    assert drs.get("/arrivals")["calls"] == 10


def test_signatures_are_made_after_the_wait(fake: Start) -> None:
    drs = fake("fake-drs")
    client = guard(client_of(drs), rate=Rate("1/s", burst=1, adaptive=False), account=account())
    seen: list[tuple[str, float]] = []
    unsigned: list[bool] = []

    def before_waiting(request: Any, **_: Any) -> None:
        unsigned.append("Authorization" not in request.headers)

    def before_sending(request: Any, **_: Any) -> None:
        seen.append((request.headers["X-Amz-Date"].decode(), time.time()))

    client.meta.events.register_first("request-created.drs", before_waiting)
    client.meta.events.register("before-send.drs", before_sending)
    began = time.time()
    for _ in range(3):
        client.describe_jobs()
    # The third call waited for two seconds, and its signature is not from before.
    assert len(seen) == 3 and unsigned == [True] * 3
    signed = [datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp() for date, _ in seen]
    assert began + 1.9 < seen[2][1]
    assert signed[2] - signed[0] >= 1 and signed[2] > began + 0.9


def test_r001_5_zero_calls_above_the_rate_from_many_threads(fake: Start) -> None:
    # The service refuses what exceeds 40 per second with bursts of 20.
    drs = fake("fake-drs", "--rate", "40", "--burst", "20")
    name = account()
    clients = [guard(client_of(drs), rate=Rate("40/s", burst=10), account=name) for _ in range(4)]
    errors: list[BaseException] = []

    def call(client: Any) -> None:
        try:
            for _ in range(20):
                client.describe_jobs()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(client,)) for client in clients for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert drs.get("/arrivals")["calls"] == 160
    # Nothing was throttled, so nothing was adapted.
    assert guard_of(clients[0]).percent() == 100


def test_throttling_halves_the_rate_and_success_raises_it(fake: Start) -> None:
    throttled = fake("fake-drs", "--throttle-percent", "100", "--retry-after", "0s")
    healthy = fake("fake-drs")
    name = account()
    client = guard(client_of(throttled), account=name)
    with pytest.raises(ClientError, match="ThrottlingException"):
        client.describe_jobs()
    assert guard_of(client).percent() == 50
    # At most once a second: the second refusal carries no news.
    with pytest.raises(ClientError):
        client.describe_jobs()
    assert guard_of(client).percent() == 50
    # A client of the same account and region has the same bucket.
    other = guard(client_of(healthy), account=name)
    assert guard_of(other).percent() == 50
    time.sleep(1.1)
    other.describe_jobs()
    assert guard_of(client).percent() == 55


def test_retry_after_closes_the_bucket(fake: Start) -> None:
    drs = fake("fake-drs", "--throttle-percent", "100", "--retry-after", "30s")
    client = guard(client_of(drs), account=account(), wait=1)
    with pytest.raises(ClientError, match="ThrottlingException"):
        client.describe_jobs()
    with pytest.raises(RateLimitTimeout):
        client.describe_jobs()
    assert drs.get("/arrivals")["calls"] == 1


def test_an_operation_has_a_bucket_of_its_own(fake: Start) -> None:
    drs = fake("fake-drs")
    rates = {"DescribeJobs": Rate("1/h", burst=1, adaptive=False)}
    client = guard(client_of(drs), rate=COUNTED, rates=rates, account=account(), wait=0)
    client.describe_jobs()
    with pytest.raises(RateLimitTimeout, match=r"drs\.DescribeJobs"):
        client.describe_jobs()
    client.describe_source_servers()
    assert guard_of(client).available("DescribeJobs") == 0
    assert guard_of(client).available() == 9


def test_other_services_work_as_well(fake: Start) -> None:
    drs = fake("fake-drs")
    keys: dict[str, Any] = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "endpoint_url": drs.url}
    client = guard(boto3.client("sts", region_name="eu-central-1", **keys), rate=COUNTED, account=account())
    with pytest.raises(Exception):  # The fake does not speak this protocol.
        client.get_caller_identity()
    assert guard_of(client).available() < 10


def test_wrong_settings_are_refused(fake: Start) -> None:
    drs = fake("fake-drs")
    client = guard(client_of(drs), account="wrong-settings")
    with pytest.raises(ValueError, match="guarded already"):
        guard(client)
    with pytest.raises(ValueError, match="has no operation StartRecover;"):
        guard(client_of(drs), rates={"StartRecover": Rate()})
    with pytest.raises(ValueError, match="another rate or gate"):
        guard(client_of(drs), rate=Rate("5/s"), account="wrong-settings")
    with pytest.raises(InvalidInput):
        guard(client_of(drs), rate=Rate("often"), account=account())
    with pytest.raises(ValueError, match="0 to 60"):
        guard(client_of(drs), wait=61)
    with pytest.raises(ValueError, match="not guarded"):
        guard_of(client_of(drs))
    with pytest.raises(ValueError, match="JOB_POLL_INTERVAL=often"):
        JobSettings.from_environment({"JOB_POLL_INTERVAL": "often"})
    with pytest.raises(ValueError, match="1 to 20"):
        JobSettings(threshold=21)


PROCESS = """
    import sys
    import boto3
    from tollgate_rs import Gate
    from tollgate_rs.boto3 import Rate, RateLimitTimeout, aws_policies, guard

    rate = Rate("1/h", burst=30, adaptive=False)
    gate = Gate.embedded(sys.argv[1], aws_policies("drs", rate=rate))
    client = boto3.client("drs", region_name="eu-central-1", endpoint_url=sys.argv[2],
                          aws_access_key_id="test", aws_secret_access_key="test")
    client = guard(client, gate, rate=rate, wait=0)
    calls = 0
    for _ in range(20):
        try:
            client.describe_jobs()
            calls += 1
        except RateLimitTimeout:
            pass
    print(calls)
"""


def test_r001_8_processes_on_one_store_share_the_bucket_exactly(fake: Start, tmp_path: Path) -> None:
    drs = fake("fake-drs")
    command = [sys.executable, "-c", textwrap.dedent(PROCESS), str(tmp_path / "data"), drs.url]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    calls = [int(process.communicate()[0]) for process in processes]
    assert sum(calls) == 30, calls
    assert drs.get("/arrivals")["calls"] == 30


def recovery(number: int = 0, servers: int = 1) -> dict[str, Any]:
    ids = [f"s-{number + index:017x}" for index in range(servers)]
    return {"sourceServers": [{"sourceServerID": server} for server in ids], "isDrill": True}


def test_r001_11_a_job_waits_while_eighteen_run_and_times_out_with_count_and_wait(fake: Start) -> None:
    drs = fake("fake-drs", "--foreign-jobs", "18")
    clock = FakeTime()
    client = guard(client_of(drs), account=account(), sleep=clock.sleep, clock=clock.clock)
    with pytest.raises(JobCapacityTimeout) as timeout:
        client.start_recovery(**recovery())
    assert clock.naps == [30.0] * 20
    assert (timeout.value.current_jobs, timeout.value.waited) == (18, 600.0)
    assert isinstance(timeout.value, TimeoutError)
    response = timeout.value.to_http_response()
    assert response["statusCode"] == 429
    body = json.loads(response["body"])
    assert body == {
        "error": "JOB_CAPACITY_TIMEOUT",
        "message": "Timeout waiting for job capacity after 600s. Current jobs: 18/20",
        "currentJobs": 18,
        "maxJobs": 20,
        "waitTime": 600.0,
    }
    operations = {entry["operation"] for entry in drs.get("/arrivals")["by_second"]}
    assert operations == {"DescribeJobs"}


def test_r001_11_a_job_starts_below_the_threshold_and_then_counts(fake: Start) -> None:
    drs = fake("fake-drs", "--foreign-jobs", "16", "--running", "1h")
    clock = FakeTime()
    client = guard(client_of(drs), account=account(), sleep=clock.sleep, clock=clock.clock)
    status = guard_of(client).job_status()
    assert (status.current_jobs, status.available_slots, status.throttling_active) == (16, 4, False)
    assert status.to_json()["currentJobs"] == 16
    for number in range(2):
        assert client.start_recovery(**recovery(number))["job"]["jobID"].startswith("drsjob-")
    assert clock.naps == []
    assert guard_of(client).job_status().throttling_active
    with pytest.raises(JobCapacityTimeout):
        client.start_recovery(**recovery(2))


def test_r001_11_a_quota_that_the_service_reports_is_waited_for(fake: Start) -> None:
    # Five jobs of a hundred servers fill the quota of servers, while the count of jobs is low.
    drs = fake("fake-drs", "--servers", "620", "--running", "1h")
    clock = FakeTime()
    settings = JobSettings(timeout=90)
    client = guard(client_of(drs), account=account(), jobs=settings, sleep=clock.sleep, clock=clock.clock)
    for number in range(5):
        client.start_recovery(**recovery(100 * number, 100))
    with pytest.raises(JobCapacityTimeout) as timeout:
        client.start_recovery(**recovery(500, 100))
    assert clock.naps == [30.0] * 3
    assert timeout.value.current_jobs == 5


def test_r001_11_another_refusal_is_not_waited_for_and_gives_the_slot_back(fake: Start) -> None:
    drs = fake("fake-drs", "--running", "1h")
    clock, name = FakeTime(), account()
    gate = Gate.memory(aws_policies("drs"))
    client = guard(client_of(drs), gate, account=name, sleep=clock.sleep, clock=clock.clock)
    client.start_recovery(**recovery())
    with pytest.raises(ClientError, match="ConflictException"):
        client.start_recovery(**recovery())
    assert clock.naps == []
    # The policies of the gate show what the guard took.
    assert gate.standing_sync("aws.drs.jobs", f"{name}/eu-central-1")[0].used == 0
    calls = drs.get("/arrivals")["calls"]
    assert gate.standing_sync("aws.drs", f"{name}/eu-central-1")[0].used <= calls == 5


def test_r001_11_two_callers_do_not_both_take_the_last_place(fake: Start) -> None:
    drs = fake("fake-drs", "--foreign-jobs", "17", "--running", "1h")
    name = account()
    settings = JobSettings(timeout=0)
    results: list[str] = []

    def start(number: int) -> None:
        client = guard(client_of(drs), account=name, jobs=settings)
        try:
            client.start_recovery(**recovery(number))
            results.append("started")
        except JobCapacityTimeout:
            results.append("full")

    threads = [threading.Thread(target=start, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["full"] * 5 + ["started"]
    assert drs.get("/arrivals")["active_jobs"] == 18


def test_r001_11_a_throttle_that_cannot_count_fails_open(fake: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    drs = fake("fake-drs", "--foreign-jobs", "18", "--running", "1h")
    client = guard(client_of(drs), account=account())

    def fails(*_: Any, **__: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "DescribeJobs")

    monkeypatch.setattr(client, "get_paginator", fails)
    assert client.start_recovery(**recovery())["job"]["jobID"]


def test_r001_11_settings_come_from_the_environment() -> None:
    variables = {"JOB_THROTTLE_THRESHOLD": "5", "JOB_POLL_INTERVAL": "2", "JOB_THROTTLE_TIMEOUT": "7"}
    settings = JobSettings.from_environment(variables)
    assert (settings.threshold, settings.poll_interval, settings.timeout) == (5, 2, 7)
    assert JobSettings.from_environment({}) == JobSettings()


def test_jobs_are_counted_for_drs_alone() -> None:
    keys: dict[str, Any] = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    with pytest.raises(ValueError, match="jobs are counted for drs, not for sns"):
        guard(boto3.client("sns", region_name="eu-central-1", **keys), jobs=JobSettings())


def test_a_gate_that_cannot_decide_lets_no_call_out(fake: Start) -> None:
    drs = fake("fake-drs")
    gate = Gate.memory(aws_policies("drs"))
    client = guard(client_of(drs), gate, account=account())
    client.describe_jobs()
    gate.close()
    with pytest.raises(Exception, match="closed"):
        client.describe_jobs()
    assert drs.get("/arrivals")["calls"] == 1
