//! Providers that are not there: servers that behave like the real ones as far as their documents and their users tell,
//! enforce their quotas, and count what reaches them.

pub mod gemini;
