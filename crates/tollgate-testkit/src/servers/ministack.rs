//! ministack: an emulator of many AWS services behind one port.
//!
//! For DynamoDB it is a second opinion beside dynoxide: another implementation of expressions and conditions, behind the
//! same [`Proxy`](super::dynamodb::Proxy) ([`DynamoDb::start_ministack`](super::DynamoDb::start_ministack)). It serves
//! CloudWatch, SNS, SQS and STS as well, deploys templates of CloudFormation, executes state machines of Step Functions, and
//! runs Lambda functions as processes of this machine. It keeps everything in memory: a restart begins empty.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tollgate::clock::SystemClock;
use tollgate::{Clock as _, Span};

use super::program::installed;
use super::shared::shared;
use super::{Fault, Port, Process, Program};

/// Where `cargo xtask` puts its packages, below the folder of the build.
const PACKAGES: &str = "servers/python";

/// The region of [`Ministack::query`].
const REGION: &str = "eu-central-1";

/// An emulator of AWS services. It accepts any credentials and any region.
#[derive(Debug)]
pub struct Ministack {
    process: Process,
}

impl Ministack {
    /// Starts it.
    pub fn start() -> Result<Self, Fault> {
        Self::start_hurried(1.0)
    }

    /// Starts one that all tests of this run share, and returns its endpoint.
    pub fn shared() -> Result<String, Fault> {
        shared("ministack", || Self::start().map(|it| (it.endpoint(), vec![it.process])))
    }

    /// Starts it; the waits and the delays before retries of its state machines take this share of their time.
    pub fn start_hurried(share: f64) -> Result<Self, Fault> {
        let packages = installed(PACKAGES).ok_or_else(|| {
            Fault::new(
                "ministack is not installed; `cargo xtask test` installs what the tests need",
            )
        })?;
        let folder = tempfile::tempdir()
            .map_err(|error| Fault::new(format!("could not make a folder: {error}")))?;
        let port = Port::free()?;
        let program = Program::new("python3")
            .args("-m ministack")
            .env("PYTHONPATH", packages.to_string_lossy())
            .env("GATEWAY_PORT", port.number().to_string())
            .env("BIND_HOST", "127.0.0.1")
            // It would take a second, fixed port.
            .env("IOT_MTLS_ENABLED", "0")
            // Packages of functions are unpacked there.
            .env("TMPDIR", folder.path().to_string_lossy())
            .env("STATE_DIR", folder.path().to_string_lossy())
            .env("SFN_WAIT_SCALE", share.to_string())
            .env("LOG_LEVEL", "WARNING");
        Ok(Self { process: Process::start(program, port, folder)? })
    }

    /// The address to give to a client of any service.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.process.address())
    }

    /// Sends a request of the query protocol, which SNS, SQS, STS and CloudWatch (`monitoring`) have, in `eu-central-1`, and
    /// returns the answer.
    pub fn query(&self, service: &str, fields: &[(&str, &str)]) -> Result<String, Fault> {
        let fields = fields.iter().map(|(name, value)| {
            format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC))
        });
        let form = fields.collect::<Vec<_>>().join("&");
        let host = self.process.address();
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/{service}/aws4_request, SignedHeaders=host, \
             Signature=x\r\nContent-Length: {}\r\n\r\n{form}",
            form.len()
        );
        let sent = || -> io::Result<String> {
            let mut stream = TcpStream::connect(host)?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = sent().map_err(|error| Fault::new(format!("{service}: {error}")))?;
        if answer.starts_with("HTTP/1.1 200") {
            Ok(answer)
        } else {
            Err(Fault::new(format!("{service} answered to {form}: {answer}")))
        }
    }

    /// The sum of the CloudWatch metric `name` with exactly `dimensions`, within an hour.
    pub fn metric_sum(
        &self,
        namespace: &str,
        name: &str,
        dimensions: &[(&str, &str)],
    ) -> Result<Option<f64>, Fault> {
        let now = SystemClock.now();
        let (start, end) = (now - Span::from_hours(1), now + Span::from_mins(1));
        let (start, end) = (start.to_string(), end.to_string());
        let mut form = vec![
            ("Action".to_owned(), "GetMetricStatistics"),
            ("Namespace".to_owned(), namespace),
            ("MetricName".to_owned(), name),
            ("StartTime".to_owned(), &start),
            ("EndTime".to_owned(), &end),
            ("Period".to_owned(), "1000000000"),
        ];
        for (number, (name, value)) in (1..).zip(dimensions) {
            form.push((format!("Dimensions.member.{number}.Name"), name));
            form.push((format!("Dimensions.member.{number}.Value"), value));
        }
        let form: Vec<(&str, &str)> = form.iter().map(|(name, value)| (&**name, *value)).collect();
        let answer = self.query("monitoring", &form)?;
        let sum = answer.split("<Sum>").nth(1).and_then(|rest| rest.split('<').next());
        let parsed = sum.map(|sum| sum.parse().map_err(|_| Fault::new(format!("{sum} is no sum"))));
        parsed.transpose()
    }

    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub(super) fn into_process(self) -> Process {
        self.process
    }
}
