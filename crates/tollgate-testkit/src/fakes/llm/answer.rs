//! What the fake says: always the same to the same request.

use super::request::{Request, ToolCall};
use crate::fakes::gemini::tokens_of;

/// Words of one token each.
const WORDS: [&str; 12] = [
    "the", "river", "runs", "below", "old", "stone", "mills", "and", "under", "five", "green",
    "hills",
];

/// Why an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Stop,
    Length,
    Tool,
}

/// Tokens as the provider counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) input: u64,
    pub(super) output: u64,
}

/// One answer; several to a request are equal.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// The text, word by word; empty if a tool is called.
    pub(super) words: Vec<String>,
    pub(super) tool: Option<ToolCall>,
    pub(super) finish: Finish,
    /// `None` if the answer has none.
    pub(super) usage: Option<Usage>,
    /// A hash of the request, for ids.
    pub(super) hash: u64,
}

impl Answer {
    /// Answers in about `length` tokens.
    pub(super) fn new(request: &Request, length: u64) -> Self {
        let hash = request.hash();
        let input = request.input();
        if let (Some(tool), None) = (&request.tool, &request.tool_result) {
            let output =
                (tokens_of(&tool.name) + tokens_of(&tool.arguments.to_string())) * request.answers;
            let usage = Some(Usage { input, output });
            return Self {
                words: Vec::new(),
                tool: Some(tool.clone()),
                finish: Finish::Tool,
                usage,
                hash,
            };
        }
        let mut said = String::new();
        if let Some(result) = &request.tool_result {
            said = format!("The tool said {result} ");
        }
        if request.images > 0 {
            said += &format!("I see {} images ", request.images);
        }
        let mut words: Vec<String> = said.split_inclusive(' ').map(str::to_owned).collect();
        let first = usize::try_from(hash % WORDS.len() as u64).unwrap_or(0);
        let more = usize::try_from(length).unwrap_or(usize::MAX);
        words.extend(WORDS.iter().cycle().skip(first).take(more).map(|word| format!("{word} ")));
        let mut output = 0;
        let mut finish = Finish::Stop;
        let most = request.output_max.unwrap_or(u64::MAX);
        let fits = words.iter().take_while(|word| {
            let with = output + tokens_of(word);
            let fits = with <= most;
            if fits {
                output = with;
            } else {
                finish = Finish::Length;
            }
            fits
        });
        let fitting = fits.count();
        words.truncate(fitting);
        let usage = Some(Usage { input, output: output * request.answers });
        Self { words, tool: None, finish, usage, hash }
    }

    pub(super) fn text(&self) -> String {
        self.words.concat()
    }
}
