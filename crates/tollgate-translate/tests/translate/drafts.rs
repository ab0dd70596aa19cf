//! What is settled of a chunk, in every store of jobs.

use tollgate_testing::servers::Postgres;
use tollgate_translate::job::{
    ChunkState, Draft, Drafts, EmbeddedJobs, JobState, JobStore, Part, PostgresJobs, Step, Used,
};

use crate::kept::{at, claimed, done, job, run};

/// What is settled of a chunk stays settled: over a second attempt, a split, and the end.
async fn keeps_drafts(store: &dyn JobStore) {
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
    let (used, reason) = (Used::default(), "segment 3 is empty".to_owned());
    let again = Step::Again { at: at(0), reason, drafts: drafts.clone(), used, is_fault: true };
    store.record(&claim, &again).await.unwrap();
    let other = claimed(store.claim("drafts", "w", at(0)).await.unwrap());
    assert_eq!(other.run, run(4, 5), "what was never tried comes first");
    store.record(&other, &done(&["cinq"])).await.unwrap();
    let claim = claimed(store.claim("drafts", "w", at(0)).await.unwrap());
    assert_eq!((claim.run, &claim.drafts), (run(0, 4), &drafts));
    assert!(store.record(&claim, &Step::Back).await.unwrap());
    let claim = claimed(store.claim("drafts", "w", at(0)).await.unwrap());
    assert_eq!(claim.drafts, drafts, "a call that came to nothing costs no draft");
    let parts = vec![
        Part { run: run(0, 2), drafts: drafts.part(0..2), failed: None },
        Part { run: run(2, 3), drafts: drafts.part(2..3), failed: Some("empty".to_owned()) },
        Part { run: run(3, 4), drafts: drafts.part(3..4), failed: None },
    ];
    let split = Step::Split { parts, reason: String::new(), used };
    assert!(store.record(&claim, &split).await.unwrap());
    let last = claimed(store.claim("drafts", "w", at(0)).await.unwrap());
    assert_eq!((last.run, &last.drafts), (run(3, 4), &drafts.part(3..4)));
    store.record(&last, &done(&["quatre"])).await.unwrap();
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

#[tokio::test]
async fn r003_5_what_is_settled_of_a_chunk_stays_settled_in_memory() {
    keeps_drafts(&EmbeddedJobs::in_memory().unwrap()).await;
}

#[tokio::test]
async fn r003_11_what_is_settled_of_a_chunk_stays_settled_in_postgres() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let store = PostgresJobs::open(&url, "tollgate").await.unwrap().by_callers_clock();
    keeps_drafts(&store).await;
}
