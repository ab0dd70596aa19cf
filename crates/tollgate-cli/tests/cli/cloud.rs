//! The services of AWS that a template in `deploy/` needs, called as any client calls them. An emulator answers: it
//! deploys the template, runs the function's own `bootstrap` as processes, and executes the state machine.

use hyper::Request;
use hyper::body::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tollgate_testkit::servers::{Ministack, eventually};

use crate::http::Http;

/// An account with nothing in it.
pub(crate) struct Cloud {
    emulator: Ministack,
    http: Http,
}

/// An execution that is over.
#[derive(Debug)]
pub(crate) struct Executed {
    pub(crate) status: String,
    pub(crate) output: Value,
}

impl Cloud {
    /// An account in which waits take this share of their time.
    pub(crate) fn start(share: f64) -> Self {
        let emulator = Ministack::start_hurried(share).expect("an emulator");
        Self { emulator, http: Http::new() }
    }

    /// The address of every service.
    pub(crate) fn endpoint(&self) -> String {
        self.emulator.endpoint()
    }

    fn send(&self, request: Request<impl Into<Bytes>>) -> String {
        let reply = self.http.send(request);
        assert!(reply.status().is_success(), "{}: {}", reply.status(), reply.body());
        reply.into_body()
    }

    /// Puts an object into a bucket, which is made for it.
    pub(crate) fn put(&self, bucket: &str, key: &str, bytes: &[u8]) {
        let at = self.emulator.endpoint();
        let bucket = format!("{at}/{bucket}");
        self.send(Request::put(&bucket).body("").expect("a request"));
        let object = Request::put(format!("{bucket}/{key}"));
        self.send(object.body(bytes.to_vec()).expect("a request"));
    }

    fn ask(&self, target: &str, body: &Value) -> Value {
        let request = Request::post(self.emulator.endpoint())
            .header("x-amz-target", target)
            .header("content-type", "application/x-amz-json-1.1")
            .body(body.to_string());
        serde_json::from_str(&self.send(request.expect("a request"))).expect("JSON")
    }

    /// Keeps a secret.
    pub(crate) fn keep(&self, name: &str, secret: &Value) {
        let body = json!({ "Name": name, "SecretString": secret.to_string() });
        self.ask("secretsmanager.CreateSecret", &body);
    }

    fn stacks(&self, action: &str, name: &str, fields: &[(String, &str)]) -> String {
        let all = [("Action", action), ("Version", "2010-05-15"), ("StackName", name)];
        let fields = fields.iter().map(|(key, value)| (key.as_str(), *value));
        let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let pairs = all.into_iter().chain(fields);
        let pairs = pairs.map(|(key, value)| format!("{}={}", encode(key), encode(value)));
        let request = Request::post(self.emulator.endpoint())
            .header("content-type", "application/x-www-form-urlencoded")
            .body(pairs.collect::<Vec<_>>().join("&"));
        self.send(request.expect("a request"))
    }

    /// Deploys `template` as the stack `name`, and returns its output `wanted`.
    pub(crate) fn deploy(
        &self,
        name: &str,
        template: &str,
        parameters: &[(&str, &str)],
        wanted: &str,
    ) -> String {
        let mut fields = vec![
            ("TemplateBody".to_owned(), template),
            ("Capabilities.member.1".to_owned(), "CAPABILITY_IAM"),
        ];
        for (number, (key, value)) in (1..).zip(parameters) {
            fields.push((format!("Parameters.member.{number}.ParameterKey"), key));
            fields.push((format!("Parameters.member.{number}.ParameterValue"), value));
        }
        self.stacks("CreateStack", name, &fields);
        let made = eventually(|| {
            let described = self.stacks("DescribeStacks", name, &[]);
            (!described.contains("_IN_PROGRESS<")).then_some(described)
        });
        let made = made.expect("it is made in time");
        assert!(made.contains("<StackStatus>CREATE_COMPLETE<"), "{made}");
        let (_, rest) = made
            .split_once(&format!("<OutputKey>{wanted}</OutputKey><OutputValue>"))
            .expect("it has that output");
        rest.split_once('<').expect("it ends").0.to_owned()
    }

    /// Calls a function URL, as its own client would if the name led here.
    pub(crate) fn call(&self, url: &str, request: Request<String>) -> (u16, Value) {
        let (_, host) = url.split_once("://").expect("an address");
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().expect("a path").as_str().to_owned();
        head.uri = format!("{}{path}", self.emulator.endpoint()).parse().expect("an address");
        let host = host.trim_end_matches('/').parse().expect("a name");
        head.headers.insert("host", host);
        let (head, body) = self.http.send(Request::from_parts(head, body)).into_parts();
        (head.status.as_u16(), serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    /// Starts an execution, and returns its name.
    pub(crate) fn execute(&self, machine: &str, input: &Value) -> String {
        let body = json!({ "stateMachineArn": machine, "input": input.to_string() });
        let started = self.ask("AWSStepFunctions.StartExecution", &body);
        started["executionArn"].as_str().expect("a name").to_owned()
    }

    /// How an execution ended, if it has.
    pub(crate) fn ended(&self, execution: &str) -> Option<Executed> {
        let body = json!({ "executionArn": execution });
        let now = self.ask("AWSStepFunctions.DescribeExecution", &body);
        let status = now["status"].as_str().expect("a status").to_owned();
        let output = now["output"].as_str().map(|text| serde_json::from_str(text).expect("JSON"));
        (status != "RUNNING").then(|| Executed { status, output: output.unwrap_or_default() })
    }

    /// What happened in an execution so far, oldest first.
    pub(crate) fn history(&self, execution: &str) -> Vec<Value> {
        let (mut events, mut next) = (Vec::new(), Value::Null);
        loop {
            let mut body = json!({ "executionArn": execution, "maxResults": 1000 });
            if !next.is_null() {
                body["nextToken"] = next;
            }
            let mut page = self.ask("AWSStepFunctions.GetExecutionHistory", &body);
            events.append(page["events"].as_array_mut().expect("a list"));
            next = page["nextToken"].take();
            if next.is_null() {
                return events;
            }
        }
    }
}
