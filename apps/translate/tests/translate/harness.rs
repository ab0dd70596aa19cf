//! The test harness of jobs: a fake provider, a quota, a job store, and documents to translate.

use std::sync::Arc;

use async_trait::async_trait;
use hyper::HeaderMap;
use tollgate::policy::Period;
use tollgate::{CalendarWindow, Clock, Gate, Limit, Memory, Policy, RollingWindow, Span};
use tollgate_testkit::fakes::gemini::{FakeGemini, Quota, Settings, translated};
use tollgate_translate::job::{EmbeddedJobs, JobStore};
use tollgate_translate::pipeline::{JobSpec, Options, Pipeline, Throttle};
use tollgate_translate::provider::gemini::Gemini;
use tollgate_translate::provider::{
    ApiKey, Post, ProviderClient, ProviderError, Reply, TIMEOUT_DEFAULT, Transport,
};
use tollgate_translate::{Document, Filling, Format, Layout, Task, chunk};

pub(crate) const MODEL: &str = "gemini-2.5-flash";

/// Calls the fake without a network, after up to `delay` on its clock.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) fake: FakeGemini,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) delay: Span,
}

#[async_trait]
impl Transport for Direct {
    async fn post(&self, post: Post<'_>) -> Result<Reply, ProviderError> {
        let share = (u64::from(tollgate::internal::edge::random()) * self.delay.as_micros()) >> 32;
        self.clock.sleep_until(self.clock.now() + Span::from_micros(share)).await;
        let path = post.url.trim_start_matches("https://fake");
        let key = post.headers.first().map(|(_, key)| *key);
        let (status, body) = self.fake.handle(path, key, &post.body).await;
        Ok(Reply { status, headers: HeaderMap::new(), body: body.into_bytes() })
    }
}

/// The exact quota of a provider, kept as any window might count it, with a margin for the way to the provider.
pub(crate) fn policy(quota: Quota, margin: Span) -> Policy {
    let minute = |limit| RollingWindow::new(limit, Span::from_mins(1));
    let day =
        CalendarWindow::new(quota.rpd.min(1 << 40), Period::Day).in_zone("America/Los_Angeles");
    Policy::new(
        "gemini",
        [
            Limit::new("rpm", "requests", minute(quota.rpm.min(1 << 20))).margin(margin),
            Limit::new("tpm", "tokens", minute(quota.tpm.min(1 << 40)).resolution(120))
                .margin(margin),
            Limit::new("rpd", "requests", day),
        ],
    )
    .unwrap()
}

/// A pipeline on a clock of its own, in memory, with a fake provider.
pub(crate) struct Harness {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) fake: FakeGemini,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) store: Arc<dyn JobStore>,
    pub(crate) delay: Span,
}

impl Harness {
    pub(crate) fn new(clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let policy = policy(settings.quota, Span::ZERO);
        Self::with(clock, settings, policy, Span::ZERO)
    }

    pub(crate) fn with(
        clock: Arc<dyn Clock>,
        settings: Settings,
        policy: Policy,
        delay: Span,
    ) -> Self {
        let gate: Arc<dyn Gate> = Arc::new(Memory::with(Arc::clone(&clock), 100));
        let throttle = Arc::new(Throttle::new(gate, policy, "project", Arc::clone(&clock)));
        let fake = FakeGemini::new(Arc::clone(&clock), settings);
        let store = Arc::new(EmbeddedJobs::in_memory().unwrap());
        Self { clock, fake, throttle, store, delay }
    }

    pub(crate) fn pipeline(&self, parallel: usize) -> Pipeline {
        self.pipeline_with(Options { parallel, ..Options::default() })
    }

    pub(crate) fn pipeline_with(&self, options: Options) -> Pipeline {
        let (fake, clock) = (self.fake.clone(), Arc::clone(&self.clock));
        self.pipeline_over(Arc::new(Direct { fake, clock, delay: self.delay }), options)
    }

    /// The same on another way to the provider.
    pub(crate) fn pipeline_over(
        &self,
        transport: Arc<dyn Transport>,
        options: Options,
    ) -> Pipeline {
        let clock = Arc::clone(&self.clock);
        let key = ApiKey::new("project.key").unwrap();
        let on = Arc::clone(&clock);
        let client = ProviderClient::new("https://fake", key, transport, on, TIMEOUT_DEFAULT);
        let provider = Arc::new(Gemini::new(client.unwrap()));
        Pipeline::new(provider, Arc::clone(&self.throttle), Arc::clone(&self.store), clock, options)
    }
}

const WORDS: [&str; 64] = [
    "the", "river", "was", "quiet", "and", "nobody", "had", "seen", "a", "boat", "since", "early",
    "morning", "when", "old", "captain", "walked", "along", "shore", "with", "his", "dog", "they",
    "looked", "for", "traces", "of", "storm", "that", "came", "over", "night", "but", "sand",
    "kept", "no", "secret", "from", "those", "who", "knew", "how", "to", "read", "it", "then",
    "light", "changed", "behind", "hills", "where", "village", "stood", "in", "its", "orchard",
    "of", "apple", "trees", "every", "window", "still", "dark", "again",
];

/// `number` paragraphs of English, no two alike, each of about 25 words.
pub(crate) fn prose(number: usize) -> String {
    let paragraph = |number: usize| {
        let mut seed = number as u64 + 1;
        let mut words = Vec::new();
        for place in 0..20 + number % 11 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            words.push(WORDS[(seed >> 33) as usize % WORDS.len()].to_owned());
            if place % 9 == 8 {
                words.push(format!("{},", number + place));
            }
        }
        let text = words.join(" ");
        format!("{}{}.", text[..1].to_uppercase(), &text[1..])
    };
    (0..number).map(paragraph).collect::<Vec<_>>().join("\n\n") + "\n"
}

pub(crate) fn task() -> Task {
    Task::new("en".parse().unwrap(), "fr".parse().unwrap())
}

/// A job of `text` in chunks of about `chunk_tokens`.
pub(crate) fn spec(id: &str, text: &str, chunk_tokens: u64) -> JobSpec {
    let mut spec = JobSpec::new(id, text.as_bytes().to_vec(), Format::Text, task(), MODEL);
    spec.chunk_tokens = chunk_tokens;
    spec
}

/// Returns text of exactly `chunks` chunks of about five paragraphs, and the size of a chunk.
pub(crate) fn chunks_of(chunks: usize) -> (String, u64) {
    let size = 200;
    let mut paragraphs = 4 * chunks;
    loop {
        let text = prose(paragraphs);
        let mut document = Document::read(text.as_bytes().to_vec(), Format::Text).unwrap();
        let found = chunk::cut(&mut document, size).unwrap().len();
        if found == chunks {
            return (text, size);
        }
        assert!(found < chunks, "{found} chunks of {paragraphs} paragraphs");
        paragraphs += (4 * (chunks - found - 1)).max(1);
    }
}

/// What the document must become: every segment as the fake translates it, and everything else as it was.
pub(crate) fn expected(text: &str, chunk_tokens: u64) -> Vec<u8> {
    let mut document = Document::read(text.as_bytes().to_vec(), Format::Text).unwrap();
    chunk::cut(&mut document, chunk_tokens).unwrap();
    let texts: Vec<String> =
        document.segments().map(|segment| translated(&segment.text())).collect();
    document.write(Layout::Translation, |segment| Filling::Text(&texts[segment])).unwrap()
}
