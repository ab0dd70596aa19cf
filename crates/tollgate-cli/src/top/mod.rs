//! `tollgate top`: a broker at a glance, redrawn every second.
//!
//! What is shown is made by a pure function of what the broker said ([`screen`]); [`terminal`] draws it and reads keys. With
//! `--once`, or where nobody could press a key, it is printed once.

mod lists;
mod screen;
mod terminal;

use serde::Serialize;
use tollgate_server::wire::{
    AuditResponse, PoliciesResponse, StandingQuery, StandingResponse, StatsResponse, TopResponse,
};

use crate::failure::Failure;
use crate::output::{self, Reader};
use crate::remote::Remote;
use screen::Focus;
use terminal::{Key, Terminal};

/// How many rows are asked for; a screen seldom has more.
const ROWS: &str = "100";

/// Everything that the broker said at one time.
#[derive(Debug, Serialize)]
pub(crate) struct Snapshot {
    stats: StatsResponse,
    top: TopResponse,
    recent: AuditResponse,
    incidents: AuditResponse,
    policies: PoliciesResponse,
    standing: Option<StandingResponse>,
}

impl Snapshot {
    fn take(broker: &Remote, subject: Option<&StandingQuery>) -> Result<Self, Failure> {
        let violated = [("limit", ROWS.to_owned()), ("outcome", "violated".to_owned())];
        let page = &violated[..1];
        Ok(Self {
            stats: broker.get("/v1/stats", &[])?,
            top: broker.get("/v1/audit/top", page)?,
            recent: broker.get("/v1/audit", page)?,
            incidents: broker.get("/v1/audit", &violated)?,
            policies: broker.get("/v1/policies", &[])?,
            // A policy that is gone, or one that asks carried, has none; the rest is worth a look all the same.
            standing: subject.and_then(|subject| standing(broker, subject).ok()),
        })
    }
}

fn standing(broker: &Remote, query: &StandingQuery) -> Result<StandingResponse, Failure> {
    let StandingQuery { policy, subject } = query;
    broker.get("/v1/standing", &[("policy", policy.clone()), ("subject", subject.clone())])
}

/// Shows `broker`, and where `subject` stands, until somebody has seen enough.
pub(crate) fn run(
    broker: &Remote,
    mut subject: Option<StandingQuery>,
    once: bool,
    reader: Reader,
) -> Result<(), Failure> {
    if let Some(subject) = &subject {
        standing(broker, subject)?;
    }
    let mut now = Snapshot::take(broker, subject.as_ref())?;
    if once || reader == Reader::Program || !Terminal::is_there() {
        return output::answer(reader, &now, || screen::draw(&now, None, None, terminal::size()));
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
        terminal.show(&text)?;
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
            // A second has passed.
            None => match Snapshot::take(broker, subject.as_ref()) {
                Ok(next) => {
                    let last = std::mem::replace(&mut now, next);
                    // After a gap the next picture has no rate.
                    before = lost.take().is_none().then_some(last);
                }
                Err(failure) => lost = Some(failure.to_string()),
            },
        }
    }
}
