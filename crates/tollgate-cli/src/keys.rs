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
    scopes: Vec<&'static str>,
    hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
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
    if wanted.name.is_empty() || wanted.name.contains(|sign: char| sign.is_control()) {
        return Err(Failure::new(ErrorKind::Invalid, "the name of a key is one line of text"));
    }
    let key = key_text(&random_bytes()?);
    let made = NewKey {
        hash: KeyHash::from_key(&key).to_string(),
        key,
        name: wanted.name,
        scopes,
        expires: expires.map(|at| at.to_string()),
    };
    output::print(format, &made, || for_people(&made))
}

fn for_people(made: &NewKey) -> String {
    let NewKey { key, name, scopes, hash, expires } = made;
    let expires = expires.as_ref().map_or_else(String::new, |at| format!("\nexpires = \"{at}\""));
    format!(
        "{key}\n\
         This is the key. It is shown only now: give it to the program that will use it.\n\
         Put this into tollgate.toml of the broker, which keeps only the hash:\n\n\
         [[key]]\n\
         name = {name:?}\n\
         scopes = {scopes:?}\n\
         hash = \"{hash}\"{expires}"
    )
}
