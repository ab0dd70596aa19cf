//! Every store of jobs keeps the same promises.

use std::sync::Arc;

use tollgate::{Span, Timestamp};
use tollgate_testing::servers::Postgres;
use tollgate_translate::job::{
    ChunkState, Claim, Drafts, EmbeddedJobs, JobState, JobStore, NewJob, Next, Part, PostgresJobs,
    Run, Step, Used,
};

pub(crate) const fn run(first: u32, end: u32) -> Run {
    Run { first, end }
}

pub(crate) fn job(id: &str, chunks: &[Run]) -> NewJob {
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

pub(crate) fn claimed(next: Next) -> Claim {
    match next {
        Next::Chunk(claim) => claim,
        other => panic!("{other:?} is no chunk"),
    }
}

pub(crate) fn done(texts: &[&str]) -> Step {
    let drafts = Drafts::settled(texts.iter().map(|text| (*text).to_owned()));
    Step::Done { drafts, used: Used { input: 10, output: 5, cost: 7 } }
}

async fn keeps_its_promises(store: &dyn JobStore) {
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
    assert!(matches!(store.claim("a", "w", at(3)).await.unwrap(), Next::Later(_)));
    assert!(store.record(&first, &Step::Sent { cost: 100, most: None }).await.unwrap());
    assert_eq!(store.counts("a").await.unwrap().cost, 100, "what is under way may cost this");

    // Halves take over.
    let used = Used { input: 1, output: 1, cost: 20 };
    let part = |run: Run| Part { run, drafts: Drafts::none(run.len()), failed: None };
    let parts = vec![part(run(0, 1)), part(run(1, 4))];
    let split = Step::Split { parts, reason: "cut off".to_owned(), used };
    assert!(store.record(&first, &split).await.unwrap());
    assert!(!store.record(&first, &done(&["x"; 4])).await.unwrap(), "its place is taken");
    assert!(store.record(&second, &done(&["e", "f"])).await.unwrap());
    assert!(
        !store.record(&second, &Step::Failed { reason: String::new(), used }).await.unwrap(),
        "done is done"
    );
    let left = claimed(store.claim("a", "w", at(3)).await.unwrap());
    assert_eq!((left.run, left.spent), (run(0, 1), 27));

    // Again, at its time and not before.
    let again = Step::Again {
        at: at(60),
        reason: "503".to_owned(),
        drafts: Drafts::none(1),
        used: Used::default(),
        is_fault: false,
    };
    assert!(store.record(&left, &again).await.unwrap());
    let right = claimed(store.claim("a", "w", at(4)).await.unwrap());
    assert_eq!(right.run, run(1, 4));
    let failed = Step::Failed { reason: "blocked".to_owned(), used: Used::default() };
    assert!(store.record(&right, &failed).await.unwrap());
    assert_eq!(store.claim("a", "w", at(59)).await.unwrap(), Next::Later(at(60)));
    let left = claimed(store.claim("a", "w", at(60)).await.unwrap());
    assert_eq!((left.passing, left.faults), (1, 0));
    let fault = Step::Again {
        at: at(60),
        reason: "bad".to_owned(),
        drafts: Drafts::none(1),
        used: Used::default(),
        is_fault: true,
    };
    assert!(store.record(&left, &fault).await.unwrap());
    let left = claimed(store.claim("a", "w", at(60)).await.unwrap());
    assert_eq!((left.passing, left.faults), (0, 1));
    assert!(store.record(&left, &Step::Back).await.unwrap());
    let left = claimed(store.claim("a", "w", at(60)).await.unwrap());
    assert!(store.record(&left, &done(&["a"])).await.unwrap());
    assert_eq!(store.claim("a", "w", at(61)).await.unwrap(), Next::Nothing);

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
        Next::Halted(JobState::CompletedWithErrors)
    ));
    assert_eq!(store.retry_failed("a").await.unwrap(), 1);
    assert_eq!(claimed(store.claim("a", "w", at(71)).await.unwrap()).run, run(1, 4));

    // Paused and cancelled jobs give nothing, and cancelled is for good.
    let paused = JobState::Paused { resume_at: Some(at(100)), why: "rpd".to_owned() };
    store.set_state("a", &paused, at(72)).await.unwrap();
    assert_eq!(store.claim("a", "w", at(73)).await.unwrap(), Next::Halted(paused.clone()));
    assert_eq!(store.job("a").await.unwrap().unwrap().state, paused);
    assert!(store.set_state("a", &JobState::Cancelled, at(74)).await.unwrap());
    assert!(!store.set_state("a", &JobState::Running, at(75)).await.unwrap());
    store.create(&job("z", &all), at(80)).await.unwrap();
    let names: Vec<_> = store.jobs().await.unwrap().into_iter().map(|job| job.id).collect();
    assert_eq!(names, ["z", "a"]);
    store.set_settings("z", "{\"model\":\"other\"}").await.unwrap();
    assert_eq!(store.job("z").await.unwrap().unwrap().settings, "{\"model\":\"other\"}");

    // The cache.
    assert_eq!(store.recall(&[1; 32]).await.unwrap(), None);
    for texts in [vec!["un".to_owned()], vec!["deux".to_owned(), "trois".to_owned()]] {
        store.remember(&[1; 32], &texts, at(90)).await.unwrap();
        assert_eq!(store.recall(&[1; 32]).await.unwrap(), Some(texts));
    }
}

