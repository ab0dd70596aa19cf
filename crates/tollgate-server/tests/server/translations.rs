//! `/v1/translations`, with jobs in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tollgate::gate::BoxFuture;
use tollgate::{Error, ErrorKind, Policy};
use tollgate_protocol::json::{Translation, TranslationRequest};
use tollgate_server::Translations;
use tollgate_server::bounds::{
    BODY_BYTES_MAX, TRANSLATION_BYTES_MAX, TRANSLATIONS_AT_ONCE, TRANSLATIONS_SHOWN_MAX,
};
use tollgate_server::keys::{Key, KeyHash, Scope};

use crate::client::{Pending, START, Server};

const PATH: &str = "/v1/translations";

/// The id of a job whose store is away.
pub(crate) const AWAY: &str = "away";

/// The name of a job that is completed at once.
pub(crate) const COMPLETED: &str = "completed";

/// How often a test looks whether other connections have come to the server.
const TRIES_MAX: usize = 10_000;

/// Jobs in memory; a document in French is one in capitals.
#[derive(Debug, Default)]
pub(crate) struct MemoryJobs(Mutex<BTreeMap<String, (Translation, TranslationRequest)>>);

impl MemoryJobs {
    fn made(&self, request: &TranslationRequest) -> Result<Option<Translation>, Error> {
        let document = request.document.as_deref().unwrap_or_default();
        if document.is_empty() || request.name.as_ref().is_some_and(|name| 64 < name.len()) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "send a document, and a name of 1 to 64 bytes",
            ));
        }
        let id = request.id.clone().unwrap_or_else(|| format!("job-{}", document.len()));
        let name = request.name.clone().unwrap_or_else(|| id.clone());
        let finished = name == COMPLETED;
        let job = Translation {
            state: if finished { COMPLETED } else { "planned" }.to_owned(),
            finished,
            name,
            id: id.clone(),
            chunks: 1,
            done: u64::from(finished),
            format: request.format.clone(),
            policy: request.policy.clone(),
            subject: request.subject.clone(),
            created_at: START,
            ..Translation::default()
        };
        let mut jobs = self.0.lock().unwrap();
        let (kept, same) = jobs.entry(id).or_insert_with(|| (job, request.clone()));
        Ok((same.document == request.document).then(|| kept.clone()))
    }
}

impl Translations for MemoryJobs {
    fn create<'a>(
        &'a self,
        _: &'a Policy,
        request: TranslationRequest,
    ) -> BoxFuture<'a, Result<Option<Translation>, Error>> {
        Box::pin(async move { self.made(&request) })
    }

    fn find<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Translation>, Error>> {
        Box::pin(async move {
            if id == AWAY {
                return Err(Error::new(ErrorKind::Unavailable, "the job store is away"));
            }
            Ok(self.0.lock().unwrap().get(id).map(|(job, _)| job.clone()))
        })
    }

    fn recent(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Translation>, Error>> {
        Box::pin(async move {
            let jobs = self.0.lock().unwrap();
            Ok(jobs.values().map(|(job, _)| job.clone()).take(limit).collect())
        })
    }

    fn document<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<u8>, Error>> {
        Box::pin(async move {
            let text = self.0.lock().unwrap()[id].1.document.clone();
            Ok(text.unwrap_or_default().to_uppercase().into_bytes())
        })
    }

    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let mut jobs = self.0.lock().unwrap();
            let state = &mut jobs.get_mut(id).unwrap().0.state;
            let was = std::mem::replace(state, "cancelled".to_owned());
            Ok(was == "planned")
        })
    }
}

fn order(subject: &str, id: &str, text: &str) -> String {
    json!({
        "policy": "gemini", "subject": subject, "to": "fr", "format": "html", "document": text, "id": id, "name": COMPLETED,
    })
    .to_string()
}

async fn serving() -> Server {
    Server::serving(|app| app.translations(Arc::new(MemoryJobs::default()))).await
}

/// The list shows the jobs of every subject, so it needs a key that may inspect all of them.
#[tokio::test]
async fn the_newest_jobs_are_listed_for_a_key_that_may_inspect() {
    let server = serving().await;
    for number in 0..25 {
        let id = format!("j{number}");
        assert_eq!(server.post(PATH, &order("p7", &id, "hello")).await.status, 200);
    }
    let jobs = server.get(PATH).await.json();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), TRANSLATIONS_SHOWN_MAX);
    assert_eq!(jobs["jobs"][0]["state"], COMPLETED);
    assert_eq!(Server::start().await.get(PATH).await.status, 404);
    let key =
        Key::new("worker", KeyHash::from_key("worker"), [Scope::Acquire].into_iter().collect());
    let guarded = Server::guarded([key]).await;
    assert_eq!(guarded.send_as("Bearer worker", "GET", PATH, "").await.status, 403);
}

