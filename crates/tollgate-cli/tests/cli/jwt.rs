//! JSON Web Tokens: made by PyJWT, verified by the broker, for HTTP and forward authentication.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hyper::Request;
use serde_json::{Value, json};
use tollgate_testkit::servers::python;

use crate::folder::Folder;
use crate::http::{Http, post_json};
use crate::running::Broker;

/// Prints a key set, and tokens of it with the claims that the first argument changes.
const ISSUER: &str = r#"
import json, sys, time
import jwt
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

keys = {
    "RS256": (rsa.generate_private_key(public_exponent=65537, key_size=2048), RSAAlgorithm),
    "ES256": (ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
    "EdDSA": (ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm),
}
jwks = []
for alg, (key, algorithm) in keys.items():
    public = json.loads(algorithm.to_jwk(key.public_key()))
    jwks.append({**public, "kid": alg.lower(), "use": "sig", "alg": alg})

def token(alg, changes={}, key=None, **headers):
    claims = {"iss": "https://id.example", "aud": "api", "sub": "acme", "exp": int(time.time()) + 3600}
    claims.update(changes)
    headers = {"kid": alg.lower(), **headers}
    return jwt.encode(claims, key or keys[alg][0], algorithm=alg, headers=headers)

hour = int(time.time()) - 3600
stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
tokens = {alg: token(alg) for alg in keys}
tokens["pro"] = token("RS256", {"sub": "beta", "tier": "pro"})
tokens["mapped"] = token("ES256", {"sub": "mallory", "tier": "pro"})
tokens["unknown-plan"] = token("ES256", {"tier": "gold"})
tokens["star"] = token("EdDSA", {"sub": "*"})
tokens["expired"] = token("RS256", {"exp": hour})
tokens["early"] = token("RS256", {"nbf": int(time.time()) + 3600})
tokens["issuer"] = token("RS256", {"iss": "https://other.example"})
tokens["audience"] = token("RS256", {"aud": ["other"]})
tokens["stranger"] = token("RS256", key=stranger)
tokens["unknown-key"] = token("RS256", key=stranger, kid="nobody")
tokens["hmac"] = jwt.encode({"sub": "acme"}, "x" * 32, algorithm="HS256", headers={"kid": "rs256"})
tokens["none"] = jwt.encode({"sub": "acme"}, None, algorithm="none")
print(json.dumps({"jwks": {"keys": jwks}, "tokens": tokens}))
"#;

const POLICIES: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "rolling-window", limit = 2, window = "1h" }]

[[plan]]
name = "pro"
limits = { api = { burst = 5 } }

[[plan]]
name = "blocked"
subjects = ["mallory"]
limit = 0
"#;

struct Issued {
    keys: Value,
    tokens: Value,
}

impl Issued {
    fn new() -> Self {
        let printed = python(ISSUER, &[]).expect("PyJWT makes tokens");
        let mut printed: Value = serde_json::from_str(&printed).expect("JSON");
        Self { keys: printed["jwks"].take(), tokens: printed["tokens"].take() }
    }

    fn token(&self, name: &str) -> &str {
        self.tokens[name].as_str().expect("a token")
    }
}

fn config(source: &str) -> String {
    format!(
        "[store]\nkind = \"memory\"\n[jwt]\n{source}\nissuer = \"https://id.example\"\naudience = \"api\"\n\
         plan_claim = \"tier\"\n{POLICIES}"
    )
}

/// The status of an ask with `token`, and the answer.
fn ask(http: &Http, url: &str, token: &str, body: &Value) -> (u16, Value) {
    let answer = http.send(post_json(&format!("{url}/v1/acquire"), token, body.to_string()));
    (answer.status().as_u16(), serde_json::from_str(answer.body()).expect("JSON"))
}

fn admitted(http: &Http, url: &str, token: &str) -> usize {
    let is_admitted = |_: &usize| ask(http, url, token, &json!({ "policy": "api" })).0 == 200;
    (0..9).filter(is_admitted).count()
}