#[tokio::test]
async fn r003_5_jobs_in_memory_and_in_a_folder_keep_their_promises() {
    keeps_its_promises(&EmbeddedJobs::in_memory().unwrap()).await;
    let folder = tempfile::tempdir().unwrap();
    keeps_its_promises(&EmbeddedJobs::open(folder.path()).unwrap()).await;
    // Opened again, it is all there.
    let again = EmbeddedJobs::open(folder.path()).unwrap();
    assert_eq!(again.jobs().await.unwrap().len(), 2);
}

#[tokio::test]
async fn r003_5_one_process_at_a_time_works_on_a_job_in_a_folder_and_takes_back_what_was_under_way()
{
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedJobs::open(folder.path()).unwrap();
    store.create(&job("a", &[run(0, 4)]), at(0)).await.unwrap();
    let hold = store.enter("a").await.unwrap();
    let claim = claimed(store.claim("a", "w", at(0)).await.unwrap());
    store.record(&claim, &Step::Sent { cost: 9, most: None }).await.unwrap();
    let other = EmbeddedJobs::open(folder.path()).unwrap();
    let error = other.enter("a").await.unwrap_err().to_string();
    assert!(error.contains("another process works on the job"), "{error}");
    drop(hold);
    let _hold = other.enter("a").await.unwrap();
    let claim = claimed(other.claim("a", "v", at(1)).await.unwrap());
    assert_eq!((claim.calls, claim.spent), (1, 9), "a call whose end nobody saw counts as paid");
}

#[test]
fn many_that_open_a_new_folder_at_once_all_can() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    EmbeddedJobs::open(folder.path()).map(drop).unwrap();
                });
            }
        });
    }
}

#[tokio::test]
async fn a_file_of_another_program_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.sqlite");
    std::fs::write(&path, b"not a database, but somebody's notes").unwrap();
    let error = EmbeddedJobs::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("cannot be used"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"not a database, but somebody's notes");
}

#[tokio::test]
async fn r003_11_jobs_in_postgres_keep_their_promises() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let store = PostgresJobs::open(&url, "tollgate").await.unwrap().by_callers_clock();
    keeps_its_promises(&store).await;
    // Made again, by many at once, the tables are found.
    let opened = futures(8, || {
        let url = url.clone();
        async move { PostgresJobs::open(&url, "tollgate").await.map(drop) }
    });
    for opened in opened.await {
        opened.unwrap();
    }
    for wrong in ["", "Tollgate", "a b", "1a", "x;drop"] {
        let error = PostgresJobs::open(&url, wrong).await.unwrap_err().to_string();
        assert!(error.contains("no name of a schema"), "{error}");
    }
}

