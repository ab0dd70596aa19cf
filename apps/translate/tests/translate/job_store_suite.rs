//! The conformance suite of job stores. A store with a test binary of its own includes this file.

use std::sync::Arc;

use tollgate::{Span, Timestamp};
use tollgate_translate::job::{
    CallUsage, ChunkPart, ChunkState, ChunkUpdate, Claim, ClaimOutcome, Draft, Drafts, JobState,
    JobStore, NewJob, SegmentRange,
};

pub(crate) const fn run(first: u32, end: u32) -> SegmentRange {
    SegmentRange { first, end }
}

pub(crate) fn job(id: &str, chunks: &[SegmentRange]) -> NewJob {
    NewJob {
        id: id.to_owned(),
        name: "book.md".to_owned(),
        document: b"text".to_vec(),
        settings: "{}".to_owned(),
        chunks: chunks.to_vec(),
    }
}

pub(crate) fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(1_800_000_000 + secs)
}

pub(crate) fn claimed(next: ClaimOutcome) -> Claim {
    match next {
        ClaimOutcome::Chunk(claim) => claim,
        other => panic!("{other:?} is no chunk"),
    }
}

pub(crate) fn done(texts: &[&str]) -> ChunkUpdate {
    let drafts = Drafts::settled(texts.iter().map(|text| (*text).to_owned()));
    ChunkUpdate::Done { drafts, used: CallUsage { input: 10, output: 5, cost: 7 } }
}

