//! A role in another account.

use std::sync::Arc;

use crate::error::Error;

/// A role to assume before anything is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    pub(super) arn: String,
    pub(super) external_id: Option<String>,
    pub(super) session_name: String,
}

impl Role {
    /// Returns the role with this ARN.
    #[must_use]
    pub fn new(arn: impl Into<String>) -> Self {
        Self { arn: arn.into(), external_id: None, session_name: "tollgate".to_owned() }
    }

    /// Returns the role `name` in `account`.
    #[must_use]
    pub fn in_account(account: &str, name: &str) -> Self {
        Self::new(format!("arn:aws:iam::{account}:role/{name}"))
    }

    /// Sets the external id that the other account requires.
    #[must_use]
    pub fn external_id(mut self, id: impl Into<String>) -> Self {
        self.external_id = Some(id.into());
        self
    }

    /// Sets the name of the session in the logs of the other account.
    #[must_use]
    pub fn session_name(mut self, name: impl Into<String>) -> Self {
        self.session_name = name.into();
        self
    }

    /// Returns the account of the role.
    pub(super) fn account(&self) -> Result<Arc<str>, Error> {
        let parts: Vec<&str> = self.arn.splitn(6, ':').collect();
        match parts.as_slice() {
            ["arn", _, "iam", "", account, role]
                if account.len() == 12
                    && account.bytes().all(|b| b.is_ascii_digit())
                    && role.starts_with("role/") =>
            {
                Ok(Arc::from(*account))
            }
            _ => Err(Error::Invalid(format!(
                "{:?} is not the ARN of a role; it should look like arn:aws:iam::123456789012:role/name",
                self.arn
            ))),
        }
    }
}