async fn futures<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
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
async fn never_reserves_too_much(stores: [Arc<dyn JobStore>; 4]) {
    let chunks: Vec<Run> = (0..40).map(|number| run(number, number + 1)).collect();
    stores[0].create(&job("purse", &chunks), at(0)).await.unwrap();
    let mut claims = Vec::new();
    for _ in &chunks {
        claims.push(claimed(stores[0].claim("purse", "w", at(0)).await.unwrap()));
    }
    let mut tasks = Vec::new();
    for (claim, store) in claims.into_iter().zip(stores.iter().cycle().map(Arc::clone)) {
        tasks.push(tokio::spawn(async move {
            let step = Step::Sent { cost: 10, most: Some(75) };
            store.record(&claim, &step).await.unwrap().then_some(claim)
        }));
    }
    let mut sent = Vec::new();
    for task in tasks {
        sent.extend(task.await.unwrap());
    }
    assert_eq!(sent.len(), 7);
    assert_eq!(stores[0].counts("purse").await.unwrap().cost, 70);
    let used = Used { input: 0, output: 0, cost: 2 };
    let failed = Step::Failed { reason: String::new(), used };
    assert!(stores[0].record(&sent[0], &failed).await.unwrap());
    assert!(stores[0].record(&sent[1], &Step::Back).await.unwrap());
    let next = claimed(stores[0].claim("purse", "w", at(1)).await.unwrap());
    assert_eq!((next.spent, next.under_way), (2, 50), "what was not used is given back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r003_3_money_is_reserved_once_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Arc::new(EmbeddedJobs::open(folder.path()).unwrap()) as Arc<dyn JobStore>;
    never_reserves_too_much([open(), open(), open(), open()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r003_3_money_is_reserved_once_in_postgres() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let mut stores: Vec<Arc<dyn JobStore>> = Vec::new();
    for _ in 0..4 {
        let store = PostgresJobs::open(&url, "tollgate").await.unwrap();
        stores.push(Arc::new(store.by_callers_clock()));
    }
    never_reserves_too_much(stores.try_into().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r003_11_a_lease_ends_by_itself_and_many_claimers_never_share_a_chunk() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let lease = Span::from_secs(30);
    let store =
        PostgresJobs::open(&url, "tollgate").await.unwrap().by_callers_clock().with_lease(lease);
    store.create(&job("a", &[run(0, 1)]), at(0)).await.unwrap();
    let dead = claimed(store.claim("a", "dead", at(0)).await.unwrap());
    store.record(&dead, &Step::Sent { cost: 3, most: None }).await.unwrap();
    assert_eq!(store.claim("a", "other", at(29)).await.unwrap(), Next::Later(at(30)));
    store.renew(&dead, at(20)).await.unwrap();
    assert_eq!(store.claim("a", "other", at(49)).await.unwrap(), Next::Later(at(50)));
    let heir = claimed(store.claim("a", "other", at(50)).await.unwrap());
    assert_eq!((heir.calls, heir.spent), (1, 3), "a call whose end nobody saw counts as paid");
    store.renew(&dead, at(55)).await.unwrap();
    assert_eq!(
        store.claim("a", "third", at(60)).await.unwrap(),
        Next::Later(at(80)),
        "not the dead one's to renew"
    );
    assert!(!store.record(&dead, &Step::Back).await.unwrap(), "nor to give back");
    assert!(
        store.record(&dead, &done(&["late"])).await.unwrap(),
        "but a translation is a translation"
    );
    assert!(!store.record(&heir, &done(&["twice"])).await.unwrap());

    let many: Vec<Run> = (0..60).map(|number| run(number, number + 1)).collect();
    store.create(&job("b", &many), at(0)).await.unwrap();
    let url = Arc::new(url);
    let claimers = futures(8, || {
        let url = Arc::clone(&url);
        async move {
            let store = PostgresJobs::open(&url, "tollgate").await.unwrap();
            let mut mine = Vec::new();
            while let Next::Chunk(claim) = store.claim("b", "w", at(0)).await.unwrap() {
                mine.push(claim.run);
            }
            mine
        }
    });
    let mut all: Vec<Run> = claimers.await.into_iter().flatten().collect();
    all.sort();
    assert_eq!(all, many, "each chunk once, and none left");
}
