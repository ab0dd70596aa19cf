//! What the service or the way to it refused, in words that say what to do next.

use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use tollgate::{Error, ErrorKind, Tried};

/// Why an attempt failed, and whether to try again.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The service is too busy; nothing was written.
    Throttled(Error),
    /// A transaction has the item at the same time; nothing was written.
    Conflict(Error),
    /// Nobody knows whether it was written.
    Ambiguous(Error),
    /// Trying again will not help.
    Final(Error),
}

impl Trouble {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Throttled(error)
            | Self::Conflict(error)
            | Self::Ambiguous(error)
            | Self::Final(error) => error,
        }
    }

    pub(crate) const fn tried(&self) -> Tried {
        match self {
            Self::Throttled(_) => Tried::Throttled,
            Self::Conflict(_) => Tried::Raced,
            Self::Ambiguous(_) | Self::Final(_) => Tried::Failed,
        }
    }
}

/// Where an attempt went, for messages.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) table: String,
    pub(crate) place: String,
}

impl Target {
    /// The trouble behind `error` of `action`.
    pub(crate) fn trouble<E, R>(&self, action: &str, error: SdkError<E, R>) -> Trouble
    where
        E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static,
        R: std::fmt::Debug + Send + Sync + 'static,
    {
        let chain = DisplayErrorContext(&error).to_string();
        match &error {
            SdkError::ServiceError(service) => {
                let code = service.err().code().unwrap_or("").to_owned();
                self.refused(action, &code, error)
            }
            SdkError::TimeoutError(_) => Trouble::Ambiguous(self.error(
                ErrorKind::TimedOut,
                "did not answer in time",
                error,
            )),
            SdkError::DispatchFailure(_) if has_no_credentials(&chain) => {
                Trouble::Final(self.no_credentials(error))
            }
            SdkError::ConstructionFailure(_) if has_no_credentials(&chain) => {
                Trouble::Final(self.no_credentials(error))
            }
            SdkError::ConstructionFailure(_) => Trouble::Final(self.error(
                ErrorKind::Invalid,
                &format!("could not be asked ({chain}); check region and endpoint"),
                error,
            )),
            SdkError::DispatchFailure(_) if chain.contains("invalid peer certificate") => {
                Trouble::Final(self.error(
                    ErrorKind::Misconfigured,
                    "has a certificate that is not trusted here, or not for this host; check endpoint and the machine's \
                     authorities",
                    error,
                ))
            }
            SdkError::DispatchFailure(_) => Trouble::Ambiguous(self.error(
                ErrorKind::Unavailable,
                "cannot be reached; check endpoint and region, and the way there",
                error,
            )),
            _ => Trouble::Ambiguous(self.error(
                ErrorKind::Unavailable,
                "answered something that is not DynamoDB's; check that endpoint is a DynamoDB endpoint",
                error,
            )),
        }
    }

    pub(crate) fn refused(
        &self,
        action: &str,
        code: &str,
        cause: impl std::error::Error + Send + Sync + 'static,
    ) -> Trouble {
        let unavailable = ErrorKind::Unavailable;
        let table = &self.table;
        match code {
            "ResourceNotFoundException" => Trouble::Final(self.error(
                ErrorKind::Misconfigured,
                &format!(
                    "has no table {table:?}; make it with `tollgate dynamodb create-table`, or check table and region"
                ),
                cause,
            )),
            "AccessDeniedException" | "AccessDenied" => Trouble::Final(self.error(
                ErrorKind::Misconfigured,
                &format!(
                    "does not permit {action} on table {table:?}; allow dynamodb:{action} to this role or user"
                ),
                cause,
            )),
            "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "IncompleteSignatureException"
            | "MissingAuthenticationTokenException"
            | "MissingAuthenticationToken"
            | "ExpiredTokenException"
            | "InvalidClientTokenId" => Trouble::Final(self.error(
                ErrorKind::Misconfigured,
                &format!("does not accept the credentials ({code}); renew them, or check the region"),
                cause,
            )),
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "RequestLimitExceeded"
            | "ThrottlingError"
            | "ProvisionedThroughputExceeded"
            | "ReplicatedWriteConflictException" => Trouble::Throttled(self.error(
                ErrorKind::Throttled,
                &format!(
                    "is throttling table {table:?} ({code}); raise its capacity, or ask less often for one subject"
                ),
                cause,
            )),
            "TransactionConflictException" | "TransactionConflict" | "TransactionInProgressException" => {
                Trouble::Conflict(self.error(
                    ErrorKind::Contended,
                    "has too many transactions on one subject; ask again later, or ask without ids",
                    cause,
                ))
            }
            "ValidationException" | "ValidationError" | "SerializationException" => Trouble::Final(self.error(
                ErrorKind::Corrupt,
                "does not accept what this program wrote; check that the table has the key `pk` of type S",
                cause,
            )),
            "InternalServerError" | "ServiceUnavailable" | "InternalFailure" => {
                Trouble::Ambiguous(self.error(unavailable, &format!("failed ({code})"), cause))
            }
            _ => Trouble::Ambiguous(self.error(
                unavailable,
                &format!("answered {code:?}; check that endpoint is a DynamoDB endpoint"),
                cause,
            )),
        }
    }

    fn no_credentials(&self, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.error(
            ErrorKind::Misconfigured,
            "needs credentials and there are none; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role",
            cause,
        )
    }

    fn error(
        &self,
        kind: ErrorKind,
        what: &str,
        cause: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error::new(kind, format!("dynamodb: {} {what}", self.place)).caused_by(cause)
    }
}

fn has_no_credentials(chain: &str) -> bool {
    let chain = chain.to_ascii_lowercase();
    chain.contains("credential")
        || chain.contains("no identity")
        || chain.contains("identity resolver")
}
