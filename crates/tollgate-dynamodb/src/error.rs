//! Maps errors of the service and the network to error kinds, with the next step.

use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use tollgate::observe::AttemptResult;
use tollgate::{Error, ErrorKind};

/// Why an attempt failed, and whether to retry.
#[derive(Debug)]
pub(crate) enum AttemptError {
    /// Throttled; not written.
    Throttled(Error),
    /// Conflict with a transaction; not written.
    Conflict(Error),
    /// It is unknown whether it was written.
    Ambiguous(Error),
    /// A retry does not help.
    Final(Error),
}

impl AttemptError {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Throttled(error)
            | Self::Conflict(error)
            | Self::Ambiguous(error)
            | Self::Final(error) => error,
        }
    }

    pub(crate) const fn tried(&self) -> AttemptResult {
        match self {
            Self::Throttled(_) => AttemptResult::Throttled,
            Self::Conflict(_) => AttemptResult::Raced,
            Self::Ambiguous(_) | Self::Final(_) => AttemptResult::Failed,
        }
    }
}

/// The destination of an attempt, for messages.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) table: String,
    pub(crate) place: String,
}

impl Target {
    /// Classifies `error` of `action`.
    pub(crate) fn classify<E, R>(&self, action: &str, error: SdkError<E, R>) -> AttemptError
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
            SdkError::TimeoutError(_) => AttemptError::Ambiguous(self.error(
                ErrorKind::TimedOut,
                "did not reply in time",
                error,
            )),
            SdkError::DispatchFailure(_) if has_no_credentials(&chain) => {
                AttemptError::Final(self.no_credentials(error))
            }
            SdkError::ConstructionFailure(_) if has_no_credentials(&chain) => {
                AttemptError::Final(self.no_credentials(error))
            }
            SdkError::ConstructionFailure(_) => AttemptError::Final(self.error(
                ErrorKind::Invalid,
                &format!("cannot be called ({chain}); check region and endpoint"),
                error,
            )),
            SdkError::DispatchFailure(_) if chain.contains("invalid peer certificate") => {
                AttemptError::Final(self.error(
                    ErrorKind::Misconfigured,
                    "has a certificate that is not trusted here, or not for this host; check endpoint and the machine's \
                     authorities",
                    error,
                ))
            }
            SdkError::DispatchFailure(_) => AttemptError::Ambiguous(self.error(
                ErrorKind::Unavailable,
                "cannot be reached; check endpoint, region and network",
                error,
            )),
            _ => AttemptError::Ambiguous(self.error(
                ErrorKind::Unavailable,
                "sent a reply that is not DynamoDB's; check that endpoint is a DynamoDB endpoint",
                error,
            )),
        }
    }

    pub(crate) fn refused(
        &self,
        action: &str,
        code: &str,
        cause: impl std::error::Error + Send + Sync + 'static,
    ) -> AttemptError {
        let unavailable = ErrorKind::Unavailable;
        let table = &self.table;
        match code {
            "ResourceNotFoundException" => AttemptError::Final(self.error(
                ErrorKind::Misconfigured,
                &format!(
                    "has no table {table:?}; make it with `tollgate dynamodb create-table`, or check table and region"
                ),
                cause,
            )),
            "AccessDeniedException" | "AccessDenied" => AttemptError::Final(self.error(
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
            | "InvalidClientTokenId" => AttemptError::Final(self.error(
                ErrorKind::Misconfigured,
                &format!("does not accept the credentials ({code}); renew them, or check the region"),
                cause,
            )),
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "RequestLimitExceeded"
            | "ThrottlingError"
            | "ProvisionedThroughputExceeded"
            | "ReplicatedWriteConflictException" => AttemptError::Throttled(self.error(
                ErrorKind::Throttled,
                &format!(
                    "is throttling table {table:?} ({code}); raise its capacity, or send fewer asks for one subject"
                ),
                cause,
            )),
            "TransactionConflictException" | "TransactionConflict" | "TransactionInProgressException" => {
                AttemptError::Conflict(self.error(
                    ErrorKind::Contended,
                    "has too many transactions on one subject; retry later, or ask without ids",
                    cause,
                ))
            }
            "ValidationException" | "ValidationError" | "SerializationException" => AttemptError::Final(self.error(
                ErrorKind::Corrupt,
                "rejects the write; check that the table has the key `pk` of type S",
                cause,
            )),
            "InternalServerError" | "ServiceUnavailable" | "InternalFailure" => {
                AttemptError::Ambiguous(self.error(unavailable, &format!("failed ({code})"), cause))
            }
            _ => AttemptError::Ambiguous(self.error(
                unavailable,
                &format!("replied {code:?}; check that endpoint is a DynamoDB endpoint"),
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
