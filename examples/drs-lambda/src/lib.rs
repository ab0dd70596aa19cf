#![doc = include_str!("../README.md")]

mod http;
mod telemetry;

use std::io::Write;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use tollgate::Gate;
use tollgate_drs::client::Builder;
use tollgate_drs::journal::Severity;
use tollgate_drs::throttle::{LOOK_BACK, ThrottleOptions};
use tollgate_drs::{Error, JobThrottler, Recovery};

pub use http::{Context, Http, Request, Response};
use telemetry::{Lines, Published};

/// The state of the function between invocations.
#[derive(Debug)]
pub struct Function {
    throttler: JobThrottler,
    published: Published,
}

/// The body of `POST /recoveries`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RecoveryRequest {
    servers: Vec<String>,
    #[serde(default)]
    drill: bool,
    /// Two requests with the same id start one job.
    request_id: Option<String>,
}

impl Function {
    /// Calls DRS by `drs`, within what `gate` gives to all instances of the function, if there is one. Log lines and
    /// metrics go to `log`, from a least severity on, and to `metrics`; on Lambda both are standard output.
    ///
    /// # Errors
    /// Those of [`Builder::open`], and of settings that are out of bounds.
    pub async fn open(
        drs: Builder,
        settings: ThrottleOptions,
        gate: Option<Arc<dyn Gate>>,
        (least, log): (Severity, impl Write + Send + 'static),
        metrics: impl Write + Send + 'static,
    ) -> Result<Self, Error> {
        let published = Published::new(metrics);
        let mut drs = drs.monitor(published.monitor()).monitor(Arc::new(Lines::new(least, log)));
        if let Some(gate) = &gate {
            drs = drs.gate(Arc::clone(gate));
        }
        let throttler = JobThrottler::new(drs.open().await?, settings)?;
        let throttler = match gate {
            Some(gate) => throttler.slots(gate),
            None => throttler,
        };
        Ok(Self { throttler, published })
    }

    /// Handles one request. Logs and metrics are written before the response, because Lambda freezes the function afterwards.
    pub async fn handle(&self, request: &Request) -> Response {
        let http = &request.request_context.http;
        let answer = match (http.method.as_str(), request.raw_path.as_str()) {
            ("GET", "/capacity") => self.capacity().await,
            ("POST", "/recoveries") => self.recover(request).await,
            (method, path) => Ok(Response::new(
                404,
                &json!({
                    "error": "NOT_FOUND",
                    "message": format!("unknown {method} {path}; use GET /capacity or POST /recoveries"),
                }),
            )),
        };
        let clock = self.throttler.client().clock();
        self.published.publish(clock.now()).await;
        answer.unwrap_or_else(|error| http::refusal(&error, self.throttler.settings()))
    }

    async fn capacity(&self) -> Result<Response, Error> {
        Ok(Response::new(200, &self.throttler.check_capacity().await?.to_json()))
    }

    async fn recover(&self, request: &Request) -> Result<Response, Error> {
        let wanted: RecoveryRequest = serde_json::from_str(request.text()?).map_err(|error| {
            Error::Invalid(format!(
                "the body is not a recovery: {error}; use for example {{\"servers\": [\"s-0123456789abcdef0\"], \"drill\": true}}"
            ))
        })?;
        let mut recovery = Recovery::new(wanted.servers).drill(wanted.drill);
        if let Some(id) = wanted.request_id {
            let client = self.throttler.client();
            // A repeated request finds the job of the first one.
            let since = client.clock().now() - LOOK_BACK;
            if let Some(job) = client.find_recovery(&id, since).await? {
                return Ok(Response::new(200, &json!({ "jobId": job.job_id() })));
            }
            recovery = recovery.request_id(id);
        }
        let job = self.throttler.start_recovery(&recovery).await?;
        Ok(Response::new(202, &json!({ "jobId": job.job_id() })))
    }
}
