//! The broker over the Redis protocol (`TG.*`), for where only that port is open.

mod pool;
mod reply;

use serde::de::DeserializeOwned;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Ask, Costs, Decision, Error, ErrorKind, Gate};
use tollgate_protocol::bounds::ARG_BYTES_MAX;
use tollgate_protocol::json::{AcquireResponse, Admitted, Changed, Renewed, StandingResponse};

use crate::convert::{self, policies, unexpected, whole_seal};
use crate::grpc::id_ttl_ms;
use crate::target::Target;
use pool::Pool;
use reply::Reply;

pub use pool::CONNECTIONS_MAX;

/// The broker over the Redis protocol.
#[derive(Debug)]
pub struct RespGate {
    pool: Pool,
}

impl RespGate {
    pub(crate) fn new(target: Target) -> Result<Self, Error> {
        Ok(Self { pool: Pool::new(target)? })
    }

    async fn call<A: DeserializeOwned>(&self, args: &[String]) -> Result<A, Error> {
        match self.pool.send(args).await? {
            Reply::Value(value) => serde_json::from_value(value)
                .map_err(|error| unexpected("the broker's reply does not parse").caused_by(error)),
            // A server without these commands did nothing.
            Reply::Failed { code, text }
                if code == "ERR" && text.starts_with("unknown command") =>
            {
                let text = format!("not a broker: {text}");
                Err(self.pool.target().not_reached(std::io::Error::other(text)))
            }
            Reply::Failed { code, text } => Err(self.pool.failed(&code, &text)),
        }
    }

    /// Sends a command that answers whether it changed anything.
    async fn change(&self, args: &[String]) -> Result<Outcome, Error> {
        Ok(Outcome::Changed(self.call::<Changed>(args).await?.changed))
    }
}

fn args<const N: usize>(args: [&str; N]) -> Vec<String> {
    args.map(str::to_owned).to_vec()
}

fn costs(args: &mut Vec<String>, word: &str, costs: &Costs) {
    for (unit, amount) in costs.iter() {
        args.extend([word.to_owned(), unit.to_owned(), amount.to_string()]);
    }
}

/// `TG.ACQUIRE` or `TG.CHARGE`.
fn asked(command: &str, ask: &Ask<'_>) -> Result<Vec<String>, Error> {
    ask.check()?;
    let request = convert::acquire_request(ask);
    let mut args = args([command, ask.policy().name(), ask.subject()]);
    costs(&mut args, "COST", &request.costs);
    for (index, charge) in request.charges.iter().enumerate() {
        if 0 < index {
            args.extend(["AND".to_owned(), charge.policy.clone(), charge.subject.clone()]);
        }
        if let Some(own) = &charge.costs {
            costs(&mut args, "OWN", own);
        }
    }
    if let (Some(id), Some(ttl)) = (ask.id_text(), id_ttl_ms(ask)) {
        args.extend(["ID".to_owned(), id.to_owned(), "IDTTL".to_owned(), ttl.to_string()]);
    }
    Ok(args)
}

/// Returns the costs of the asks queued ahead of `ask`, if there are any.
fn behind(ask: &Ask<'_>) -> Result<Option<String>, Error> {
    let costs = convert::acquire_request(ask).behind;
    if costs.is_empty() {
        return Ok(None);
    }
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
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            match operation {
                Operation::Acquire(ask) => {
                    let mut args = asked("TG.ACQUIRE", ask)?;
                    if let Some((tenant, _)) = ask.named_tenant() {
                        args.extend(["TENANT".to_owned(), tenant.to_owned()]);
                    }
                    if let Some(behind) = behind(ask)? {
                        args.extend(["BEHIND".to_owned(), behind]);
                    }
                    let decision = match self.call::<AcquireResponse>(&args).await? {
                        AcquireResponse::Admitted(admitted) => {
                            Decision::Admitted(admitted.into_permit(policies(ask))?)
                        }
                        AcquireResponse::Denied(denied) => Decision::Denied((*denied).try_into()?),
                        AcquireResponse::Failed(_) => {
                            return Err(unexpected("the broker answered with a problem document"));
                        }
                    };
                    Ok(Outcome::Decided(decision))
                }
                Operation::Charge(ask) => {
                    let args = asked("TG.CHARGE", ask)?;
                    let admitted = self.call::<Admitted>(&args).await?;
                    admitted.into_permit(policies(ask)).map(Outcome::Permitted)
                }
                Operation::Settle(permit, actual) => {
                    let request = convert::settle_request(permit, actual)?;
                    let mut args = args(["TG.SETTLE", &request.permit]);
                    costs(&mut args, "COST", &request.actual);
                    for charge in &request.charges {
                        args.extend(["CHARGE".to_owned(), charge.charge.to_string()]);
                        costs(&mut args, "COST", &charge.actual);
                    }
                    self.change(&args).await
                }
                Operation::Release(permit) => {
                    self.change(&args(["TG.RELEASE", whole_seal(permit)?])).await
                }
                Operation::Renew(permit) => {
                    let args = args(["TG.RENEW", whole_seal(permit)?]);
                    let renewed = self.call::<Renewed>(&args).await?;
                    convert::renewed(permit, &renewed.permit).map(Outcome::Permitted)
                }
                Operation::Close { policy, subject, limit, until } => {
                    let until = until.to_string();
                    self.change(&args(["TG.CLOSE", policy.name(), subject, limit, &until])).await
                }
                Operation::Standing { policy, subject } => {
                    let args = args(["TG.STANDING", policy.name(), subject]);
                    let limits = self.call::<StandingResponse>(&args).await?.limits;
                    Ok(Outcome::Standings(limits.into_iter().map(Into::into).collect()))
                }
                Operation::Reset { policy, subject } => {
                    self.change(&args(["TG.RESET", policy.name(), subject])).await
                }
            }
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