#[test]
fn the_subject_and_the_plan_are_those_of_the_token() {
    let issued = Issued::new();
    let folder = Folder::with(&config("jwks_file = \"keys.json\""));
    folder.write("keys.json", &issued.keys.to_string());
    let (mut broker, http) = (Broker::start(&folder, ""), Http::new());
    let url = broker.url.clone();
    // Each algorithm is of the same subject, which has two.
    let statuses = ["RS256", "ES256", "EdDSA"]
        .map(|alg| ask(&http, &url, issued.token(alg), &json!({ "policy": "api" })).0);
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(admitted(&http, &url, issued.token("pro")), 5, "the claim is the plan");
    assert_eq!(admitted(&http, &url, issued.token("mapped")), 0, "the file blocks the subject");

    let about = |subject: &str| json!({ "policy": "api", "subject": subject });
    let rs256 = issued.token("RS256");
    assert_eq!(ask(&http, &url, rs256, &about("acme")).0, 429);
    let (status, problem) = ask(&http, &url, rs256, &about("beta"));
    assert_eq!(status, 403, "{problem}");
    assert!(problem["detail"].to_string().contains("of subject \\\"acme\\\""), "{problem}");
    assert_eq!(ask(&http, &url, issued.token("star"), &about("acme")).0, 403, "not a pattern");
    let (status, problem) = ask(&http, &url, issued.token("unknown-plan"), &about("acme"));
    assert_eq!(status, 403, "{problem}");
    assert!(problem["detail"].to_string().contains("known: pro, blocked"), "{problem}");

    let rows = [
        ("expired", "has expired"),
        ("early", "not valid yet"),
        ("issuer", "of another issuer"),
        ("audience", "for another audience"),
        ("stranger", "the signature of the token is wrong"),
        ("unknown-key", "a key that is not in the key set"),
        ("hmac", "must be signed with RS256, ES256 or EdDSA"),
        ("none", "must be signed with RS256, ES256 or EdDSA"),
    ];
    for (name, expected) in rows {
        let (status, problem) = ask(&http, &url, issued.token(name), &json!({ "policy": "api" }));
        assert_eq!((status, &problem["kind"]), (401, &json!("unauthenticated")), "{name}");
        assert!(problem["detail"].to_string().contains(expected), "{name}: {problem}");
    }
    let (status, _) = ask(&http, &url, "", &about("acme"));
    assert_eq!(status, 401, "no token");
    let inspect = Request::get(format!("{url}/v1/policies"));
    let inspect = inspect.header("authorization", format!("Bearer {rs256}"));
    assert_eq!(http.send(inspect.body(String::new()).expect("a request")).status(), 403);

    // Another key set in the file ends the tokens of the old one.
    let next = Issued::new();
    folder.write("keys.json", &next.keys.to_string());
    assert_eq!(broker.line(), "reloaded\n");
    assert_eq!(ask(&http, &url, rs256, &about("acme")).0, 401);
    assert_eq!(ask(&http, &url, next.token("pro"), &about("beta")).0, 429);
    let (_, _, log) = broker.end("-TERM");
    assert!(!log.contains(rs256.rsplit_once('.').expect("three parts").1), "{log}");
}

/// Settling by the same token returns what was not used: the permit is of the plan that the token claims.
#[test]
fn a_permit_of_a_claimed_plan_is_released() {
    let issued = Issued::new();
    let folder = Folder::with(&config("jwks_file = \"keys.json\""));
    folder.write("keys.json", &issued.keys.to_string());
    let (broker, http) = (Broker::start(&folder, ""), Http::new());
    let token = issued.token("pro");
    let (_, first) = ask(&http, &broker.url, token, &json!({ "policy": "api" }));
    assert_eq!(admitted(&http, &broker.url, token), 4);
    let body = json!({ "permit": first["permit"] }).to_string();
    let released = http.send(post_json(&format!("{}/v1/release", broker.url), token, body.clone()));
    assert_eq!((released.status().as_u16(), released.body().as_str()), (200, "{\"changed\":true}"));
    assert_eq!(admitted(&http, &broker.url, token), 1);
    let other = post_json(&format!("{}/v1/release", broker.url), issued.token("RS256"), body);
    assert_eq!(http.send(other).status(), 403, "the permit of another subject");
}

