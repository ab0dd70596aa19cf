//! The broker over the Redis protocol: `TG.*`, for where that is the one port that is open.

mod link;
mod reply;

use serde::de::DeserializeOwned;
use tollgate::{
    Ask, BoxFuture, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Standing, Timestamp,
};
use tollgate_server::bounds::ARG_BYTES_MAX;
use tollgate_server::wire::{Admitted, Answer, Changed, Renewed, StandingResponse};

use crate::call::{Caller, seal_of};
use crate::convert::{self, json, odd};
use crate::grpc::{id_ttl_ms, named};
use link::Links;
use reply::Reply;

pub use link::LINKS_MAX;

/// The broker over the Redis protocol.
#[derive(Debug)]
pub struct RespGate {
    links: Links,
}

impl RespGate {
    pub(crate) fn new(caller: Caller) -> Result<Self, Error> {
        Ok(Self { links: Links::new(caller)? })
    }

    async fn call<A: DeserializeOwned>(&self, words: &[String]) -> Result<A, Error> {
        match self.links.ask(words).await? {
            Reply::Value(value) => serde_json::from_value(value)
                .map_err(|error| odd("the broker's answer does not parse").caused_by(error)),
            // Nobody who knows this protocol without these commands did anything.
            Reply::Failed { code, text }
                if code == "ERR" && text.starts_with("unknown command") =>
            {
                let text = format!("not a broker: {text}");
                Err(self.links.caller().not_reached(std::io::Error::other(text)))
            }
            Reply::Failed { code, text } => Err(self.links.failed(&code, &text)),
        }
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn costs(words: &mut Vec<String>, costs: &Costs) {
    for (unit, amount) in costs.iter() {
        words.extend(["COST".to_owned(), unit.to_owned(), amount.to_string()]);
    }
}

/// `TG.ACQUIRE` or `TG.CHARGE`.
fn asked(command: &str, ask: &Ask<'_>) -> Result<Vec<String>, Error> {
    ask.check()?;
    let mut words = words([command, ask.policy().name(), ask.subject()]);
    costs(&mut words, &ask.costs());
    if let (Some(id), Some(ttl)) = (ask.id_text(), id_ttl_ms(ask)) {
        words.extend(["ID".to_owned(), id.to_owned(), "IDTTL".to_owned(), ttl.to_string()]);
    }
    Ok(words)
}

/// Those that `ask` stands behind, if there are any.
fn behind(ask: &Ask<'_>) -> Result<Option<String>, Error> {
    if ask.in_front().is_empty() {
        return Ok(None);
    }
    let costs: Vec<_> =
        ask.in_front().iter().map(|amounts| named(&ask.policy().costs(amounts))).collect();
    let text = serde_json::to_string(&costs)
        .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
    if ARG_BYTES_MAX < text.len() {
        let text = format!(
            "{} others wait in front, more than fit into a request of the Redis protocol; ask again when there are fewer, \
             or use gRPC or HTTP",
            costs.len()
        );
        return Err(Error::new(ErrorKind::Contended, text));
    }
    Ok(Some(text))
}

impl Gate for RespGate {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(async move {
            let mut words = asked("TG.ACQUIRE", ask)?;
            if let Some(behind) = behind(ask)? {
                words.extend(["BEHIND".to_owned(), behind]);
            }
            match self.call::<Answer>(&words).await? {
                Answer::Admitted(admitted) => {
                    json::permit_of(admitted, ask.policy()).map(Decision::Admitted)
                }
                Answer::Denied(denied) => json::denial(*denied).map(Decision::Denied),
                Answer::Failed(_) => Err(odd("the broker answered with a problem document")),
            }
        })
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let mut words = words(["TG.SETTLE", seal_of(permit)?]);
            costs(&mut words, actual);
            Ok(self.call::<Changed>(&words).await?.changed)
        })
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let words = words(["TG.RELEASE", seal_of(permit)?]);
            Ok(self.call::<Changed>(&words).await?.changed)
        })
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move {
            let words = words(["TG.RENEW", seal_of(permit)?]);
            convert::renewed(permit, &self.call::<Renewed>(&words).await?.permit)
        })
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move {
            let words = asked("TG.CHARGE", ask)?;
            json::permit_of(self.call::<Admitted>(&words).await?, ask.policy())
        })
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let until = until.to_string();
            let words = words(["TG.CLOSE", ask.policy().name(), ask.subject(), limit, &until]);
            Ok(self.call::<Changed>(&words).await?.changed)
        })
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        Box::pin(async move {
            let words = words(["TG.STANDING", policy.name(), subject]);
            Ok(json::standings(self.call::<StandingResponse>(&words).await?.limits))
        })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let words = words(["TG.RESET", policy.name(), subject]);
            Ok(self.call::<Changed>(&words).await?.changed)
        })
    }
}
