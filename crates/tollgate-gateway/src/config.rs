//! The checked configuration: names resolved, patterns and templates parsed.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::core::bounds::{ALTERNATIVES_MAX, CHARGES_MAX};
use tollgate::core::matches_pattern;
use tollgate::policy::Policies;
use tollgate::{Costs, Error, ErrorKind, Span};
use tollgate_providers::{Dialect, Prices, USD_MICROS};
use tollgate_server::keys::{Key, Keys, Scopes};
use tollgate_transport::tls::ClientTls;

use crate::bounds::WAIT_MAX;
use crate::deployment::Deployment;
use crate::options::{ChargeTemplate, GatewayKey, GatewayOptions, Route, Upstream};
use crate::template::Template;
use crate::upstream::UpstreamState;

/// The unit that every call costs one of.
pub(crate) const REQUESTS: &str = "requests";

/// The label of models that only the pattern `*` matches.
const OTHER: &str = "other";

/// The configuration that calls are served under.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) routes: Vec<RouteState>,
    keys: Keys,
    /// By name.
    callers: HashMap<String, Arc<GatewayKey>>,
    pub(crate) prices: Prices,
    pub(crate) limits: Limits,
    /// In the order of upstreams and routes.
    pub(crate) deployments: Vec<(Dialect, Arc<Deployment>)>,
}

/// The bounds among the options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) body_bytes_max: usize,
    pub(crate) queue_calls_max: usize,
    pub(crate) queue_bytes_max: usize,
    pub(crate) in_flight_max: usize,
    pub(crate) connect_timeout: Span,
    pub(crate) first_byte_timeout: Span,
    pub(crate) idle_timeout: Span,
    pub(crate) drain: Span,
}

/// A route whose upstreams and charges are resolved.
#[derive(Debug)]
pub(crate) struct RouteState {
    pub(crate) name: String,
    pub(crate) dialect: Dialect,
    models: Vec<String>,
    pub(crate) targets: Vec<Target>,
    /// Those that are the same at every upstream come first.
    pub(crate) charges: Vec<Charge>,
    /// How many charges are the same at every upstream.
    pub(crate) shared: usize,
    pub(crate) max_wait: Span,
}

/// An upstream of a route.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) upstream: Arc<UpstreamState>,
    /// By the index of the model's pattern.
    pub(crate) deployments: Vec<Arc<Deployment>>,
}

#[derive(Debug)]
pub(crate) struct Charge {
    pub(crate) policy: String,
    pub(crate) subject: Template,
    pub(crate) costs: Option<Costs>,
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

impl Config {
    /// Checks `options` against `policies`. Deployments of `old` are kept.
    pub(crate) fn new(
        options: GatewayOptions,
        policies: &Policies,
        old: Option<&Self>,
    ) -> Result<Self, Error> {
        let limits = Limits::new(&options)?;
        let mut native = None;
        let mut upstreams = HashMap::new();
        for upstream in &options.upstreams {
            let state = Arc::new(UpstreamState::new(upstream, || {
                native.get_or_insert_with(ClientTls::native).clone()
            })?);
            if upstreams.insert(upstream.name.as_str(), (upstream, state)).is_some() {
                return Err(twice("upstream", &upstream.name));
            }
        }
        let mut deployments = Deployments { known: old, made: Vec::new() };
        let mut routes: Vec<RouteState> = Vec::new();
        for route in &options.routes {
            if routes.iter().any(|known| known.name == route.name) {
                return Err(twice("route", &route.name));
            }
            let at_route = |error: Error| invalid(format!("route {:?}: {error}", route.name));
            let targets = resolve(route, &upstreams).map_err(at_route)?;
            check_charges(route, &targets, policies, &options).map_err(at_route)?;
            routes.push(RouteState::new(route, &targets, &mut deployments).map_err(at_route)?);
        }
        check_keys(&options, &routes)?;
        Ok(Self {
            keys: options.keys.iter().map(accepted).collect(),
            callers: options
                .keys
                .into_iter()
                .map(|key| (key.name.clone(), Arc::new(key)))
                .collect(),
            prices: options.prices,
            limits,
            deployments: deployments.made,
            routes,
        })
    }

    /// Returns the accepted keys.
    pub(crate) const fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns the caller whose key has this name.
    pub(crate) fn caller(&self, name: &str) -> Option<&Arc<GatewayKey>> {
        self.callers.get(name)
    }

