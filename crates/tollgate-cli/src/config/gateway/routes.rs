//! `[[route]]`: which calls go to which upstreams, and what they are charged to.

use std::collections::BTreeMap;

use serde::Deserialize;
use tollgate::core::bounds::{ALTERNATIVES_MAX, CHARGES_MAX};
use tollgate::core::{REQUESTS, matches_pattern};
use tollgate::internal::Step;
use tollgate::policy::Policies;
use tollgate::{Costs, Policy, Span};
use tollgate_config::{Diagnostic, Document};
use tollgate_gateway::{ChargeTemplate, Route, Template, bounds};
use tollgate_providers::{Prices, USD_MICROS};

use super::keys::GatewayKeyConfig;
use super::upstreams::UpstreamConfig;
use super::{check_name, unknown};

/// The section as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteTable {
    name: Option<String>,
    models: Vec<String>,
    upstreams: Vec<String>,
    charges: Vec<ChargeTable>,
    max_wait: Option<String>,
}

/// One charge of a route.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChargeTable {
    policy: String,
    subject: String,
    costs: Option<BTreeMap<String, u64>>,
}

/// The most routes of a gateway.
const ROUTES_MAX: usize = 1_000;

/// The most models of a route.
const MODELS_MAX: usize = 1_000;

/// How long a call waits if its route does not say it: below the minute after which many load balancers cut a silent
/// connection.
const WAIT_DEFAULT: Span = Span::from_secs(50);

/// What a route is checked against.
struct Checks<'a> {
    policies: &'a Policies,
    upstreams: &'a [UpstreamConfig],
    keys: &'a [GatewayKeyConfig],
    prices: &'a Prices,
}

/// A mistake in a route: its path, and what would be right.
type Mistake = (Vec<Step>, String);

fn at(field: &'static str, message: impl Into<String>) -> Mistake {
    (vec![Step::Field(field)], message.into())
}

fn in_charge(index: usize, field: &'static str, message: impl Into<String>) -> Mistake {
    (vec![Step::Field("charges"), Step::Element(index), Step::Field(field)], message.into())
}

pub(super) fn resolve_all(
    document: &Document,
    policies: &Policies,
    upstreams: &[UpstreamConfig],
    keys: &[GatewayKeyConfig],
    prices: &Prices,
) -> Result<Vec<Route>, Diagnostic> {
    let tables: Vec<RouteTable> = document.section("route")?.unwrap_or_default();
    if tables.is_empty() {
        let message = "a gateway needs a [[route]] with models, upstreams and charges, as in models = [\"gpt-4o*\"], \
                       upstreams = [\"openai-main\"], charges = [{ policy = \"gpt-4o\", subject = \"{upstream}\" }]";
        return Err(document.error(&["gateway"], message));
    }
    if ROUTES_MAX < tables.len() {
        let message = format!("has {} routes; at most {ROUTES_MAX} are possible", tables.len());
        return Err(document.whole_error(message));
    }
    let checks = Checks { policies, upstreams, keys, prices };
    let mut routes: Vec<Route> = Vec::with_capacity(tables.len());
    for (index, table) in tables.iter().enumerate() {
        let route = checks.route(index, table, &routes);
        routes.push(
            route.map_err(|(path, message)| {
                document.element_error("route", index, &path, message)
            })?,
        );
    }
    Ok(routes)
}