/// A document is a file: a browser must not show a page of HTML as one of the server.
#[tokio::test]
async fn a_document_is_sent_as_a_file() {
    let server = serving().await;
    assert_eq!(server.post(PATH, &order("p7", "page", "<p>hello</p>")).await.status, 200);
    let answer = server.get("/v1/translations/page/document").await;
    assert_eq!((answer.status, &*answer.text), (200, "<P>HELLO</P>"));
    let fields = [
        ("content-type", "application/octet-stream"),
        ("content-disposition", "attachment; filename=\"page.html\""),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-store"),
    ];
    for (name, value) in fields {
        assert_eq!(answer.field(name), Some(value), "{name}");
    }
}

/// A key reaches the jobs of its subjects, and does not learn whose the others are.
#[tokio::test]
async fn a_bound_key_reaches_its_own_jobs() {
    let key = |name: &str| {
        let scopes = [Scope::Acquire].into_iter().collect();
        let subjects = vec![name.to_owned()];
        Key { subjects, ..Key::new(name, KeyHash::from_key(name), scopes) }
    };
    let server = Server::serving(|app| {
        app.replace_keys(Some([key("alice"), key("bob")].into_iter().collect()));
        app.translations(Arc::new(MemoryJobs::default()))
    })
    .await;
    let (alice, bob) = ("Bearer alice", "Bearer bob");
    let body = order("alice", "book", "hello");
    assert_eq!(server.send_as(bob, "POST", PATH, &body).await.status, 403);
    assert_eq!(server.send_as(alice, "POST", PATH, &body).await.status, 200);
    for (method, path) in [("GET", ""), ("POST", "/cancel"), ("GET", "/document")] {
        let refused = server.send_as(bob, method, &format!("{PATH}/book{path}"), "{}").await;
        assert_eq!(refused.status, 403, "{method} {path}");
        assert!(!refused.text.contains("alice"), "{}", refused.text);
    }
    // Whether the documents are the same makes no difference to who may not see the job.
    for text in ["hello", "good bye"] {
        let taken = server.send_as(bob, "POST", PATH, &order("bob", "book", text)).await;
        assert_eq!((taken.status, &taken.json()["kind"]), (409, &json!("conflict")));
    }
    let own = server.send_as(alice, "GET", &format!("{PATH}/book"), "").await;
    assert_eq!(own.json()["state"], COMPLETED, "it was not cancelled");
}

#[tokio::test]
async fn a_document_has_bounds_of_its_own() {
    let server = serving().await;
    let long = order("p7", "long", &"x".repeat(2 * BODY_BYTES_MAX));
    assert_eq!(server.post(PATH, &long).await.status, 200);
    // The length alone is refused, before anything of the body arrives.
    let head = |length: usize| {
        format!(
            "POST {PATH} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        )
    };
    let answer = Pending::send(server.address, &head(TRANSLATION_BYTES_MAX + 1)).await;
    let answer = answer.answer().await;
    assert_eq!((answer.status, &answer.json()["kind"]), (413, &json!("too-large")));
    assert!(answer.text.contains("cut the document in parts"), "{}", answer.text);

    let mut arriving = Vec::new();
    for _ in 0..TRANSLATIONS_AT_ONCE {
        arriving.push(Pending::send(server.address, &head(2)).await);
    }
    // Where the four have come to is not known, so the fifth is tried until they all are there.
    let mut one_more = server.post(PATH, &order("p7", "more", "hello")).await;
    for _ in 0..TRIES_MAX {
        if one_more.status != 200 {
            break;
        }
        one_more = server.post(PATH, &order("p7", "more", "hello")).await;
    }
    assert_eq!((one_more.status, one_more.field("retry-after")), (503, Some("1")));
    assert_eq!(one_more.json()["kind"], "contended");
    drop(arriving);
    let mut status = 0;
    for _ in 0..TRIES_MAX {
        status = server.post(PATH, &order("p7", "more", "hello")).await.status;
        if status == 200 {
            break;
        }
    }
    assert_eq!(status, 200, "their places are free again");
}

#[tokio::test]
async fn a_job_store_that_is_away_says_when_to_ask_again() {
    let server = serving().await;
    let answer = server.get(&format!("{PATH}/{AWAY}")).await;
    assert_eq!((answer.status, answer.field("retry-after")), (503, Some("5")));
    assert_eq!(answer.json()["kind"], "unavailable");
}