pub(crate) async fn conforms(store: &dyn JobStore) {
    let all = [run(0, 4), run(4, 6)];
    assert!(store.create(&job("a", &all), at(0)).await.unwrap());
    assert!(!store.create(&job("a", &[run(0, 9)]), at(1)).await.unwrap(), "the first one stays");
    assert_eq!(store.document("a").await.unwrap().unwrap(), b"text");
    assert_eq!(store.job("b").await.unwrap(), None);
    for (chunks, words) in
        [(vec![run(0, 1), run(2, 3)], "does not follow"), (vec![run(0, 0)], "does not follow")]
    {
        let error = store.create(&job("bad", &chunks), at(0)).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = store.create(&job("../x", &all), at(0)).await.unwrap_err().to_string();
    assert!(error.contains("letters"), "{error}");
    let kept = store.job("a").await.unwrap().unwrap();
    assert_eq!(
        (kept.state, kept.name.as_str(), kept.created_at),
        (JobState::Planned, "book.md", at(0))
    );
    assert!(store.set_state("a", &JobState::Running, at(2)).await.unwrap());
    assert_eq!(store.job("a").await.unwrap().unwrap().started_at, Some(at(2)));

    // In order, each once, and what was sent counts.
    let first = claimed(store.claim("a", "w", at(3)).await.unwrap());
    let second = claimed(store.claim("a", "w", at(3)).await.unwrap());
    assert_eq!((first.run, second.run), (run(0, 4), run(4, 6)));
    assert!(matches!(store.claim("a", "w", at(3)).await.unwrap(), ClaimOutcome::Later(_)));
    assert!(store.update(&first, &ChunkUpdate::Sent { cost: 100, most: None }).await.unwrap());
    assert_eq!(store.counts("a").await.unwrap().cost, 100, "what is under way may cost this");

    // Halves take over.
    let used = CallUsage { input: 1, output: 1, cost: 20 };
    let part = |run: SegmentRange| ChunkPart { run, drafts: Drafts::none(run.len()), failed: None };
    let parts = vec![part(run(0, 1)), part(run(1, 4))];
    let split = ChunkUpdate::Split { parts, reason: "cut off".to_owned(), used };
    assert!(store.update(&first, &split).await.unwrap());
    assert!(!store.update(&first, &done(&["x"; 4])).await.unwrap(), "its place is taken");
    assert!(store.update(&second, &done(&["e", "f"])).await.unwrap());
    assert!(
        !store.update(&second, &ChunkUpdate::Failed { reason: String::new(), used }).await.unwrap(),
        "done is done"
    );
    let left = claimed(store.claim("a", "w", at(3)).await.unwrap());
    assert_eq!((left.run, left.spent), (run(0, 1), 27));

    // Again, at its time and not before.
    let again = ChunkUpdate::Again {
        at: at(60),
        reason: "503".to_owned(),
        drafts: Drafts::none(1),
        used: CallUsage::default(),
        is_fault: false,
    };
    assert!(store.update(&left, &again).await.unwrap());
    let right = claimed(store.claim("a", "w", at(4)).await.unwrap());
    assert_eq!(right.run, run(1, 4));
    let failed = ChunkUpdate::Failed { reason: "blocked".to_owned(), used: CallUsage::default() };
    assert!(store.update(&right, &failed).await.unwrap());
    assert_eq!(store.claim("a", "w", at(59)).await.unwrap(), ClaimOutcome::Later(at(60)));
    let left = claimed(store.claim("a", "w", at(60)).await.unwrap());
    assert_eq!((left.transient, left.faults), (1, 0));
    let fault = ChunkUpdate::Again {
        at: at(60),
        reason: "bad".to_owned(),
        drafts: Drafts::none(1),
        used: CallUsage::default(),
        is_fault: true,
    };
    assert!(store.update(&left, &fault).await.unwrap());
    let left = claimed(store.claim("a", "w", at(60)).await.unwrap());
    assert_eq!((left.transient, left.faults), (0, 1));
    assert!(store.update(&left, &ChunkUpdate::Returned).await.unwrap());
    let left = claimed(store.claim("a", "w", at(60)).await.unwrap());
    assert!(store.update(&left, &done(&["a"])).await.unwrap());
    assert_eq!(store.claim("a", "w", at(61)).await.unwrap(), ClaimOutcome::Nothing);

    let counts = store.counts("a").await.unwrap();
    assert_eq!((counts.done, counts.failed, counts.waiting, counts.working), (2, 1, 0, 0));
    let chunks = store.chunks("a").await.unwrap();
    let kept: Vec<_> = chunks.iter().map(|chunk| (chunk.run, chunk.state)).collect();
    let states = [ChunkState::Done, ChunkState::Failed, ChunkState::Done];
    assert_eq!(kept, [run(0, 1), run(1, 4), run(4, 6)].into_iter().zip(states).collect::<Vec<_>>());
    assert_eq!(
        (chunks[2].texts.join(""), chunks[1].reason.as_deref()),
        ("ef".to_owned(), Some("blocked"))
    );

    // Only what was given up is redone.
    store.set_state("a", &JobState::CompletedWithErrors, at(70)).await.unwrap();
    assert!(matches!(
        store.claim("a", "w", at(70)).await.unwrap(),
        ClaimOutcome::Halted(JobState::CompletedWithErrors)
    ));
    assert_eq!(store.retry_failed("a").await.unwrap(), 1);
    assert_eq!(claimed(store.claim("a", "w", at(71)).await.unwrap()).run, run(1, 4));

    // Paused and cancelled jobs give nothing, and cancelled is for good.
    let paused = JobState::Paused { resume_at: Some(at(100)), why: "rpd".to_owned() };
    store.set_state("a", &paused, at(72)).await.unwrap();
    assert_eq!(store.claim("a", "w", at(73)).await.unwrap(), ClaimOutcome::Halted(paused.clone()));
    assert_eq!(store.job("a").await.unwrap().unwrap().state, paused);
    assert!(store.set_state("a", &JobState::Cancelled, at(74)).await.unwrap());
    assert!(!store.set_state("a", &JobState::Running, at(75)).await.unwrap());
    store.create(&job("z", &all), at(80)).await.unwrap();
    let names: Vec<_> = store.jobs().await.unwrap().into_iter().map(|job| job.id).collect();
    assert_eq!(names, ["z", "a"]);
    store.set_settings("z", "{\"model\":\"other\"}").await.unwrap();
    assert_eq!(store.job("z").await.unwrap().unwrap().settings, "{\"model\":\"other\"}");

    // The cache.
    assert_eq!(store.cached(&[1; 32]).await.unwrap(), None);
    for texts in [vec!["un".to_owned()], vec!["deux".to_owned(), "trois".to_owned()]] {
        store.cache(&[1; 32], &texts, at(90)).await.unwrap();
        assert_eq!(store.cached(&[1; 32]).await.unwrap(), Some(texts));
    }
}

pub(crate) async fn futures<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    number: usize,
    make: impl Fn() -> F,
) -> Vec<T> {
    let tasks: Vec<_> = (0..number).map(|_| tokio::spawn(make())).collect();
    let mut ended = Vec::new();
    for task in tasks {
        ended.push(task.await.unwrap());
    }
    ended
}