    /// Returns the route of `dialect` for `model` that `key` may use, and the index of the model's pattern in it.
    pub(crate) fn route(
        &self,
        dialect: Dialect,
        model: &str,
        key: &GatewayKey,
    ) -> Option<(usize, usize)> {
        let routes = self.routes.iter().enumerate();
        let allowed = routes.filter(|(_, route)| route.dialect == dialect && route.allows(key));
        allowed.filter_map(|(index, route)| Some((index, route.pattern(model)?))).next()
    }
}

impl RouteState {
    fn new(
        route: &Route,
        targets: &[(&Upstream, Arc<UpstreamState>)],
        deployments: &mut Deployments<'_>,
    ) -> Result<Self, Error> {
        let mut charges = Vec::new();
        for ChargeTemplate { policy, subject, costs } in &route.charges {
            let subject = Template::parse(subject)?;
            charges.push(Charge { policy: policy.clone(), subject, costs: costs.clone() });
        }
        charges.sort_by_key(|charge| charge.subject.names_upstream());
        let shared = charges.iter().filter(|charge| !charge.subject.names_upstream()).count();
        let targets = targets.iter().map(|(_, upstream)| Target {
            upstream: Arc::clone(upstream),
            deployments: route
                .models
                .iter()
                .map(|model| deployments.get(upstream, label(model)))
                .collect(),
        });
        let targets: Vec<Target> = targets.collect();
        let dialect = targets.first().map_or(Dialect::OpenAi, |target| target.upstream.dialect);
        let max_wait = Span::from(route.max_wait);
        if WAIT_MAX < max_wait {
            return Err(invalid(format!("max_wait {max_wait} must be at most {WAIT_MAX}")));
        }
        let (name, models) = (route.name.clone(), route.models.clone());
        Ok(Self { name, dialect, models, targets, charges, shared, max_wait })
    }

    pub(crate) fn allows(&self, key: &GatewayKey) -> bool {
        key.routes.is_empty() || key.routes.contains(&self.name)
    }

    /// Returns the index of the pattern that matches `model`: its own name first.
    fn pattern(&self, model: &str) -> Option<usize> {
        let exact = self.models.iter().position(|pattern| pattern == model);
        exact.or_else(|| self.models.iter().position(|pattern| matches_pattern(pattern, model)))
    }

    /// Returns whether a charge names the upstream, so that the store knows which are closed.
    pub(crate) fn charges_upstream(&self) -> bool {
        self.shared < self.charges.len()
    }
}

/// Returns the name of a model's pattern in metrics and subjects.
fn label(pattern: &str) -> &str {
    if pattern == "*" { OTHER } else { pattern }
}

/// Deployments, each made once and kept over a reload.
struct Deployments<'a> {
    known: Option<&'a Config>,
    made: Vec<(Dialect, Arc<Deployment>)>,
}

impl Deployments<'_> {
    fn get(&mut self, upstream: &UpstreamState, model: &str) -> Arc<Deployment> {
        let known = self.known.map_or(&[][..], |known| &known.deployments);
        let is_same = |(_, known): &&(Dialect, Arc<Deployment>)| {
            *known.upstream == *upstream.name && *known.model == *model
        };
        if let Some((_, made)) = self.made.iter().find(is_same) {
            return Arc::clone(made);
        }
        let kept = known.iter().find(is_same).map(|(_, kept)| Arc::clone(kept));
        let made = kept.unwrap_or_else(|| Arc::new(Deployment::new(&upstream.name, model)));
        self.made.push((upstream.dialect, Arc::clone(&made)));
        made
    }
}

impl Limits {
    fn new(options: &GatewayOptions) -> Result<Self, Error> {
        if options.queue_bytes_max < options.body_bytes_max {
            return Err(invalid(format!(
                "queue_bytes_max {} must be at least body_bytes_max {}, or no large body is ever accepted",
                options.queue_bytes_max, options.body_bytes_max
            )));
        }
        for (name, value) in [
            ("body_bytes_max", options.body_bytes_max),
            ("queue_calls_max", options.queue_calls_max),
            ("in_flight_max", options.in_flight_max),
        ] {
            if value == 0 {
                return Err(invalid(format!("{name} must be at least 1")));
            }
        }
        Ok(Self {
            body_bytes_max: options.body_bytes_max,
            queue_calls_max: options.queue_calls_max,
            queue_bytes_max: options.queue_bytes_max,
            in_flight_max: options.in_flight_max,
            connect_timeout: options.connect_timeout.into(),
            first_byte_timeout: options.first_byte_timeout.into(),
            idle_timeout: options.idle_timeout.into(),
            drain: options.drain.into(),
        })
    }
}

type Upstreams<'a> = HashMap<&'a str, (&'a Upstream, Arc<UpstreamState>)>;

fn twice(what: &str, name: &str) -> Error {
    invalid(format!("there are two {what}s called {name:?}; give each a name of its own"))
}

/// Returns the upstreams of `route`, which all speak one dialect.
fn resolve<'a>(
    route: &Route,
    upstreams: &Upstreams<'a>,
) -> Result<Vec<(&'a Upstream, Arc<UpstreamState>)>, Error> {
    if !(1..=ALTERNATIVES_MAX).contains(&route.upstreams.len()) {
        return Err(invalid(format!("a route has 1 to {ALTERNATIVES_MAX} upstreams")));
    }
    if route.models.is_empty() {
        return Err(invalid("a route needs models; write \"*\" for all"));
    }
    let mut found: Vec<(&Upstream, Arc<UpstreamState>)> = Vec::new();
    for name in &route.upstreams {
        let (upstream, state) = upstreams.get(name.as_str()).ok_or_else(|| {
            let mut known: Vec<&str> = upstreams.keys().copied().collect();
            known.sort_unstable();
            invalid(format!("there is no upstream {name:?}; there are {}", known.join(", ")))
        })?;
        if let Some((first, _)) = found.first()
            && first.dialect != upstream.dialect
        {
            return Err(invalid(format!(
                "upstream {:?} speaks {} and {name:?} speaks {}; make a route for each, since calls are not translated",
                first.name, first.dialect, upstream.dialect
            )));
        }
        if found.iter().any(|(known, _)| known.name == upstream.name) {
            return Err(invalid(format!("it names upstream {name:?} twice")));
        }
        found.push((upstream, Arc::clone(state)));
    }
    Ok(found)
}

