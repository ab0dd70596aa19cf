//! `tollgate keys new`: creates an API key, shown once, and its section of the configuration.

use serde::Serialize;
use tollgate::clock::SystemClock;
use tollgate::{Clock as _, Error, ErrorKind, Timestamp};
use tollgate_server::keys::{KeyHash, Scope, key_text};

use crate::args::KeysNew;
use tollgate_config::open::random_bytes;
use tollgate_terminal::Failure;
use tollgate_terminal::output::{self, OutputFormat};

#[derive(Debug, Serialize)]
struct NewKey {
    key: String,
    name: String,
    #[serde(flatten)]
    section: Section,
    hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
}

/// What a key allows, as its section of the configuration says it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Section {
    Broker {
        scopes: Vec<&'static str>,
    },
    Gateway {
        subject: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        team: Option<String>,
    },
}

/// Creates a key and prints it.
pub(crate) fn new(wanted: KeysNew, format: OutputFormat) -> Result<(), Failure> {
    let scopes = wanted.scopes.iter().map(|scope| scope.parse().map(Scope::name));
    let scopes = scopes.collect::<Result<Vec<&str>, Error>>()?;
    let expires = wanted.expires.as_deref().map(str::parse::<Timestamp>).transpose();
    let expires = expires.map_err(Error::from)?;
    if let Some(at) = expires.filter(|at| *at <= SystemClock.now()) {
        let text = format!("--expires {at} is not in the future; such a key would be refused");
        return Err(Failure::new(ErrorKind::Invalid, text));
    }
    let is_line = |text: &str| !text.is_empty() && !text.contains(|sign: char| sign.is_control());
    if !is_line(&wanted.name) {
        return Err(Failure::new(ErrorKind::Invalid, "the name of a key is one line of text"));
    }
    for (flag, text) in [("--subject", &wanted.subject), ("--team", &wanted.team)] {
        // Clap does not apply `requires` here, because --gateway conflicts with --scope.
        if text.is_some() && !wanted.gateway {
            let text =
                format!("{flag} is for a key of the gateway; add --gateway, and leave --scope out");
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
        if text.as_deref().is_some_and(|text| !is_line(text)) {
            let text = format!("{flag} is one line of text, as in research");
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
    }
    let section = if wanted.gateway {
        let subject = wanted.subject.unwrap_or_else(|| wanted.name.clone());
        Section::Gateway { subject, team: wanted.team }
    } else {
        Section::Broker { scopes }
    };
    let key = key_text(&random_bytes()?);
    let made = NewKey {
        hash: KeyHash::from_key(&key).to_string(),
        key,
        name: wanted.name,
        section,
        expires: expires.map(|at| at.to_string()),
    };
    output::print(format, &made, || for_people(&made))
}

fn for_people(made: &NewKey) -> String {
    let NewKey { key, name, section, hash, expires } = made;
    let expires = expires.as_ref().map_or_else(String::new, |at| format!("\nexpires = \"{at}\""));
    let (header, allows, user) = match section {
        Section::Broker { scopes } => {
            ("[[key]]", format!("scopes = {scopes:?}"), "the program that will use it")
        }
        Section::Gateway { subject, team } => {
            let team = team.as_ref().map(|team| format!("\nteam = {team:?}"));
            let text = format!("subject = {subject:?}{}", team.unwrap_or_default());
            ("[[gateway.key]]", text, "the client of the gateway, as its API key")
        }
    };
    format!(
        "{key}\n\
         This is the key. It is shown only now: give it to {user}.\n\
         Put this into tollgate.toml of the broker, which keeps only the hash:\n\n\
         {header}\n\
         name = {name:?}\n\
         {allows}\n\
         hash = \"{hash}\"{expires}"
    )
}
