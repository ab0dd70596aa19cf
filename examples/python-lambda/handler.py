"""A Lambda function that recovers servers with Elastic Disaster Recovery, within its rates and its quota of jobs."""

from __future__ import annotations

import json
import os
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from tollgate_rs import Gate
from tollgate_rs.boto3 import JobCapacityTimeout, RateLimitTimeout, aws_policies, guard, guard_of

# All instances of the function take tokens and job slots from one table. Without one, each instance has its own.
TABLE = os.environ.get("TOLLGATE_TABLE")
gate = Gate.dynamodb(TABLE, aws_policies("drs"), endpoint=os.environ.get("TOLLGATE_ENDPOINT")) if TABLE else None
drs = guard(boto3.client("drs", config=Config(retries={"mode": "standard", "total_max_attempts": 4})), gate)


def handler(event: dict[str, Any], _context: object) -> dict[str, Any]:
    """Answers `POST /recoveries` with `{"servers": ["s-…"], "drill": true}`, and `GET /capacity`."""
    try:
        if event["routeKey"] == "GET /capacity":
            return response(200, guard_of(drs).job_status().to_json())
        if event["routeKey"] != "POST /recoveries":
            return response(404, {"error": "NOT_FOUND", "message": "use POST /recoveries or GET /capacity"})
        wanted = json.loads(event.get("body") or "{}")
        servers = wanted.get("servers")
        if not servers or not all(isinstance(server, str) for server in servers):
            return response(400, {"error": "INVALID", "message": 'name servers, as in {"servers": ["s-1234…"]}'})
        job = drs.start_recovery(
            sourceServers=[{"sourceServerID": server} for server in servers], isDrill=bool(wanted.get("drill"))
        )["job"]
        return response(202, {"jobId": job["jobID"]})
    except JobCapacityTimeout as timeout:
        return timeout.to_http_response()
    except RateLimitTimeout as timeout:
        return response(429, {"error": "RATE_LIMIT_TIMEOUT", "message": str(timeout)})
    except ClientError as error:
        said = error.response["Error"]
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        return response(status if status < 500 else 502, {"error": said["Code"], "message": said["Message"]})


def response(status: int, body: dict[str, Any]) -> dict[str, Any]:
    return {"statusCode": status, "headers": {"content-type": "application/json"}, "body": json.dumps(body)}