#[test]
fn forward_authentication_takes_the_subject_of_the_token() {
    let issued = Issued::new();
    let folder = Folder::with(&config("jwks_file = \"keys.json\""));
    folder.write("keys.json", &issued.keys.to_string());
    let (broker, http) = (Broker::start(&folder, ""), Http::new());
    let send = |query: &str, token: &str| {
        let request = Request::get(format!("{}/v1/forward-auth?{query}", broker.url));
        let request = request.header("x-forwarded-host", "api.example");
        let request = request.header("authorization", format!("Bearer {token}"));
        http.send(request.body(String::new()).expect("a request")).status().as_u16()
    };
    let pro: Vec<u16> = (0..6).map(|_| send("policy=api", issued.token("pro"))).collect();
    assert_eq!(pro, [200, 200, 200, 200, 200, 429]);
    assert_eq!(send("policy=api", issued.token("expired")), 401);
    assert_eq!(send("policy=api&subject=acme", issued.token("pro")), 403);
    assert_eq!(send("policy=api&subject=acme", issued.token("RS256")), 200);
}

/// Serves the key set that is set, and counts the requests.
fn serve_keys(keys: Arc<Mutex<String>>, requests: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/keys", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let head = BufReader::new(stream.try_clone().expect("a socket")).lines();
            head.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            requests.fetch_add(1, Ordering::Relaxed);
            let body = keys.lock().expect("no panic").clone();
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
        }
    });
    url
}

/// A rotated key is found by the first token that has it, and unknown keys do not make the broker call the issuer each time.
#[test]
fn a_key_set_by_url_is_read_again_for_an_unknown_key() {
    let (first, second) = (Issued::new(), Issued::new());
    let renamed = |issued: &Issued| issued.keys.to_string().replace("\"rs256\"", "\"older\"");
    let keys = Arc::new(Mutex::new(renamed(&first)));
    let requests = Arc::new(AtomicUsize::new(0));
    let url = serve_keys(Arc::clone(&keys), Arc::clone(&requests));
    let folder = Folder::with(&config(&format!("jwks_url = \"{url}\"")));
    let (broker, http) = (Broker::start(&folder, ""), Http::new());
    assert_eq!(admitted(&http, &broker.url, first.token("ES256")), 2);
    assert_eq!(requests.load(Ordering::Relaxed), 1, "known keys are not asked for");
    *keys.lock().expect("no panic") = second.keys.to_string();
    assert_eq!(admitted(&http, &broker.url, second.token("pro")), 5, "also the first of them");
    assert_eq!(requests.load(Ordering::Relaxed), 2);
    for _ in 0..20 {
        let token = second.token("unknown-key");
        assert_eq!(ask(&http, &broker.url, token, &json!({ "policy": "api" })).0, 401);
    }
    assert_eq!(requests.load(Ordering::Relaxed), 2, "at most one in half a minute");
}

#[test]
fn mistakes_in_jwt_are_reported_with_their_line() {
    let good = config("jwks_file = \"keys.json\"");
    let rows = [
        ("jwks_file = \"keys.json\"", "", "[jwt] needs either jwks_file or jwks_url"),
        (
            "jwks_file = \"keys.json\"",
            "jwks_url = \"http://id.example/keys\"",
            "4: jwks_url must begin with https://",
        ),
        ("issuer = \"https://id.example\"", "", "[jwt] needs issuer, as in issuer ="),
        ("audience = \"api\"", "", "[jwt] needs audience"),
        ("plan_claim", "leeway = \"1h\"\nplan_claim", "7: leeway 1h must be between 0s and 5m"),
        (
            "plan_claim",
            "plan_claims",
            "7: there is no \"plan_claims\" here; did you mean plan_claim?",
        ),
    ];
    for (from, to, expected) in rows {
        let ran = Folder::with(&good.replacen(from, to, 1)).run("policies check tollgate.toml");
        assert!(ran.code == 2 && ran.err.contains(expected), "{to}: {}", ran.err);
    }
    // The key set itself is read when the broker starts.
    let folder = Folder::with(&good);
    for (keys, expected) in [(None, "cannot be read"), (Some("{\"keys\": []}"), "no key for RS256")]
    {
        if let Some(keys) = keys {
            folder.write("keys.json", keys);
        }
        let ran = folder.run("serve --http 127.0.0.1:0 --resp off --grpc off");
        assert!(ran.code != 0 && ran.err.contains(expected), "{}", ran.err);
    }
}
