//! Jobs and servers, and how time moves them on.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use tollgate::{Span, Timestamp};

use super::Settings;
use super::arrivals::Throttle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Pending,
    Started,
    Completed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Launch,
    Terminate,
}

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) id: String,
    kind: Kind,
    is_drill: bool,
    pub(super) created_at: Timestamp,
    ended_at: Option<Timestamp>,
    pub(super) progress: Progress,
    /// Server, and its recovery instance if there is one.
    pub(super) servers: Vec<(String, Option<String>)>,
    failed: BTreeSet<String>,
    tags: Map<String, Value>,
    is_foreign: bool,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) servers: BTreeSet<String>,
    /// Source server by instance.
    pub(super) instances: BTreeMap<String, String>,
    /// Oldest first.
    pub(super) jobs: Vec<Job>,
    pub(super) throttle: Throttle,
    next: u64,
}

pub(super) fn server_id(number: usize) -> String {
    format!("s-{number:017x}")
}

impl State {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            servers: (0..settings.servers).map(server_id).collect(),
            instances: BTreeMap::new(),
            jobs: Vec::new(),
            throttle: Throttle::default(),
            next: 1,
        }
    }

    pub(super) fn active(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter().filter(|job| job.progress != Progress::Completed)
    }

    /// Whether a job that is not completed has the server or instance `id`.
    pub(super) fn is_busy(&self, id: &str) -> bool {
        let has = |job: &Job| {
            job.servers
                .iter()
                .any(|(server, instance)| server == id || instance.as_deref() == Some(id))
        };
        self.active().any(has)
    }

    pub(super) fn start(
        &mut self,
        kind: Kind,
        servers: Vec<(String, Option<String>)>,
        is_drill: bool,
        tags: Map<String, Value>,
        now: Timestamp,
    ) -> &Job {
        let id = format!("drsjob-{:017x}", self.next);
        self.next += 1;
        self.jobs.push(Job {
            id,
            kind,
            is_drill,
            created_at: now,
            ended_at: None,
            progress: Progress::Pending,
            servers,
            failed: BTreeSet::new(),
            tags,
            is_foreign: false,
        });
        &self.jobs[self.jobs.len() - 1]
    }

    pub(super) fn start_foreign(&mut self, now: Timestamp) {
        self.start(Kind::Launch, Vec::new(), false, Map::new(), now);
        if let Some(job) = self.jobs.last_mut() {
            job.is_foreign = true;
        }
    }

    pub(super) fn end_foreign(&mut self, count: usize, now: Timestamp) {
        let running = |job: &&mut Job| job.is_foreign && job.progress != Progress::Completed;
        for job in self.jobs.iter_mut().filter(running).take(count) {
            job.progress = Progress::Completed;
            job.ended_at = Some(now);
        }
    }

    /// Advances every job to `now`.
    pub(super) fn advance(&mut self, settings: &Settings, now: Timestamp) {
        for job in self.jobs.iter_mut().filter(|job| !job.is_foreign && job.ended_at.is_none()) {
            let age = now.since(job.created_at);
            let whole = settings.pending_for.plus(settings.running_for);
            if whole <= age {
                job.end(settings, &mut self.instances, &mut self.next, job.created_at + whole);
            } else if settings.pending_for <= age {
                job.progress = Progress::Started;
            }
        }
    }
}

impl Job {
    fn end(
        &mut self,
        settings: &Settings,
        instances: &mut BTreeMap<String, String>,
        next: &mut u64,
        at: Timestamp,
    ) {
        self.progress = Progress::Completed;
        self.ended_at = Some(at);
        for (server, instance) in &mut self.servers {
            match self.kind {
                Kind::Terminate => {
                    instance.as_ref().map(|id| instances.remove(id));
                }
                Kind::Launch if settings.failing.contains(server) => {
                    self.failed.insert(server.clone());
                }
                Kind::Launch => {
                    let id = format!("i-{next:017x}");
                    *next += 1;
                    instances.insert(id.clone(), server.clone());
                    *instance = Some(id);
                }
            }
        }
    }

    fn launch_status(&self, server: &str) -> &'static str {
        match (self.progress, self.kind) {
            (Progress::Pending, _) => "PENDING",
            (Progress::Started, _) => "IN_PROGRESS",
            (Progress::Completed, Kind::Terminate) => "TERMINATED",
            (Progress::Completed, Kind::Launch) if self.failed.contains(server) => "FAILED",
            (Progress::Completed, Kind::Launch) => "LAUNCHED",
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let servers = self.servers.iter().map(|(server, instance)| {
            let mut one =
                json!({ "sourceServerID": server, "launchStatus": self.launch_status(server) });
            if let Some(id) = instance {
                one["recoveryInstanceID"] = json!(id);
            }
            one
        });
        let initiated_by = match (self.kind, self.is_drill) {
            (Kind::Terminate, _) => "TERMINATE_RECOVERY_INSTANCES",
            (Kind::Launch, true) => "START_DRILL",
            (Kind::Launch, false) => "START_RECOVERY",
        };
        let mut job = json!({
            "jobID": self.id,
            "arn": format!("arn:aws:drs:eu-central-1:123456789012:job/{}", self.id),
            "type": if self.kind == Kind::Launch { "LAUNCH" } else { "TERMINATE" },
            "initiatedBy": initiated_by,
            "creationDateTime": self.created_at.to_string(),
            "status": match self.progress {
                Progress::Pending => "PENDING",
                Progress::Started => "STARTED",
                Progress::Completed => "COMPLETED",
            },
            "participatingServers": servers.collect::<Vec<_>>(),
            "tags": self.tags,
        });
        if let Some(at) = self.ended_at {
            job["endDateTime"] = json!(at.to_string());
        }
        job
    }

    /// Returns the log so far.
    pub(super) fn log(&self, pending_for: Span) -> Vec<Value> {
        let item = |at: Timestamp, event: &str, server: Option<&str>| {
            let mut item = json!({ "logDateTime": at.to_string(), "event": event });
            if let Some(server) = server {
                item["eventData"] = json!({ "sourceServerID": server });
            }
            item
        };
        let mut log = vec![item(self.created_at, "JOB_START", None)];
        let of_each = |at: Timestamp, event: &'static str| {
            self.servers.iter().map(move |(server, _)| item(at, event, Some(server)))
        };
        if self.progress != Progress::Pending && self.kind == Kind::Launch {
            log.extend(of_each(self.created_at + pending_for, "LAUNCH_START"));
        }
        if let Some(at) = self.ended_at {
            let failed = of_each(at, "LAUNCH_FAILED");
            log.extend(failed.filter(|item| {
                item["eventData"]["sourceServerID"]
                    .as_str()
                    .is_some_and(|id| self.failed.contains(id))
            }));
            log.push(item(at, "JOB_END", None));
        }
        log
    }
}
