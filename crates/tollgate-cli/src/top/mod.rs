//! `tollgate top`: a dashboard of a broker on the terminal, redrawn every second.
//!
//! [`screen`] is a pure function from the responses of the broker to text; [`terminal`] draws it and reads keys. With
//! `--once`, or without a terminal, it is printed once.

mod lists;
mod screen;
mod terminal;

use serde::Serialize;
use tollgate_protocol::json::{
    AuditResponse, PoliciesResponse, QueuesResponse, StandingQuery, StandingResponse,
    StatsResponse, TopResponse,
};

use crate::remote::Remote;
use screen::Focus;
use terminal::{Key, Terminal};
use tollgate_terminal::Failure;
use tollgate_terminal::output::{self, OutputFormat};

/// The most rows of each list; screens are seldom taller.
const ROWS: &str = "100";

/// The responses of the broker at one time.
#[derive(Debug, Serialize)]
pub(crate) struct Snapshot {
    stats: StatsResponse,
    top: TopResponse,
    recent: AuditResponse,
    incidents: AuditResponse,
    queues: QueuesResponse,
    policies: PoliciesResponse,
    standing: Option<StandingResponse>,
}

impl Snapshot {
    async fn take(broker: &Remote, subject: Option<&StandingQuery>) -> Result<Self, Failure> {
        let violated = [("limit", ROWS.to_owned()), ("outcome", "violated".to_owned())];
        let page = &violated[..1];
        Ok(Self {
            stats: broker.get("/v1/stats", &[]).await?,
            top: broker.get("/v1/audit/top", page).await?,
            recent: broker.get("/v1/audit", page).await?,
            incidents: broker.get("/v1/audit", &violated).await?,
            // Brokers of older versions do not serve it.
            queues: broker.get("/v1/queues", &[]).await.unwrap_or_default(),
            policies: broker.get("/v1/policies", &[]).await?,
            // The policy may be gone; the other lists are shown all the same.
            standing: match subject {
                Some(subject) => standing(broker, subject).await.ok(),
                None => None,
            },
        })
    }
}

async fn standing(broker: &Remote, query: &StandingQuery) -> Result<StandingResponse, Failure> {
    let StandingQuery { policy, subject } = query;
    broker.get("/v1/standing", &[("policy", policy.clone()), ("subject", subject.clone())]).await
}

/// Shows `broker`, and the usage of `subject`, until the user quits.
pub(crate) async fn run(
    broker: &Remote,
    mut subject: Option<StandingQuery>,
    once: bool,
    format: OutputFormat,
) -> Result<(), Failure> {
    if let Some(subject) = &subject {
        standing(broker, subject).await?;
    }
    let mut now = Snapshot::take(broker, subject.as_ref()).await?;
    if once || format == OutputFormat::Json || !Terminal::is_interactive() {
        return output::print(format, &now, || screen::draw(&now, None, None, terminal::size()));
    }
    let terminal = Terminal::open()?;
    let mut before: Option<Snapshot> = None;
    let mut focus = Focus::default();
    let mut lost: Option<String> = None;
    loop {
        let size = terminal::size();
        let mut text = screen::draw(&now, before.as_ref(), Some(focus), size);
        if let Some(why) = &lost {
            text = screen::with_notice(&text, why, size);
        }
        terminal.draw(&text)?;
        match terminal.key() {
            Some(Key::Quit) => return Ok(()),
            Some(Key::Next) => focus = focus.next(),
            Some(Key::Up) => focus = focus.up(),
            Some(Key::Down) => focus = focus.down(),
            Some(Key::Enter) => {
                let chosen = focus.subject(&now);
                subject = chosen.map(|(policy, subject)| StandingQuery {
                    policy: policy.to_owned(),
                    subject: subject.to_owned(),
                });
            }
            Some(Key::Other) => {}
            None => match Snapshot::take(broker, subject.as_ref()).await {
                Ok(next) => {
                    let last = std::mem::replace(&mut now, next);
                    // After a gap there is no rate.
                    before = lost.take().is_none().then_some(last);
                }
                Err(failure) => lost = Some(failure.to_string()),
            },
        }
    }
}