impl Checks<'_> {
    fn route(&self, index: usize, table: &RouteTable, earlier: &[Route]) -> Result<Route, Mistake> {
        let name = match &table.name {
            Some(name) => {
                check_name("the name of a route", name).map_err(|message| at("name", message))?;
                name.clone()
            }
            None => format!("route-{}", index + 1),
        };
        if earlier.iter().any(|route| route.name == name) {
            return Err(at(
                "name",
                format!("two routes are called {name:?}; give each its own name"),
            ));
        }
        let upstreams = self.upstreams(table)?;
        self.check_models(&name, table, &upstreams, earlier)?;
        if !(1..=CHARGES_MAX).contains(&table.charges.len()) {
            let message = format!(
                "a route has 1 to {CHARGES_MAX} charges, as in {{ policy = \"gpt-4o\", subject = \"{{upstream}}\" }}"
            );
            return Err(at("charges", message));
        }
        let charges = table.charges.iter().enumerate();
        let charges = charges.map(|(index, charge)| {
            let policy = self.charge(index, charge, &name, &upstreams)?;
            self.check_money(index, charge, policy, &table.models, &upstreams)?;
            let costs = charge.costs.as_ref().map(|costs| {
                costs.iter().map(|(unit, amount)| (unit.as_str(), *amount)).collect::<Costs>()
            });
            let earlier = &table.charges[..index];
            if earlier
                .iter()
                .any(|one| one.policy == charge.policy && one.subject == charge.subject)
            {
                let message =
                    "the route charges this policy and subject already; remove one of the two";
                return Err(in_charge(index, "policy", message));
            }
            Ok(ChargeTemplate { costs, ..ChargeTemplate::new(&charge.policy, &charge.subject) })
        });
        let charges = charges.collect::<Result<_, _>>()?;
        Ok(Route {
            name,
            models: table.models.clone(),
            upstreams: table.upstreams.clone(),
            charges,
            max_wait: max_wait(table)?.into(),
        })
    }

    /// Checks that the upstreams exist and speak one dialect.
    fn upstreams(&self, table: &RouteTable) -> Result<Vec<&UpstreamConfig>, Mistake> {
        if !(1..=ALTERNATIVES_MAX).contains(&table.upstreams.len()) {
            let message = format!("a route has 1 to {ALTERNATIVES_MAX} upstreams");
            return Err(at("upstreams", message));
        }
        let mut found: Vec<&UpstreamConfig> = Vec::with_capacity(table.upstreams.len());
        for (index, name) in table.upstreams.iter().enumerate() {
            let blame =
                |message: String| (vec![Step::Field("upstreams"), Step::Element(index)], message);
            let known = self.upstreams.iter().map(|upstream| upstream.name.as_str());
            let upstream = self.upstreams.iter().find(|upstream| upstream.name == *name);
            let upstream = upstream.ok_or_else(|| blame(unknown("upstream", name, known)))?;
            if found.iter().any(|other| other.name == *name) {
                return Err(blame(format!("upstream {name:?} is in the list twice; remove one")));
            }
            if let Some(first) = found.first().filter(|first| first.dialect != upstream.dialect) {
                return Err(blame(format!(
                    "upstream {name:?} speaks {}, and {:?} before it {}; a call is not translated between dialects, so make a \
                     route for each",
                    upstream.dialect, first.name, first.dialect
                )));
            }
            found.push(upstream);
        }
        Ok(found)
    }

    /// Checks the patterns of models, also that an earlier route for the same keys does not have them already.
    fn check_models(
        &self,
        name: &str,
        table: &RouteTable,
        upstreams: &[&UpstreamConfig],
        earlier: &[Route],
    ) -> Result<(), Mistake> {
        if !(1..=MODELS_MAX).contains(&table.models.len()) {
            let message = format!("a route has 1 to {MODELS_MAX} models, as in [\"gpt-4o*\"]");
            return Err(at("models", message));
        }
        let dialect = |name: &String| {
            self.upstreams.iter().find(|upstream| upstream.name == *name).map(|it| it.dialect)
        };
        let own = upstreams.first().map(|upstream| upstream.dialect);
        let keys = self.keys.iter().filter(|key| key.may_use(name));
        for (index, model) in table.models.iter().enumerate() {
            let blame =
                |message: String| (vec![Step::Field("models"), Step::Element(index)], message);
            if model.is_empty() || model.contains(|sign: char| sign.is_control() || sign == ' ') {
                return Err(blame(format!(
                    "{model:?} is not the name of a model, as in \"gpt-4o\", or a pattern, as in \"gpt-4o*\""
                )));
            }
            let hides = |route: &&Route| {
                route.models.contains(model)
                    && route.upstreams.first().and_then(dialect) == own
                    && keys.clone().all(|key| key.may_use(&route.name))
            };
            if let Some(route) = earlier.iter().find(hides) {
                return Err(blame(format!(
                    "the route {:?} has {model:?} already, and the first route that matches serves a call; remove it here or there",
                    route.name
                )));
            }
        }
        Ok(())
    }

    /// Checks one charge of the route called `route`, and returns its policy.
    fn charge(
        &self,
        index: usize,
        charge: &ChargeTable,
        route: &str,
        upstreams: &[&UpstreamConfig],
    ) -> Result<&Policy, Mistake> {
        let policy = self.policies.get(&charge.policy);
        let policy = policy.map_err(|error| in_charge(index, "policy", error.to_string()))?;
        let subject = |message: String| in_charge(index, "subject", message);
        let template = Template::parse(&charge.subject);
        let template = template.map_err(|error| subject(error.to_string()))?;
        let mut keys = self.keys.iter().filter(|key| key.may_use(route));
        if template.names_header()
            && let Some(key) = keys.clone().find(|key| !key.trusted)
        {
            return Err(subject(format!(
                "subject {:?} is taken from a header, in which the caller could name any subject, and the key {:?} is not trusted; \
                 add trusted = true to it, or bind it to other routes with routes",
                charge.subject, key.name
            )));
        }
        if template.names_team()
            && let Some(key) = keys.find(|key| key.team.is_none())
        {
            return Err(subject(format!(
                "subject {:?} needs a team, and the key {:?} has none; add team to it, or bind it to other routes with routes",
                charge.subject, key.name
            )));
        }
        match &charge.costs {
            Some(costs) => check_costs(index, policy, costs)?,
            None => check_units(index, policy, upstreams)?,
        }
        Ok(policy)
    }

    /// Checks that the models of a charge with a limit in money have a price.
    fn check_money(
        &self,
        index: usize,
        charge: &ChargeTable,
        policy: &Policy,
        models: &[String],
        upstreams: &[&UpstreamConfig],
    ) -> Result<(), Mistake> {
        let limits_money = policy.units().any(|unit| unit == USD_MICROS);
        if !limits_money || charge.costs.is_some() {
            return Ok(());
        }
        let is_priced = |model: &str| match model.contains('*') {
            false => self.prices.price_for(model).is_some(),
            true => self.prices.models.keys().any(|known| matches_pattern(model, known)),
        };
        let mut deployed = upstreams
            .iter()
            .flat_map(|upstream| models.iter().map(|model| upstream.model_there(model)));
        match deployed.find(|model| !is_priced(model)) {
            None => Ok(()),
            Some(model) => Err(in_charge(
                index,
                "policy",
                format!(
                    "policy {:?} limits {USD_MICROS}, and there is no price for {model:?}; add it under [prices], as in \
                     \"{}\" = {{ input = 2_500_000, output = 10_000_000 }}, in millionths of a dollar per million tokens",
                    policy.name(),
                    model.trim_end_matches('*')
                ),
            )),
        }
    }
}