/// Of forty calls that are reserved at once, by four workers, exactly as many go as there is money for.
pub(crate) async fn never_reserves_too_much(stores: [Arc<dyn JobStore>; 4]) {
    let chunks: Vec<SegmentRange> = (0..40).map(|number| run(number, number + 1)).collect();
    stores[0].create(&job("purse", &chunks), at(0)).await.unwrap();
    let mut claims = Vec::new();
    for _ in &chunks {
        claims.push(claimed(stores[0].claim("purse", "w", at(0)).await.unwrap()));
    }
    let mut tasks = Vec::new();
    for (claim, store) in claims.into_iter().zip(stores.iter().cycle().map(Arc::clone)) {
        tasks.push(tokio::spawn(async move {
            let step = ChunkUpdate::Sent { cost: 10, most: Some(75) };
            store.update(&claim, &step).await.unwrap().then_some(claim)
        }));
    }
    let mut sent = Vec::new();
    for task in tasks {
        sent.extend(task.await.unwrap());
    }
    assert_eq!(sent.len(), 7);
    assert_eq!(stores[0].counts("purse").await.unwrap().cost, 70);
    let used = CallUsage { input: 0, output: 0, cost: 2 };
    let failed = ChunkUpdate::Failed { reason: String::new(), used };
    assert!(stores[0].update(&sent[0], &failed).await.unwrap());
    assert!(stores[0].update(&sent[1], &ChunkUpdate::Returned).await.unwrap());
    let next = claimed(stores[0].claim("purse", "w", at(1)).await.unwrap());
    assert_eq!((next.spent, next.under_way), (2, 50), "what was not used is given back");
}

pub(crate) async fn keeps_drafts(store: &dyn JobStore) {
    store.create(&job("drafts", &[run(0, 4), run(4, 5)]), at(0)).await.unwrap();
    store.set_state("drafts", &JobState::Running, at(0)).await.unwrap();
    let claim = claimed(store.claim("drafts", "w", at(0)).await.unwrap());
    assert_eq!(claim.drafts, Drafts::none(4));
    let draft = |text: &str, warning: Option<&str>, is_settled| Draft {
        text: text.to_owned(),
        warning: warning.map(str::to_owned),
        is_settled,
    };
    let mut drafts = Drafts::none(4);
    drafts.put(0, draft("un", None, true));
    drafts.put(1, draft("deux", Some("it lacks the number 12"), true));
    drafts.put(3, draft("four", Some("it was not translated"), false));
    let (used, reason) = (CallUsage::default(), "segment 3 is empty".to_owned());
    let again =
        ChunkUpdate::Again { at: at(0), reason, drafts: drafts.clone(), used, is_fault: true };
    store.update(&claim, &again).await.unwrap();
    let other = claimed(store.claim("drafts", "w", at(0)).await.unwrap());
    assert_eq!(other.run, run(4, 5), "what was never tried comes first");
    store.update(&other, &done(&["cinq"])).await.unwrap();
    let claim = claimed(store.claim("drafts", "w", at(0)).await.unwrap());
    assert_eq!((claim.run, &claim.drafts), (run(0, 4), &drafts));
    assert!(store.update(&claim, &ChunkUpdate::Returned).await.unwrap());
    let claim = claimed(store.claim("drafts", "w", at(0)).await.unwrap());
    assert_eq!(claim.drafts, drafts, "a call that came to nothing costs no draft");
    let parts = vec![
        ChunkPart { run: run(0, 2), drafts: drafts.part(0..2), failed: None },
        ChunkPart { run: run(2, 3), drafts: drafts.part(2..3), failed: Some("empty".to_owned()) },
        ChunkPart { run: run(3, 4), drafts: drafts.part(3..4), failed: None },
    ];
    let split = ChunkUpdate::Split { parts, reason: String::new(), used };
    assert!(store.update(&claim, &split).await.unwrap());
    let last = claimed(store.claim("drafts", "w", at(0)).await.unwrap());
    assert_eq!((last.run, &last.drafts), (run(3, 4), &drafts.part(3..4)));
    store.update(&last, &done(&["quatre"])).await.unwrap();
    let chunks = store.chunks("drafts").await.unwrap();
    let rows: Vec<_> =
        chunks.iter().map(|it| (it.run, it.state, it.texts.join(" "), it.reason.clone())).collect();
    assert_eq!(
        rows,
        [
            (run(0, 2), ChunkState::Done, "un deux".to_owned(), None),
            (run(2, 3), ChunkState::Failed, String::new(), Some("empty".to_owned())),
            (run(3, 4), ChunkState::Done, "quatre".to_owned(), None),
            (run(4, 5), ChunkState::Done, "cinq".to_owned(), None),
        ]
    );
    assert_eq!(chunks[0].warnings, [(1, "it lacks the number 12".to_owned())]);
}

