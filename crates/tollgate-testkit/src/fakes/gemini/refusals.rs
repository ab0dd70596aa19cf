//! Replies without a translation, by fault.

use tollgate::Span;

use super::bodies::{self, Reply};
use super::fault::Fault;
use crate::fakes::quota::{Limit, Quota};

/// Returns the reply to a call with `fault`; `None` if the fault only damages the translation.
pub(super) fn refusal(
    fault: Fault,
    model: &str,
    quota: Quota,
    input: u64,
    number: u64,
) -> Option<Reply> {
    let refused =
        |limit, secs| bodies::quota(model, &[limit], quota, Span::from_secs(secs), number);
    Some(match fault {
        Fault::Overloaded => {
            bodies::error(503, "UNAVAILABLE", "The model is overloaded. Please try again later.")
        }
        Fault::Internal => bodies::error(500, "INTERNAL", "An internal error has occurred."),
        Fault::Deadline => {
            bodies::error(504, "DEADLINE_EXCEEDED", "The request timed out. Please try again.")
        }
        Fault::MinuteQuota => refused(Limit::Requests, 38),
        Fault::TokenQuota => bodies::wrapped(refused(Limit::Tokens, 7)),
        Fault::DailyQuota => refused(Limit::Daily, 38),
        Fault::BareQuota => bodies::bare(),
        Fault::NotInTier => {
            let none = Quota { rpm: 0, tpm: 0, rpd: 0, rpd_rolling: 0, ..Quota::NONE };
            bodies::quota(
                model,
                &[Limit::Requests, Limit::Daily],
                none,
                Span::from_secs(38),
                number,
            )
        }
        Fault::Gone => bodies::error(
            404,
            "NOT_FOUND",
            &format!(
                "models/{model} is not found for API version v1beta, or is not supported for generateContent."
            ),
        ),
        Fault::BadRequest => {
            bodies::error(400, "INVALID_ARGUMENT", "Request contains an invalid argument.")
        }
        Fault::Location => bodies::error(
            400,
            "FAILED_PRECONDITION",
            "User location is not supported for the API use.",
        ),
        Fault::BadKey => bodies::error(
            403,
            "PERMISSION_DENIED",
            "API key not valid. Please pass a valid API key.",
        ),
        Fault::BlockedPrompt => bodies::blocked_prompt(model, input),
        Fault::Blocked => bodies::answer(model, None, "SAFETY", (input, 0)),
        Fault::Garbage => (200, r#"{"candidates": [{"conte"#.to_owned()),
        Fault::Page => (200, "<html>Welcome</html>".to_owned()),
        Fault::Slow
        | Fault::Truncated
        | Fault::Dropped
        | Fault::Doubled
        | Fault::Reordered
        | Fault::Merged
        | Fault::Untranslated
        | Fault::Emptied
        | Fault::Unmarked => return None,
    })
}