/// Checks that every charge of `route` has a policy and that a call costs what the policy counts.
fn check_charges(
    route: &Route,
    targets: &[(&Upstream, Arc<UpstreamState>)],
    policies: &Policies,
    options: &GatewayOptions,
) -> Result<(), Error> {
    if !(1..=CHARGES_MAX).contains(&route.charges.len()) {
        return Err(invalid(format!("a route has 1 to {CHARGES_MAX} charges")));
    }
    for (index, charge) in route.charges.iter().enumerate() {
        let policy = policies.get(&charge.policy)?;
        let template = Template::parse(&charge.subject)?;
        let is_same = |other: &ChargeTemplate| {
            other.policy == charge.policy && other.subject == charge.subject
        };
        if route.charges[..index].iter().any(is_same) {
            return Err(invalid(format!(
                "it charges policy {:?} and subject {:?} twice",
                charge.policy, charge.subject
            )));
        }
        if template.names_header() && !options.keys.iter().any(|key| key.trusted) {
            return Err(invalid(format!(
                "subject {:?} needs a header, which only a trusted key may send, and no key is trusted",
                charge.subject
            )));
        }
        let own = charge.costs.as_ref();
        for (unit, _) in own.into_iter().flat_map(Costs::iter) {
            if !policy.units().any(|known| known == unit) {
                let known: Vec<&str> = policy.units().collect();
                return Err(invalid(format!(
                    "policy {:?} has no unit {unit:?}; it has {}",
                    charge.policy,
                    known.join(", ")
                )));
            }
        }
        for unit in policy.units() {
            match own {
                Some(costs) if costs.get(unit).is_some() || unit == REQUESTS => {}
                Some(_) => return Err(never_charged(&charge.policy, unit)),
                None if unit == USD_MICROS => check_prices(route, targets, options)?,
                None => {
                    let is_reported = |(upstream, _): &(&Upstream, _)| {
                        upstream.usage.units().any(|known| known == unit)
                    };
                    if unit != REQUESTS && !targets.iter().all(is_reported) {
                        return Err(never_charged(&charge.policy, unit));
                    }
                }
            }
        }
    }
    Ok(())
}

fn never_charged(policy: &str, unit: &str) -> Error {
    invalid(format!(
        "policy {policy:?} limits {unit:?}, which no call costs; add it to the upstream's usage, or give the charge costs of its own"
    ))
}

/// Checks that models have a price at every upstream.
fn check_prices(
    route: &Route,
    targets: &[(&Upstream, Arc<UpstreamState>)],
    options: &GatewayOptions,
) -> Result<(), Error> {
    for model in &route.models {
        for (upstream, _) in targets {
            let name = upstream.models.get(model).unwrap_or(model);
            let prices = &options.prices;
            let has_price = if name.contains('*') {
                prices.models.keys().any(|known| matches_pattern(name, known))
            } else {
                prices.price_for(name).is_some()
            };
            if !has_price {
                return Err(invalid(format!(
                    "a limit in {USD_MICROS} needs the price of model {name:?}; add it to [prices]"
                )));
            }
        }
    }
    Ok(())
}

fn check_keys(options: &GatewayOptions, routes: &[RouteState]) -> Result<(), Error> {
    for (index, key) in options.keys.iter().enumerate() {
        let earlier = &options.keys[..index];
        if earlier.iter().any(|other| other.name == key.name) {
            return Err(twice("gateway key", &key.name));
        }
        if earlier.iter().any(|other| other.hash.to_string() == key.hash.to_string()) {
            return Err(invalid(format!("gateway key {:?} has the hash of another key", key.name)));
        }
        for name in &key.routes {
            let route = routes.iter().find(|route| route.name == *name).ok_or_else(|| {
                let known: Vec<&str> = routes.iter().map(|route| route.name.as_str()).collect();
                invalid(format!(
                    "gateway key {:?}: there is no route {name:?}; there are {}",
                    key.name,
                    known.join(", ")
                ))
            })?;
            if key.team.is_none() && route.charges.iter().any(|charge| charge.subject.names_team())
            {
                return Err(invalid(format!(
                    "gateway key {:?} has no team, which route {name:?} charges; add team",
                    key.name
                )));
            }
        }
    }
    Ok(())
}

fn accepted(key: &GatewayKey) -> Key {
    Key { expires: key.expires, ..Key::new(&key.name, key.hash.clone(), Scopes::default()) }
}