/// How long claims of the stores of [`gives_up_silent_workers`] live.
pub(crate) const LEASE: Span = Span::from_secs(30);

/// A claim that is not renewed ends with its lease, and its expired worker cannot undo what the successor does.
pub(crate) async fn gives_up_silent_workers(store: &dyn JobStore) {
    store.create(&job("a", &[run(0, 1)]), at(0)).await.unwrap();
    assert!(!store.is_active("a", at(0)).await.unwrap());
    let dead = claimed(store.claim("a", "dead", at(0)).await.unwrap());
    assert!(store.is_active("a", at(29)).await.unwrap());
    assert!(!store.is_active("a", at(30)).await.unwrap(), "its lease is over");
    store.update(&dead, &ChunkUpdate::Sent { cost: 3, most: None }).await.unwrap();
    assert_eq!(store.claim("a", "other", at(29)).await.unwrap(), ClaimOutcome::Later(at(30)));
    store.renew(&dead, at(20)).await.unwrap();
    assert_eq!(store.claim("a", "other", at(49)).await.unwrap(), ClaimOutcome::Later(at(50)));
    let heir = claimed(store.claim("a", "other", at(50)).await.unwrap());
    assert_eq!((heir.calls, heir.spent), (1, 3), "a call whose outcome is unknown counts as paid");
    store.renew(&dead, at(55)).await.unwrap();
    assert_eq!(
        store.claim("a", "third", at(60)).await.unwrap(),
        ClaimOutcome::Later(at(80)),
        "not the dead one's to renew"
    );
    assert!(!store.update(&dead, &ChunkUpdate::Returned).await.unwrap(), "nor to give back");
    assert!(
        store.update(&dead, &done(&["late"])).await.unwrap(),
        "but a translation is a translation"
    );
    assert!(!store.update(&heir, &done(&["twice"])).await.unwrap());
}

/// Many claimers get every chunk once.
pub(crate) async fn never_shares_a_chunk(stores: Vec<Arc<dyn JobStore>>) {
    let many: Vec<SegmentRange> = (0..60).map(|number| run(number, number + 1)).collect();
    stores[0].create(&job("b", &many), at(0)).await.unwrap();
    let stores = std::sync::Mutex::new(stores);
    let claimers = futures(8, || {
        let store = stores.lock().unwrap().pop().unwrap();
        async move {
            let mut mine = Vec::new();
            while let ClaimOutcome::Chunk(claim) = store.claim("b", "w", at(0)).await.unwrap() {
                mine.push(claim.run);
            }
            mine
        }
    });
    let mut all: Vec<SegmentRange> = claimers.await.into_iter().flatten().collect();
    all.sort();
    assert_eq!(all, many, "each chunk once, and none left");
}