/// Checks that a call has every unit that `policy` limits.
fn check_units(
    index: usize,
    policy: &Policy,
    upstreams: &[&UpstreamConfig],
) -> Result<(), Mistake> {
    for limit in policy.limits() {
        let unit = limit.unit();
        if matches!(unit, REQUESTS | USD_MICROS) {
            continue;
        }
        if let Some(upstream) =
            upstreams.iter().find(|upstream| !upstream.usage.units().any(|known| known == unit))
        {
            let known: Vec<&str> = [REQUESTS].into_iter().chain(upstream.usage.units()).collect();
            return Err(in_charge(
                index,
                "policy",
                format!(
                    "policy {:?} counts {unit:?} (limit {:?}), which calls to the upstream {:?} do not have; they have {}, {USD_MICROS}",
                    policy.name(),
                    limit.name(),
                    upstream.name,
                    known.join(", ")
                ),
            ));
        }
    }
    Ok(())
}

/// Checks that `costs` has the units that `policy` counts, and no other.
fn check_costs(
    index: usize,
    policy: &Policy,
    costs: &BTreeMap<String, u64>,
) -> Result<(), Mistake> {
    let name = policy.name();
    if let Some(unit) = costs.keys().find(|unit| !policy.units().any(|known| known == *unit)) {
        let known = policy.units().collect::<Vec<_>>().join(", ");
        let message = format!("policy {name:?} does not count {unit:?}; known: {known}");
        return Err(in_charge(index, "costs", message));
    }
    let is_missing = |unit: &&str| *unit != REQUESTS && !costs.contains_key(*unit);
    if let Some(unit) = policy.units().find(is_missing) {
        let message = format!(
            "policy {name:?} counts {unit:?}, and the costs do not have it; add it, or leave costs out"
        );
        return Err(in_charge(index, "costs", message));
    }
    Ok(())
}

fn max_wait(table: &RouteTable) -> Result<Span, Mistake> {
    let Some(text) = &table.max_wait else { return Ok(WAIT_DEFAULT) };
    let wrong = |message: String| at("max_wait", format!("max_wait {message}"));
    let span: Span =
        text.parse().map_err(|error: tollgate::core::Error| wrong(error.to_string()))?;
    if bounds::WAIT_MAX < span {
        return Err(wrong(format!("{span} must be at most {}", bounds::WAIT_MAX)));
    }
    Ok(span)
}
